"""Steps of SDXL and FLUX.1 at their real widths: Chorus beside a loop by hand and what diffusers' script does.

Each case gives seconds of a step (the median of blocks of steps, with the GPU drained at both ends), its peak memory
and, for some, what its kernels take alone and its floating-point operations.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

from modules.config.files import apply_overrides, config_from_values
from scripts.gpu.cases import Case, is_cuda
from scripts.gpu.hand_loops import HandLoop
from scripts.gpu.real_models import FLUX1, NUM_BLOCKS, SDXL, model_folder, noise_pictures, side_of
from scripts.gpu.tiny_runs import work_folder

RANK = 16
WARM_UP, BLOCKS, STEPS = 4, 3, 4  # steps before the first block; blocks; steps of a block
ON_CPU = 1, 2, 1
PROFILED_STEPS = 2
CHORUS, BY_HAND, AS_SCRIPT = "Chorus", "by hand", "diffusers' script"

COMMON = (
    "model.mixed_precision=bf16",
    "model.weight_dtype=bfloat16",
    f"lora.rank={RANK}",
    f"lora.alpha={RANK}",
    "optimizer.learning_rate=1e-4",
    "epochs=10000",
    "batch_size=1",
    "model.gradient_checkpointing=false",
)
CHECKPOINTS = "model.gradient_checkpointing=true"
COMPILED = "model.compile=blocks"
# (model, what is measured, settings, which other programs do the same). What is compiled takes longest, so it is last.
CASES: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (SDXL, "batch 1, checkpointing", (CHECKPOINTS,), (BY_HAND, AS_SCRIPT)),
    (SDXL, "batch 4, checkpointing", ("batch_size=4", CHECKPOINTS), (BY_HAND,)),
    (SDXL, "batch 1", (), (BY_HAND,)),
    (FLUX1, "checkpointing", (CHECKPOINTS,), (BY_HAND, AS_SCRIPT)),
    (FLUX1, "int8", (CHECKPOINTS, "model.denoiser_quantization=int8"), ()),
    (FLUX1, "float8", (CHECKPOINTS, "model.denoiser_quantization=float8"), ()),
    (FLUX1, "all blocks swapped", (CHECKPOINTS, "model.blocks_to_swap=all"), ()),
    (FLUX1, "activations offloaded", (CHECKPOINTS, "model.activation_offloading=true"), ()),
    (FLUX1, "cuDNN's attention", (CHECKPOINTS, "model.attention=cudnn"), ()),
    (FLUX1, "compiled", (CHECKPOINTS, COMPILED), ()),
    (FLUX1, "int8, compiled", (CHECKPOINTS, COMPILED, "model.denoiser_quantization=int8"), ()),
    (SDXL, "batch 4, checkpointing, compiled", ("batch_size=4", CHECKPOINTS, COMPILED), ()),
)
# whose kernels are summed up, and whose operations are counted
PROFILED = {(SDXL, "batch 4, checkpointing"), (SDXL, "batch 1"), (FLUX1, "checkpointing"), (FLUX1, "int8")}


def steps(device: str) -> Iterator[Case]:
    for model, label, settings, others in CASES:
        for program in (CHORUS, *others):
            yield (
                f"{model} | {label} | {program}",
                partial(one_case, model, label, settings, program, device),
            )


def one_case(model: str, label: str, settings: tuple[str, ...], program: str, device: str) -> dict[str, Any]:
    """The measurements of a program."""
    if program == CHORUS:
        return chorus(model, label, settings, device)
    batch_size = int(dict(each.split("=") for each in settings).get("batch_size", "1"))
    loop = HandLoop(model, device, RANK, batch_size, CHECKPOINTS in settings, program == AS_SCRIPT)
    watch = StepWatch(device)
    for number in range(1, watch.last_step + 1):
        loop.step()
        watch.after_step(number)
    return {"batch_size": batch_size, **watch.values()}


def chorus(model: str, label: str, settings: tuple[str, ...], device: str) -> dict[str, Any]:
    """A run of Chorus; after the steps that are timed, those that are profiled."""
    import torch

    from modules.distributed.Runtime import Runtime
    from modules.session.TrainCommands import TrainCommands
    from modules.trainer.Action import Action
    from modules.trainer.GenericTrainer import GenericTrainer
    from modules.trainer.Trigger import Trigger
    from tests.support.Recorder import Recorder

    watch, told = StepWatch(device), Recorder()
    is_profiled = (model, label) in PROFILED and is_cuda(device)
    profile = StepProfile(watch.last_step) if is_profiled else None
    config = _config(model, label, settings, device, profile.last_step if profile else watch.last_step)
    begun = time.perf_counter()
    trainer = GenericTrainer(config, told, TrainCommands(), Runtime(torch.device(device)))
    trainer.start()
    started = time.perf_counter() - begun
    trainer.loop.actions["watch"] = Action(Trigger(1, "steps"), lambda: watch.after_step(trainer.step))
    if profile:
        loop: Any = trainer.loop
        loop.train_step = profile.around(loop.train_step)
    trainer.train()
    first = told.steps[0].seconds
    found = {"batch_size": config.batch_size, **watch.values(), **(profile.values() if profile else {})}
    is_right = all(loss is not None for loss in told.losses) and not any("finite" in text for text in told.warnings)
    return {"ok": is_right, **found, "start_seconds": round(started, 1), "first_step_seconds": round(first, 2)}


def _config(model: str, label: str, settings: tuple[str, ...], device: str, num_steps: int) -> Any:
    folder = work_folder()
    settings = tuple(_number_of_blocks(each, model, device) for each in settings)
    values = {
        "family": model,
        "workspace_dir": str(folder / "speed" / f"{model} {label}"),
        "cache_dir": str(folder / f"cache of {model}"),
        "model": {"base": str(model_folder(model, device))},
        "concepts": [{"path": str(noise_pictures(device))}],
        "data": {"resolution": side_of(device)},
        "output": {"format": "diffusers"},
        "max_steps": num_steps,
        "tensorboard": False,
    }
    return config_from_values(apply_overrides(values, (*COMMON, *settings)))


def _number_of_blocks(setting: str, model: str, device: str) -> str:
    count = NUM_BLOCKS.get(model, 1) - 1 if is_cuda(device) else 1
    return setting.replace("=all", f"={count}") if setting.startswith("model.blocks_to_swap") else setting


class StepWatch:
    """Times blocks of steps."""

    def __init__(self, device: str):
        self._device = device
        self._warm_up, blocks, self._steps = (WARM_UP, BLOCKS, STEPS) if is_cuda(device) else ON_CPU
        self._times: list[float] = []
        self.last_step = self._warm_up + blocks * self._steps

    def after_step(self, number: int) -> None:
        """number: of the step that is done, from 1."""
        if number < self._warm_up or number > self.last_step or (number - self._warm_up) % self._steps:
            return
        self._times.append(drained(self._device))
        if is_cuda(self._device) and len(self._times) == 1:
            import torch

            torch.cuda.reset_peak_memory_stats()

    def values(self) -> dict[str, Any]:
        times = self._times
        seconds = [round((end - begin) / self._steps, 4) for begin, end in itertools.pairwise(times)]
        found: dict[str, Any] = {"step_seconds": median(seconds), "blocks": seconds}
        if is_cuda(self._device):
            import torch

            found["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        return found


class StepProfile:
    """Sums up the kernels of some steps, and counts the operations of one more."""

    def __init__(self, begins_after: int):
        import torch

        self._begins_after = begins_after
        self.last_step = begins_after + PROFILED_STEPS + 1
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self._count, self._flops = 0, 0

    def around(self, train_step: Callable[[Any], None]) -> Callable[[Any], None]:
        """The step of a run, profiled when it is its turn."""

        def profiled_step(step: Any) -> None:
            import torch
            from torch.utils.flop_counter import FlopCounterMode

            self._count += 1
            if self._count == self._begins_after + 1:
                torch.cuda.synchronize()
                self._profiler.start()
            if self._count < self.last_step:
                train_step(step)
            if self._count == self.last_step - 1:
                torch.cuda.synchronize()
                self._profiler.stop()
            if self._count == self.last_step:
                with FlopCounterMode(display=False) as counter:
                    train_step(step)
                self._flops = counter.get_total_flops()

        return profiled_step

    def values(self) -> dict[str, Any]:
        kernels = {each.key[:60]: each.self_device_time_total / 1e6 / PROFILED_STEPS for each in self._events()}
        top = dict(sorted(kernels.items(), key=lambda pair: -pair[1])[:12])
        count = sum(each.count for each in self._events()) // PROFILED_STEPS
        return {
            "kernel_seconds": round(sum(kernels.values()), 4),
            "kernel_count": count,
            "top_kernels": {name: round(value, 4) for name, value in top.items()},
            "flops": self._flops,
        }

    def _events(self) -> Any:
        return self._profiler.key_averages()


def drained(device: str) -> float:
    """The time once the device has done all its work."""
    if is_cuda(device):
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()
