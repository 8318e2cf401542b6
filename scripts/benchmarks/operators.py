"""Counts the operators that a step of LoRA asks a GPU for: models of published size, without weights and without a GPU.

Most operators are one launch of a kernel. Views and allocations, which are none, do not count, nor does attention,
which is alike on both sides. Where the host is slower than the GPU, their number sets the time of a step.

    python -m scripts.benchmarks.operators sdxl hand      # one JSON object: kind -> number

Each program needs a process of its own, because a device in Python is for good.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from scripts.benchmarks.results import MET, MISSED, Target

MODELS = {"sdxl": 0.70, "flux1": 0.88}  # model -> the ratio at most
CHORUS, BY_HAND = "chorus", "hand"
RANK = 16
SETTINGS = (
    "method=lora",
    "batch_size=1",
    "model.mixed_precision=bf16",
    "model.weight_dtype=bfloat16",
    "model.gradient_checkpointing=true",
    f"lora.rank={RANK}",
    f"lora.alpha={RANK}",
    "optimizer.name=adamw",
    "data.resolution=1024",
)
KINDS = {
    "_to_copy": "casts",
    "_foreach_copy_": "casts",
    "mm": "products",
    "addmm": "products",
    "addmm_": "products",
    "add": "additions",
    "add_": "additions",
    "mul": "multiplications",
    "mul_": "multiplications",
}
_NO_LAUNCHES = {"detach", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_NO_LAUNCHES |= {"_unsafe_view", "_reshape_alias", "lift_fresh", "_local_scalar_dense"}
_NO_LAUNCHES |= {"_has_compatible_shallow_copy_type"}


@dataclass(frozen=True)
class Operators:
    """Of a step of both programs, by kind."""

    model: str
    chorus: dict[str, int]
    by_hand: dict[str, int]

    @property
    def ratio(self) -> float:
        return sum(self.chorus.values()) / sum(self.by_hand.values())

    def as_values(self) -> dict[str, Any]:
        return {"model": self.model, "ratio": self.ratio, CHORUS: self.chorus, BY_HAND: self.by_hand}

    def row(self) -> tuple[str, ...]:
        target = Target(MODELS[self.model])
        is_met = self.ratio <= target.ratio
        return (f"operators of a step, {self.model}", f"{self.ratio:.3f}", "", str(target), MET if is_met else MISSED)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {self.chorus[kind]:,} ({count:,})" for kind, count in self.by_hand.items())
        totals = f"{sum(self.chorus.values()):,} operators (by hand {sum(self.by_hand.values()):,})"
        return f"{self.model}: {self.ratio:.2f}; {totals}: {kinds}"


def compare_operators() -> Iterator[Operators]:
    for model in MODELS:
        yield Operators(model, _counted_apart(model, CHORUS), _counted_apart(model, BY_HAND))


def _counted_apart(model: str, program: str) -> dict[str, int]:
    command = [sys.executable, "-m", "scripts.benchmarks.operators", model, program]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def count_operators(model: str, program: str) -> dict[str, int]:
    """Kind -> how many operators of it the second step asks for; the first one makes the optimizer's state."""
    from modules.config.files import apply_overrides, config_from_values
    from modules.config.presets import load_preset
    from scripts import simulated_gpu
    from scripts.simulated_model import with_stand_ins

    config = config_from_values(apply_overrides(load_preset(f"{model}-lora"), SETTINGS))
    counts: Counter[str] = Counter()
    run = simulated_gpu._run

    def counted(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        name = function._schema.name.removeprefix("aten::")
        if not function.is_view and name not in _NO_LAUNCHES:
            counts[KINDS.get(name, "others")] += 1
        return run(function, args, kwargs)

    with with_stand_ins(), mock.patch.object(simulated_gpu, "_run", counted):
        step = (_chorus if program == CHORUS else _by_hand)(config)
        step()
        counts.clear()
        step()
    return {kind: counts[kind] for kind in dict.fromkeys([*KINDS.values(), "others"])}


def _chorus(config: Any) -> Callable[[], None]:
    from types import SimpleNamespace

    from modules.distributed.Runtime import Runtime
    from modules.methods.parts import trained_in
    from modules.trainer.attach_method import attach_method
    from modules.trainer.GenericTrainer import GenericTrainer
    from modules.trainer.Step import Step
    from scripts.simulated_gpu import GPU
    from scripts.simulated_model import make_base, make_batch

    base, trainer = make_base(config), GenericTrainer(config, runtime=Runtime(GPU))
    parts = trained_in(trainer.method, base, config)
    attach_method(config, trainer.method, base, parts)
    run: Any = SimpleNamespace(base=base, parts=parts, loss=trainer.method.loss(base, config), total_steps=100)
    run.steps_until, run.learning_rate_factor = (lambda epochs: 100), 1.0
    loop, batch = trainer._make_loop(run), make_batch(config, base)

    def step() -> None:
        with mock.patch.object(loop, "_read_late"):  # there are no values to read
            loop.train_step(Step([batch]))

    return step


def _by_hand(config: Any) -> Callable[[], None]:
    import torch
    from peft import LoraConfig

    from modules.families.Family import DenoiserCall
    from modules.methods.lora import target_modules
    from scripts.simulated_gpu import GPU
    from scripts.simulated_model import largest_side, make_base, make_inputs

    base = make_base(config)
    family = base.family
    base.require(*family.denoisers)
    model: Any = base.module(family.denoisers[0])
    model.requires_grad_(False)
    targets = target_modules(family, family.denoisers[0], model, config.lora.targets)  # the same layers
    model.add_adapter(LoraConfig(r=RANK, lora_alpha=RANK, init_lora_weights="gaussian", target_modules=targets))
    params = [param for param in model.parameters() if param.requires_grad]
    for param in params:
        param.data = param.data.float()
    model.enable_gradient_checkpointing()
    model.train()
    optimizer = torch.optim.AdamW(params, lr=1e-4, fused=True)
    side = largest_side(config, family)
    inputs = make_inputs(base, 1, side, side, 1)
    latents, shape = inputs["noised"], tuple(inputs["noised"].shape)

    def step() -> None:
        noise, amount = torch.randn_like(latents), (inputs["timestep"] / 1000).view(-1, 1, 1, 1)
        noised = family.pack(((1 - amount) * latents + amount * noise).to(torch.bfloat16))
        guidance = torch.ones(1, device=GPU)
        call = DenoiserCall(model, noised, inputs["timestep"], inputs["text"], shape, inputs["given"], guidance)
        with torch.autocast(GPU.type, torch.bfloat16):
            prediction = model(**family.inputs(call), return_dict=False)[0]
        torch.nn.functional.mse_loss(prediction.float(), family.pack(noise).float()).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


if __name__ == "__main__":
    print(json.dumps(count_operators(*sys.argv[1:])))
