"""What torch compiles is kept for later starts, within a size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor.runtime import cache_dir_utils

from modules.layers import QuantizedLinear as quantized_linear
from modules.layers.QuantizedLinear import QuantizedLinear
from modules.trainer import compile_cache
from modules.trainer.compile_cache import VARIABLE, compile_cache_folder, keep_compiled, prune
from modules.trainer.compiling import compile_blocks

DAY = 86400.0


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """The cache folder of a user."""
    monkeypatch.delenv(VARIABLE)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    return compile_cache_folder()


def entry(folder: Path, name: str, days_ago: float, num_bytes: int = 100) -> Path:
    (folder / name).mkdir(parents=True)
    file = folder / name / "kernel.so"
    file.write_bytes(bytes(num_bytes))
    now = os.stat(folder).st_mtime
    os.utime(file, (now - days_ago * DAY, now - days_ago * DAY))
    return file


def test_torch_keeps_what_it_compiles_in_the_users_cache_folder(home):
    cache_dir_utils.cache_dir()  # which names its own folder, for temporary files
    keep_compiled(prunes=True)
    torch.compile(lambda values: values + 1)(torch.ones(2))
    assert home.is_dir()
    assert any(home.rglob("*.cpp"))


def test_a_quantized_layer_is_found_there_until_the_code_of_its_function_changes(home, monkeypatch):
    """What is compiled for an autograd function of ours is looked for by what that computes, not by its name."""
    keep_compiled(prunes=True)
    layer = QuantizedLinear.of(nn.Linear(8, 4, bias=False), "int8", torch.device("cpu"))
    compile_blocks(layer, all_sizes=False)
    counters = torch._dynamo.utils.counters["aot_autograd"]

    def started() -> tuple[int, torch.Tensor]:
        """(what was found, the gradient of the values) in a process that has nothing compiled in memory."""
        torch._dynamo.reset()
        counters.clear()
        values = torch.ones(2, 8, requires_grad=True)
        layer(values).sum().backward()
        return counters["autograd_cache_hit"], values.grad

    (none, gradient), (found, again) = started(), started()
    assert (none, found) == (0, 1)
    assert torch.equal(again, gradient)
    own = quantized_linear._Multiply.backward
    twice = staticmethod(lambda ctx, gradient: own(ctx, 2 * gradient))
    monkeypatch.setattr(quantized_linear._Multiply, "backward", twice)
    (none, changed) = started()
    assert none == 0
    assert torch.equal(changed, 2 * gradient)
    torch._dynamo.reset()


def test_a_folder_that_the_environment_names_stays(home, monkeypatch, tmp_path):
    named = entry(tmp_path / "own", "old", 100)
    monkeypatch.setattr(compile_cache, "MOST_BYTES", 0)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own"))
    keep_compiled(prunes=True)
    assert os.environ[VARIABLE] == str(tmp_path / "own")
    assert named.exists()
    assert not home.exists()


def test_a_home_that_cannot_be_written_is_no_obstacle(home, tmp_path):
    (tmp_path / "chorus").write_text("a file where the folder would be")
    keep_compiled(prunes=True)
    assert VARIABLE not in os.environ


def test_the_least_recently_used_is_removed_first(tmp_path):
    files = {days: entry(tmp_path, f"fxgraph/a{days}/key", days) for days in (3, 9, 5)}
    prune(tmp_path, 200)
    assert [days for days, file in files.items() if file.exists()] == [3, 5]
    assert not any(tmp_path.glob(".*"))


def test_what_a_run_may_be_reading_and_its_locks_stay(tmp_path):
    recent, lock = entry(tmp_path, "triton/0/key", 0.5), entry(tmp_path, "locks", 50)
    prune(tmp_path, 0)
    assert recent.exists()
    assert lock.exists()


def test_two_ranks_may_prune_at_once(tmp_path, monkeypatch):
    """The other removes an entry after this one has listed it."""
    entry(tmp_path, "ab", 9)
    gone = [*compile_cache._entries(tmp_path)]
    prune(tmp_path, 0)
    monkeypatch.setattr(compile_cache, "_entries", lambda folder: gone)
    prune(tmp_path, 0)
    assert not any(tmp_path.iterdir())
