"""What every test may ask for: tiny models on disk and folders of captioned pictures."""

from __future__ import annotations

import os
import tempfile

# Before anything imports torch or the Hub's client: these are read once, at import.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch obeys it; tiny models are fastest on one thread
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
# not among what the user's own runs have compiled
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), "chorus-compiled-by-tests"))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else it starts processes, each of which imports torch

import contextlib
import functools
import gc
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support import tiny_models
from tests.support.fork_server import share_server
from tests.support.hidden_gpus import hide_gpus
from tests.support.network_namespaces import Host, NamespacesNotAllowed, make_two_hosts
from tests.support.pictures import PICTURE_SIZES, Sizes, write_layers, write_pictures
from tests.support.RankPool import RankPool
from tests.support.small_inputs import shrink_inputs

hide_gpus(sys.argv[1:], os.environ)  # none of the imports above asks CUDA for its devices, those of tests may
# A shell that starts the tests in the background has them ignore Ctrl-C, and all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Under nohup they would ignore a closed terminal: the tests themselves still do, what they start hears of it.
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

TESTS = Path(__file__).parent
sys.path.append(str(TESTS / "support" / "guardrail"))  # what some families' licenses ask for, in miniature
# The longest first (scripts/long_test_files.py): of several workers, none shall begin one when the others are done.
LONG_FILES = json.loads((TESTS / "long_files.json").read_text(encoding="utf-8"))

FORKED_OUTPUT = tempfile.TemporaryFile()  # noqa: SIM115 - until the tests end
SHOWN_BYTES = 20_000


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None):  # of xdist: its workers share what imports for seconds
        share_server(FORKED_OUTPUT)
    if gone := [name for name in LONG_FILES if not (TESTS / name).is_file()]:
        raise pytest.UsageError(f"tests/long_files.json names what is not there: {', '.join(gone)}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    FORKED_OUTPUT.seek(0)
    if terminalreporter.stats.keys() & {"failed", "error"} and (said := FORKED_OUTPUT.read()):
        terminalreporter.section("the last that forked processes have written")
        terminalreporter.write(said[-SHOWN_BYTES:].decode(errors="replace"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays to the end: to look for garbage in it took a tenth of the tests' time."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {TESTS / name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("proof") and "proof" not in item.config.option.markexpr:
        pytest.skip("takes many minutes; -m proof runs it")
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU; ./scripts/test.sh --gpu runs these tests")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Callable[[str], Path]:
    """A function that gives the folder of a tiny model: of a family, or one of tiny_models.VARIANTS. Read only."""

    @functools.cache
    def folder(name: str) -> Path:
        shrink_inputs(name)
        return tiny_models.make_tiny(name, tmp_path_factory.mktemp("tiny") / name.replace(" ", "_"))

    return folder


@pytest.fixture(scope="session")
def tiny_sd15(tiny_model) -> Path:
    """A diffusers folder: Stable Diffusion 1.5 in miniature, epsilon prediction. Read only."""
    return tiny_model("sd15")


@pytest.fixture(scope="session")
def tiny_sd15_v(tiny_model) -> Path:
    """A diffusers folder: Stable Diffusion 2.1 in miniature, v prediction. Read only."""
    return tiny_model("sd15 v")


@pytest.fixture(scope="session")
def tiny_sdxl(tiny_model) -> Path:
    """A diffusers folder: Stable Diffusion XL in miniature, epsilon prediction. Read only."""
    return tiny_model("sdxl")


@pytest.fixture(scope="session")
def tiny_sdxl_v(tiny_model) -> Path:
    """The same, v prediction. Read only."""
    return tiny_model("sdxl v")


@pytest.fixture(scope="session")
def tiny_sd3(tiny_model) -> Path:
    """A diffusers folder: Stable Diffusion 3 in miniature. Read only."""
    return tiny_model("sd3")


@pytest.fixture(scope="session")
def tiny_sd35(tiny_model) -> Path:
    """A diffusers folder: Stable Diffusion 3.5 in miniature, and without its T5. Read only."""
    return tiny_model("sd35 without T5")


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory) -> Iterator[RankPool]:
    """Two processes that have joined each other and run scenarios together."""
    pool = RankPool(2, tmp_path_factory.mktemp("two_ranks"))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def four_ranks(tmp_path_factory) -> Iterator[RankPool]:
    """The same with four."""
    pool = RankPool(4, tmp_path_factory.mktemp("four_ranks"))
    yield pool
    pool.close()


@pytest.fixture
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts on this machine, joined by a network of their own; skips where that is not allowed."""
    with contextlib.ExitStack() as stack:
        try:
            hosts = stack.enter_context(make_two_hosts())
        except NamespacesNotAllowed as reason:
            pytest.skip(str(reason))
        yield hosts


@pytest.fixture
def picture_folder(tmp_path) -> Callable[..., Path]:
    """A function that makes a folder of PNGs with captions beside them and returns the folder.

    picture_folder(sizes=((width, height), ...), captions=None, name="pictures"): one picture per size, `000.png`,
    `001.png` ...; captions: one per picture, None for a default one, or "" to write no caption file at all.
    """

    def make(sizes: Sizes = PICTURE_SIZES, captions: Sequence[str] | None = None, name: str = "pictures") -> Path:
        return write_pictures(tmp_path / name, sizes, captions)

    return make


@pytest.fixture
def layer_folder(tmp_path) -> Callable[..., Path]:
    """A function that makes a folder with the layers of each picture in a folder, and returns it.

    layer_folder(pictures, counts=(2,)): the numbers of layers of the pictures, repeated; the lowest one is opaque.
    """

    def make(pictures: Path, counts: Sequence[int] = (2,)) -> Path:
        return write_layers(tmp_path / "layers", pictures, counts)

    return make
