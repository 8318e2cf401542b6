"""Steps of SDXL and FLUX.1 at their real widths: Chorus beside a loop by hand and what diffusers' script does.

Each case gives seconds of a step (the median of blocks of steps, with the GPU drained at both ends), its peak memory
and, for some, what its kernels take alone and its floating-point operations.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

from modules.config.files import apply_overrides, config_from_values
from scripts.gpu.cases import Case, NotHere, is_cuda
from scripts.gpu.hand_loops import HandLoop
from scripts.gpu.models import FLUX1, SDXL, WAN, WHOLE_FLUX1
from scripts.gpu.real_models import (
    NUM_BLOCKS,
    TINY_SIZE,
    VIDEO_FRAMES,
    VIDEO_SIZE,
    family_of,
    frames_of,
    model_folder,
    noise_pictures,
    noise_videos,
    side_of,
)
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
IN_8_BITS = "model.quantized_matmul=on"
NF4, INT8, FLOAT8 = (f"model.denoiser_quantization={kind}" for kind in ("nf4", "int8", "float8"))
# (model, what is measured, settings, which other programs do the same). What is compiled takes longest, so it is last.
CASES: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (SDXL, "batch 1, checkpointing", (CHECKPOINTS,), (BY_HAND, AS_SCRIPT)),
    (SDXL, "batch 4, checkpointing", ("batch_size=4", CHECKPOINTS), (BY_HAND,)),
    (SDXL, "batch 1", (), (BY_HAND,)),
    (FLUX1, "checkpointing", (CHECKPOINTS,), (BY_HAND, AS_SCRIPT)),
    (FLUX1, "int8", (CHECKPOINTS, "model.denoiser_quantization=int8"), ()),
    (FLUX1, "float8", (CHECKPOINTS, "model.denoiser_quantization=float8"), ()),
    (FLUX1, "int8, matmul in 8 bits", (CHECKPOINTS, INT8, IN_8_BITS), ()),
    (FLUX1, "float8, matmul in 8 bits", (CHECKPOINTS, FLOAT8, IN_8_BITS), ()),
    (FLUX1, "all blocks swapped", (CHECKPOINTS, "model.blocks_to_swap=all"), ()),
    (FLUX1, "activations offloaded", (CHECKPOINTS, "model.activation_offloading=true"), ()),
    (FLUX1, "cuDNN's attention", (CHECKPOINTS, "model.attention=cudnn"), ()),
    (FLUX1, "compiled", (CHECKPOINTS, COMPILED), ()),
    (FLUX1, "int8, compiled", (CHECKPOINTS, COMPILED, "model.denoiser_quantization=int8"), ()),
    (FLUX1, "float8, matmul in 8 bits, compiled", (CHECKPOINTS, COMPILED, FLOAT8, IN_8_BITS), ()),
    (SDXL, "batch 4, checkpointing, compiled", ("batch_size=4", CHECKPOINTS, COMPILED), ()),
)
# whose kernels are summed up, and whose operations are counted
PROFILED = {(SDXL, "batch 4, checkpointing"), (SDXL, "batch 1"), (FLUX1, "checkpointing"), (FLUX1, "int8")}


# What people train on rented cards, whole, each with its kernels and operators. One model after another: the files of
# the largest take tens of gigabytes.
REAL_CASES: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (SDXL, "batch 1, checkpointing", (CHECKPOINTS,), (BY_HAND, AS_SCRIPT)),
    (SDXL, "batch 4, checkpointing", ("batch_size=4", CHECKPOINTS), (BY_HAND,)),
    (SDXL, "batch 4, checkpointing, compiled", ("batch_size=4", CHECKPOINTS, COMPILED), ()),
    (FLUX1, "checkpointing", (CHECKPOINTS,), (BY_HAND, AS_SCRIPT)),
    (FLUX1, "int8", (CHECKPOINTS, INT8), ()),
    (FLUX1, "nf4", (CHECKPOINTS, NF4), ()),
    (FLUX1, "float8, half of the blocks swapped", (CHECKPOINTS, FLOAT8, "model.blocks_to_swap=half"), ()),
    (FLUX1, "int8, compiled", (CHECKPOINTS, COMPILED, INT8), ()),
    (WAN, f"{VIDEO_FRAMES} frames, checkpointing", (CHECKPOINTS,), ()),
    (WHOLE_FLUX1, "int8", (CHECKPOINTS, INT8), ()),
    (WHOLE_FLUX1, "nf4", (CHECKPOINTS, NF4), ()),
    (WHOLE_FLUX1, "float8, half of the blocks swapped", (CHECKPOINTS, FLOAT8, "model.blocks_to_swap=half"), ()),
)


def steps(device: str) -> Iterator[Case]:
    for model, label, settings, others in CASES:
        is_profiled = (model, label) in PROFILED and is_cuda(device)
        for program in (CHORUS, *others):
            yield _name(model, label, program), partial(one_case, model, label, settings, program, device, is_profiled)


def real_steps(device: str) -> Iterator[Case]:
    for model, label, settings, others in REAL_CASES:
        for program in (CHORUS, *others):
            yield _name(model, label, program), partial(one_case, model, label, settings, program, device, True)


def _name(model: str, label: str, program: str) -> str:
    return f"{model} | {label} | {program}"


def one_case(
    model: str, label: str, settings: tuple[str, ...], program: str, device: str, is_profiled: bool = False
) -> dict[str, Any]:
    """The measurements of a program. is_profiled: with its kernels and operators, of Chorus."""
    if program == CHORUS:
        return chorus(model, label, settings, device, is_profiled)
    batch_size = int(dict(each.split("=") for each in settings).get("batch_size", "1"))
    loop = HandLoop(model, device, RANK, batch_size, CHECKPOINTS in settings, program == AS_SCRIPT)
    watch = StepWatch(device)
    for number in range(1, watch.last_step + 1):
        loop.step()
        watch.after_step(number)
    return {"batch_size": batch_size, **watch.values()}


def chorus(model: str, label: str, settings: tuple[str, ...], device: str, is_profiled: bool = False) -> dict[str, Any]:
    """A run of Chorus; after the steps that are timed, those that are profiled."""
    import torch

    from modules.distributed.Runtime import Runtime
    from modules.machine.memory_estimate import estimate_memory
    from modules.session.TrainCommands import TrainCommands
    from modules.trainer.Action import Action
    from modules.trainer.GenericTrainer import GenericTrainer
    from modules.trainer.Trigger import Trigger
    from tests.support.Recorder import Recorder

    if NF4 in settings and not find_spec("bitsandbytes"):
        raise NotHere("needs the package bitsandbytes")
    watch, told = StepWatch(device), Recorder()
    profile = StepProfile(watch.last_step, device, COMPILED not in settings) if is_profiled else None
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
    if is_profiled and (estimate := estimate_memory(config)) is not None:
        found["estimated_gib"] = round(estimate.peak / 2**30, 2)
    is_right = all(loss is not None for loss in told.losses) and not any("finite" in text for text in told.warnings)
    return {"ok": is_right, **found, "start_seconds": round(started, 1), "first_step_seconds": round(first, 2)}


def _config(model: str, label: str, settings: tuple[str, ...], device: str, num_steps: int) -> Any:
    folder = work_folder()
    settings = tuple(_number_of_blocks(each, model, device) for each in settings)
    is_video = model == WAN
    side = min(VIDEO_SIZE if is_cuda(device) else TINY_SIZE) if is_video else side_of(device)
    values = {
        "family": family_of(model),
        "workspace_dir": str(folder / "speed" / f"{model} {label}"),
        "cache_dir": str(folder / f"cache of {model}"),
        "model": {"base": str(model_folder(model, device))},
        "concepts": [{"path": str((noise_videos if is_video else noise_pictures)(device))}],
        "data": {"resolution": side, **({"frames": frames_of(device)} if is_video else {})},
        "output": {"format": "diffusers"},
        "max_steps": num_steps,
        "tensorboard": False,
    }
    return config_from_values(apply_overrides(values, (*COMMON, *settings)))


def _number_of_blocks(setting: str, model: str, device: str) -> str:
    count = NUM_BLOCKS.get(model, 1) if is_cuda(device) else 2
    if not setting.startswith("model.blocks_to_swap"):
        return setting
    return setting.replace("=all", f"={count - 1}").replace("=half", f"={count // 2}")


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
    """Sums up the kernels of some steps, and counts the operations and operators of one more.

    On the CPU the operators take the place of kernels, as a rehearsal. counts: not where steps are compiled, whose
    operators PyTorch does not show one by one.
    """

    def __init__(self, begins_after: int, device: str, counts: bool):
        import torch

        self._begins_after, self._is_cuda, self._counts = begins_after, is_cuda(device), counts
        self.last_step = begins_after + PROFILED_STEPS + 1
        kinds = torch.profiler.ProfilerActivity
        self._profiler = torch.profiler.profile(activities=[kinds.CUDA if self._is_cuda else kinds.CPU])
        self._number, self._flops, self._operators = 0, 0, 0

    def around(self, train_step: Callable[[Any], None]) -> Callable[[Any], None]:
        """The step of a run, profiled when it is its turn."""

        def profiled_step(step: Any) -> None:
            self._number += 1
            if self._number == self._begins_after + 1:
                self._drain()
                self._profiler.start()
            if self._number == self.last_step and self._counts:
                self._count(train_step, step)
            else:
                train_step(step)
            if self._number == self.last_step - 1:
                self._drain()
                self._profiler.stop()

        return profiled_step

    def _drain(self) -> None:
        import torch

        if self._is_cuda:
            torch.cuda.synchronize()

    def _count(self, train_step: Callable[[Any], None], step: Any) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.flop_counter import FlopCounterMode

        profile = self

        class Operators(TorchDispatchMode):
            """Counts what is no view, since most of it launches a kernel."""

            def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                profile._operators += not function.is_view
                return function(*args, **(kwargs or {}))

        with FlopCounterMode(display=False) as counter, Operators():
            train_step(step)
        self._flops = counter.get_total_flops()

    def values(self) -> dict[str, Any]:
        events = self._profiler.key_averages()
        kernels = {each.key[:60]: self._microseconds(each) / 1e6 / PROFILED_STEPS for each in events}
        top = dict(sorted(kernels.items(), key=lambda pair: -pair[1])[:12])
        counted = {"flops": self._flops, "operators": self._operators} if self._counts else {}
        return {
            "kernel_seconds": round(sum(kernels.values()), 4),
            "kernel_count": sum(each.count for each in events) // PROFILED_STEPS,
            "top_kernels": {name: round(value, 4) for name, value in top.items()},
            **counted,
        }

    def _microseconds(self, event: Any) -> float:
        return event.self_device_time_total if self._is_cuda else event.self_cpu_time_total


def drained(device: str) -> float:
    """The time once the device has done all its work."""
    if is_cuda(device):
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()
