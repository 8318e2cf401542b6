"""Ranks on NVIDIA GPUs: tests for one GPU, and tests that need two."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline

from modules.families.registry import FAMILIES
from modules.weights.single_file import save_single_file
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
ONE_RANK_WITH_NCCL = """
import sys, torch, torch.distributed as dist
from modules.distributed.DataParallelRuntime import DataParallelRuntime
from modules.distributed.environments import SpawnEnvironment
from modules.distributed.Runtime import Runtime
from modules.distributed.SignedStore import SignedStore
from modules.trainer.Step import Step
from tests.support.make_loop import make_loop

device = torch.device("cuda", 0)
torch.cuda.set_device(device)
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 1, is_master=True)
dist.init_process_group("nccl", store=dist.PrefixStore("group", store), rank=0, world_size=1, device_id=device)
environment = SpawnEnvironment(0, 0, 1, 1, 0, 1, "127.0.0.1", int(sys.argv[1]), "run", 0)
data = [torch.randn(8, 16, device=device) for _ in range(6)]

def weights(runtime):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    loop = make_loop(model, lambda model, batch: (model(batch).square().sum(), len(batch), {}), runtime=runtime)
    for _ in range(2):  # in the second step, DDP orders its buckets as gradients came in the first, and waits for that
        loop.train_step(Step(data[:2]))
    torch.cuda.set_sync_debug_mode("error")
    for batch in data:
        loop.train_step(Step([batch, batch]))
    torch.cuda.set_sync_debug_mode("default")
    return torch.cat([param.detach().flatten() for param in model.parameters()])

runtime = DataParallelRuntime(device, environment, SignedStore(store, b"", "run").within("runtime"))
torch.testing.assert_close(weights(runtime), weights(Runtime(device)), rtol=1e-6, atol=1e-6)
runtime.close()
dist.destroy_process_group()
"""

pytestmark = pytest.mark.gpu


def losses(folder: Path) -> list[float]:
    lines = (folder / "events" / "rank-0.jsonl").read_text(encoding="utf-8").splitlines()
    return [event["loss"] for event in map(json.loads, lines) if event["type"] == "step"]


def test_one_rank_with_nccl_trains_as_one_without_and_never_waits():
    command = [sys.executable, "-c", ONE_RANK_WITH_NCCL, str(free_port())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def run(make_config, config_file, tmp_path) -> Callable[..., tuple[list[float], str]]:
    """Returns a function that trains on a number of ranks and returns the losses and the terminal output."""

    def train(ranks: int, *options: str, overrides: Sequence[str] = ()) -> tuple[list[float], str]:
        folder = tmp_path / f"{ranks}-ranks"
        config = make_config("batch_size=8", "batch_size_mode=global", f"workspace_dir={folder}", *overrides)
        arguments = ["--config", config_file(config), "--multi_gpu", "--no_torchrun", "--world_size", str(ranks)]
        command = [sys.executable, str(ROOT / "scripts" / "train.py"), *arguments, *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=300)
        assert done.returncode == 0, done.stderr
        return losses(folder), done.stderr

    return train


@pytest.mark.parametrize("kind", ["folder", "single file"])
def test_two_ranks_with_gloo_share_one_gpu(kind, run, tiny_sd15, tmp_path):
    """All components of a single file stay in memory, but not all on the GPU."""
    base = ()
    if kind == "single file":
        file = tmp_path / "base.safetensors"
        save_single_file(file, FAMILIES["sd15"], DiffusionPipeline.from_pretrained(tiny_sd15).components)
        base = (f"model.base={file}", f"model.config_folder={tiny_sd15}")
    options = ("--backend", "gloo", "--devices", "0")
    alone, _ = run(1, *options, overrides=base)
    together, shown = run(2, *options, overrides=base)
    assert "Number of processes: 2" in shown
    assert together == pytest.approx(alone, rel=1e-3)


def test_two_gpus_with_nccl_give_the_curve_of_one(run):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs")
    alone, _ = run(1, "--backend", "nccl", "--devices", "0")
    together, shown = run(2, "--backend", "nccl", "--devices", "0,1")
    assert "Number of processes: 2" in shown
    assert together == pytest.approx(alone, rel=1e-3)
