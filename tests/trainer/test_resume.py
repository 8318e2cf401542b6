"""An interrupted run resumes exactly: 8 steps equal 4 + backup + new process + 4, bit for bit."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from modules.config.files import load_config
from modules.methods.DenoisingLoss import DenoisingLoss
from tests.support.fork_server import start_forked
from tests.support.full_disk import full_disk
from tests.support.StartedRun import StartedRun
from tests.support.stop_after import stop_after
from tests.support.train_here import train_here
from tests.support.waiting import PATIENCE_SECONDS

METHODS = {
    "lora": (
        *("method=lora", "text_encoder.train=true", "lora.dropout=0.1", "lora.targets=linear_conv"),
        *("lora.rank_dropout=0.2", "lora.module_dropout=0.2", "lora.nested_unit=1", "lora.plus_ratio=4"),
        "lora.max_norm=0.01",
    ),
    "lokr": (
        "method=lora",
        "text_encoder.train=true",
        "lora.adapter=lokr",
        "lora.rank=2",
        "lora.max_norm=0.01",
        "lora.train_norms=true",
    ),
    "full": ("method=full", "text_encoder.train=true", "optimizer.learning_rate=0.0001"),
}
# Step 4 is the first of three steps in the second epoch, so it is within an epoch.
RUN = (
    "batch_size=2",
    "gradient_accumulation_steps=2",
    "schedule.name=cosine",
    "schedule.warmup=2",
    "data.caption_dropout=0.2",
    "ema.enabled=true",
    "max_steps=8",
)


def killed_in_a_step(config_file: str) -> None:
    """Trains until it is killed between the micro-batches of a step."""
    forward = DenoisingLoss.forward
    calls = 0

    def killing_forward(self, batch):
        nonlocal calls
        calls += 1
        if calls == 16:  # the second micro-batch of a step: every step has two, or three with mixed shapes
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(self, batch)

    DenoisingLoss.forward = killing_forward
    train_here(load_config(config_file))


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.safetensors")}


def model_files(run: Path, name: str) -> list[bytes]:
    """The weights of a LoRA file or a diffusers folder."""
    paths = [run / "models" / f"{name}.safetensors", *sorted((run / "models" / name).rglob("*.safetensors"))]
    return [path.read_bytes() for path in paths if path.exists()]


def step_events(folder: Path) -> dict[int, tuple]:
    """The last event of each step; steps after the backup are repeated."""
    lines = (folder / "events" / "rank-0.jsonl").read_text(encoding="utf-8").splitlines()
    events = [event for event in map(json.loads, lines) if event["type"] == "step"]
    return {e["step"]: (e["loss"], e["smooth_loss"], e["lr"], e["epoch"], e["samples"], e["grad_norm"]) for e in events}


@pytest.mark.parametrize("method", METHODS)
def test_eight_steps_equal_four_steps_and_four_after_a_resume(method, make_config, train, start, config_file, tmp_path):
    straight = train(make_config(*RUN, *METHODS[method], f"workspace_dir={tmp_path / 'straight'}"))

    first = start(make_config(*RUN, *METHODS[method]))
    stop_after(first, 4)
    first.train()
    first.end()
    assert (first.step, first.loop.step_in_epoch, first.stopped) == (4, 1, True)

    run = tmp_path / "run"
    with StartedRun("alone", config_file(first.config), run, "--resume", forked=method != "lora") as resumed:
        assert resumed.wait() == [0], resumed.output
    assert model_files(run, "model") == model_files(tmp_path / "straight", "model") != []
    assert [] != model_files(run, "model-step000004") != model_files(run, "model")
    assert files(run / "backup" / "step-000000008") == files(tmp_path / "straight" / "backup" / "step-000000008")
    straight_steps = {
        i.step: (i.loss, i.smooth_loss, i.lr, i.epoch, i.samples, i.grad_norm) for i in straight.callbacks.steps
    }
    resumed_steps = step_events(run)
    assert resumed_steps == {step: straight_steps[step] for step in range(5, 9)}


def test_a_run_killed_during_accumulation_resumes_from_its_backup(make_config, train, config_file, tmp_path):
    settings = (*RUN, *METHODS["lora"], "backup.every=3", "backup.unit=steps")
    straight = train(make_config(*settings, f"workspace_dir={tmp_path / 'straight'}"))
    config = make_config(*settings)
    killed = start_forked(killed_in_a_step, config_file(config))
    killed.join(PATIENCE_SECONDS)
    assert killed.exitcode == -signal.SIGKILL
    run = tmp_path / "run"
    last = max(step_events(run))
    assert 6 <= last < 8

    resumed = train(config, resume=True)
    assert resumed.callbacks.steps[0].step in (4, 7)  # the backup at step 6 may not have been complete
    assert files(run / "models") == files(tmp_path / "straight" / "models")
    number = resumed.callbacks.steps[0].step - 1
    assert resumed.callbacks.losses == straight.callbacks.losses[number:]


def test_a_run_resumes_exactly_from_a_backup_in_a_fallback_folder(make_config, train, start, tmp_path):
    spare = (f"output.fallback_dir={tmp_path / 'spare'}", "output.wait_minutes=0")
    settings = (*RUN, *METHODS["lora"], "max_steps=6", *spare)
    straight = train(make_config(*settings, f"workspace_dir={tmp_path / 'straight'}"))
    first = start(make_config(*settings))
    stop_after(first, 4)
    first.train()
    run = tmp_path / "run"
    with full_disk(run / "backup", run / "models"):
        first.end()
    assert (run / "backup" / "step-000000004").is_symlink()

    second = train(make_config(*settings), resume=True)
    assert second.callbacks.losses == straight.callbacks.losses[4:]
    assert files(run / "models") == files(tmp_path / "straight" / "models") != {}


def test_a_resume_within_an_epoch_neither_repeats_nor_drops_samples(make_config, train, start):
    config = make_config(*RUN)
    first = start(config)
    stop_after(first, 4)
    first.train()
    first.end()
    second = train(config, resume=True)
    steps = first.callbacks.steps + second.callbacks.steps
    assert [info.step for info in steps] == list(range(1, 9))
    assert [info.samples for info in steps] == [4, 4, 3] * 2 + [4, 4]
