"""All versions of PyTorch in the range of pyproject.toml do the same; what not all of them have stands in one file.

CHORUS_OLDEST_TORCH=PYTHON pytest -m proof tests/distributed/test_torch_versions.py

makes the types and runs a proof on the oldest. PYTHON is that of an environment with everything in requirements.txt and
requirements-test.txt, but with the oldest PyTorch.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from modules.config.errors import UserError
from modules.config.ModelConfig import ModelConfig
from modules.distributed import torch_versions
from modules.distributed.torch_versions import float8_compiler_problem, minor_version, without_buffer_broadcasts
from modules.machine.doctor.packages import torch_range
from modules.trainer import compiling

ROOT = Path(__file__).resolve().parents[2]
GPU = torch.device("cuda:0")

# Arguments and names that came after 2.11, of the kinds that Chorus uses.
NEWER_ARGUMENTS = {
    *("forward_sync_buffers", "batched_grad_copy", "recompile_limit", "isolate_recompiles", "shapes_spec"),
    *("sort_ranks", "shutdown_timeout", "depthwise_kernel", "check_input_liveness", "separate_full_blocks"),
}
NEWER_NAMES = {
    *("linear_cross_entropy", "LinearCrossEntropyLoss", "empty_host_cache", "caching_allocator_disabled"),
    *("all_gather_single", "reduce_scatter_single", "enforce_grad_layout_policy", "region_activation_memory_budget"),
    *("thread_safe_generator", "get_default_backend", "set_default_backend", "is_uninterruptible_state"),
}
NEWER_TEXTS = ("pinned_max_cached_size_mb",)  # settings of the allocator
REPORTS = {
    "modules/distributed/rendezvous.py",
    "modules/distributed/torch_facts.py",
    "modules/distributed/usable_gpus.py",
}


def of_some_versions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, what) of what not every version of the range has, and of questions for the version."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in NEWER_ARGUMENTS:
            yield node.value.lineno, str(node.arg)
        elif isinstance(node, ast.Attribute) and node.attr in NEWER_NAMES:
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in NEWER_NAMES)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield from ((node.lineno, name) for name in (*NEWER_TEXTS, *NEWER_ARGUMENTS) if name in node.value)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.__version__":
            yield node.lineno, "torch.__version__"


def test_what_not_every_version_has_is_asked_for_in_one_file():
    found = {}
    for path in (path for folder in ("modules", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))):
        name = path.relative_to(ROOT).as_posix()
        hits = list(of_some_versions(ast.parse(path.read_text(encoding="utf-8"))))
        hits = [hit for hit in hits if hit[1] != "torch.__version__" or name not in REPORTS]  # they only show it
        if hits:
            found[name] = hits
    assert list(found) == [Path(torch_versions.__file__).relative_to(ROOT).as_posix()], found


@pytest.mark.parametrize(
    "code",
    [
        "DistributedDataParallel(model, forward_sync_buffers=False)",
        "options = {'forward_sync_buffers': False}",
        "torch.accelerator.empty_host_cache()",
        "from torch.nn.functional import linear_cross_entropy",
        "settings = 'pinned_max_cached_size_mb:512'",
        "if torch.__version__ >= '2.13':\n    pass",
    ],
)
def test_a_planted_use_of_what_is_newer_is_found(code):
    assert list(of_some_versions(ast.parse(code)))


def test_buffers_are_left_alone_by_the_argument_that_this_version_has(monkeypatch):
    class OfTorch211(nn.Module):
        def __init__(self, module, broadcast_buffers=True, static_graph=False):
            super().__init__()

    own = "forward_sync_buffers" if minor_version() >= (2, 13) else "broadcast_buffers"
    assert without_buffer_broadcasts() == {own: False}
    monkeypatch.setattr("torch.nn.parallel.DistributedDataParallel", OfTorch211)
    assert without_buffer_broadcasts() == {"broadcast_buffers": False}


@pytest.mark.parametrize(
    ("version", "capability", "is_compiled"),
    [("2.11.0+cu130", (8, 6), False), ("2.12.1", (7, 5), False), ("2.11.0", (8, 9), True), ("2.13.0", (8, 6), True)],
)
def test_float8_is_compiled_where_the_compiler_of_the_version_can(version, capability, is_compiled, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA GeForce RTX 3090")
    monkeypatch.setattr(compiling, "_missing_on_gpu", lambda: "")
    compiling.check_compiler(ModelConfig(compile="blocks", denoiser_quantization="int8"), GPU)
    float8 = ModelConfig(compile="blocks", denoiser_quantization="float8")
    if is_compiled:
        compiling.check_compiler(float8, GPU)
        return
    with pytest.raises(
        UserError, match=r"float8: PyTorch 2\.1\d.* compiles no float8 for NVIDIA .*; use int8, install"
    ):
        compiling.check_compiler(float8, GPU)
    assert not float8_compiler_problem(torch.device("cpu"))


# --- on the oldest ----------------------------------------------------------------------------------------------------


@pytest.fixture
def oldest() -> str:
    """Python with the oldest PyTorch."""
    python = os.environ.get("CHORUS_OLDEST_TORCH")
    if not python:
        pytest.skip("CHORUS_OLDEST_TORCH names no Python with the oldest PyTorch")
    return python


def output_of(*command: str) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.mark.proof
def test_the_code_fits_the_types_of_the_oldest(oldest, tmp_path):
    versions = "import torch; print('.'.join(torch.__version__.split('.')[:2]))"
    assert output_of(oldest, "-c", versions).split() == [".".join(map(str, torch_range()[0]))]
    output_of(oldest, "-m", "mypy", "--no-warn-unused-ignores", "--cache-dir", str(tmp_path))


@pytest.mark.proof
@pytest.mark.parametrize(
    "path",
    [
        "tests/distributed/test_data_parallel_runtime.py",
        "tests/distributed/test_sharded_runtime.py",
        "tests/trainer/test_resume.py",
        "tests/engine/test_launch.py",
    ],
)
def test_ranks_and_runs_on_the_oldest_pass_their_tests(path, oldest):
    assert "passed" in output_of(oldest, "-m", "pytest", "-q", "-p", "no:cacheprovider", path).splitlines()[-1]
