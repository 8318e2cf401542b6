"""The facts about the optimizers, for settings, estimates and trainer, without importing any of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from modules.config.library_optimizers import LIBRARY_OPTIMIZERS, read_arguments

if TYPE_CHECKING:
    from modules.config.OptimizerConfig import OptimizerConfig


@dataclass(frozen=True)
class OptimizerFacts:
    """One optimizer.

    name: as in settings files. label: as shown to users.
    maker: the class, with its module. package: the pip package that contains it; empty for PyTorch.
    settings: the settings of OptimizerConfig that only some optimizers use and that this one uses.
    arguments: the arguments of the class beside parameters, learning rates and weight decay.
    states: values of optimizer state per trained weight, in the weight's precision. state_bytes: further bytes.
    factors: whether it has a state for the rows and columns of matrices only, which is no less for kernels of 3 x 3.
    steps_in_place: whether a step needs no temporary memory of the gradients' size.
    largest_rate: learning rates from here on are probably a mistake.
    finds_own_step: whether it adapts the step size itself. The learning rate is then near 1, the same for all parts,
    and is not scaled with the batch size.
    averages_weights: whether it averages weights itself, so that it needs neither EMA nor a schedule.
    needs_warmup: whether its first steps are too large without a warmup.
    rounds: whether it can update a part of the weights at a time, as stochastic rounding requires.
    takes_float64: whether weights may be in float64. takes_channels_last: whether they may be in any memory format.
    splits: whether it has to be told which weights are matrices, and trains all others with its argument adamw_lr.
    makes_momentum_late: whether it creates its momentum in the first step, so that a skipped step leaves it without.
    steps_alone: whether its state is of each weight matrix alone, so that they can be stepped one after the other.
    shards: whether it works on weights of which each rank has a part. Not if it looks at whole matrices or at all
    weights together, or if its state depends on how the weights are laid out.
    divides: whether it updates each parameter by itself, so that each rank can update some of them (ZeRO stage 1).
    """

    name: str
    label: str
    maker: str
    arguments: Callable[[OptimizerConfig], dict[str, Any]]
    settings: tuple[str, ...]
    package: str = ""
    states: int = 0
    factors: bool = False
    state_bytes: int = 0
    steps_in_place: bool = False
    largest_rate: float = 0.1
    finds_own_step: bool = False
    averages_weights: bool = False
    needs_warmup: bool = False
    rounds: bool = True
    takes_float64: bool = True
    takes_channels_last: bool = True
    splits: bool = False
    makes_momentum_late: bool = False
    steps_alone: bool = False
    shards: bool = False
    divides: bool = False


def _betas(config: OptimizerConfig) -> tuple[float, float]:
    return config.beta1, config.beta2


ADAM = ("beta1", "beta2", "eps")

OPTIMIZERS: dict[str, OptimizerFacts] = {
    facts.name: facts
    for facts in (
        # Loshchilov & Hutter 2019, arXiv 1711.05101
        OptimizerFacts(
            name="adamw",
            label="AdamW",
            maker="torch.optim.AdamW",
            arguments=lambda config: {"betas": _betas(config), "eps": config.eps, "fused": True},
            settings=ADAM,
            states=2,
            steps_in_place=True,
            shards=True,
            divides=True,
            steps_alone=True,
        ),
        # Dettmers et al. 2022, arXiv 2110.02861
        OptimizerFacts(
            name="adamw_8bit",
            label="AdamW, 8-bit",
            maker="bitsandbytes.optim.AdamW8bit",
            package="bitsandbytes",
            arguments=lambda config: {"betas": _betas(config), "eps": config.eps},
            settings=ADAM,
            state_bytes=2,
            steps_in_place=True,
            rounds=False,
            takes_float64=False,
            takes_channels_last=False,
            divides=True,
            steps_alone=True,
        ),
        # Defazio et al. 2024, arXiv 2405.15682. Its average is weighted by the squared learning rates, so that our
        # warmup has the same effect as its own.
        OptimizerFacts(
            name="schedule_free",
            label="AdamW, schedule-free",
            maker="schedulefree.AdamWScheduleFree",
            package="schedulefree",
            arguments=lambda config: {"betas": _betas(config), "eps": config.eps, "r": config.schedule_free_power},
            settings=(*ADAM, "schedule_free_power"),
            states=2,
            averages_weights=True,
            shards=True,
        ),
        # Chen et al. 2023, arXiv 2302.06675
        OptimizerFacts(
            name="lion",
            label="Lion",
            maker="pytorch_optimizer.Lion",
            package="pytorch-optimizer",
            arguments=lambda config: {"betas": _betas(config)},
            settings=("beta1", "beta2"),
            states=1,
            shards=True,
            divides=True,
        ),
        OptimizerFacts(
            name="lion_8bit",
            label="Lion, 8-bit",
            maker="bitsandbytes.optim.Lion8bit",
            package="bitsandbytes",
            arguments=lambda config: {"betas": _betas(config)},
            settings=("beta1", "beta2"),
            state_bytes=1,
            steps_in_place=True,
            rounds=False,
            takes_float64=False,
            takes_channels_last=False,
            divides=True,
            steps_alone=True,
        ),
        # Shazeer & Stern 2018, arXiv 1804.04235. torch multiplies the learning rate by the larger of eps[1] and the
        # weights' root mean square, which is almost 0 for adapters and zero-initialized blocks. With eps[1] = 1 the
        # learning rate is the step size, as for AdamW; with the paper's 1e-3 it is relative to the weights. As torch
        # limits it to 1 / sqrt(step), a learning rate of 0.01 is then the paper's relative step.
        OptimizerFacts(
            name="adafactor",
            label="Adafactor",
            maker="torch.optim.Adafactor",
            arguments=lambda config: {
                "eps": (None, 1e-3 if config.adafactor_scale_parameter else 1.0),
                "beta2_decay": config.adafactor_beta2_decay,
                "d": config.adafactor_clip_threshold,
            },
            settings=("adafactor_beta2_decay", "adafactor_clip_threshold", "adafactor_scale_parameter"),
            factors=True,
            divides=True,
            steps_alone=True,
        ),
        # Luo et al. 2023, arXiv 2307.02047
        OptimizerFacts(
            name="came",
            label="CAME",
            maker="pytorch_optimizer.CAME",
            package="pytorch-optimizer",
            arguments=lambda config: {
                "betas": (*_betas(config), config.came_beta3),
                "clip_threshold": config.came_clip_threshold,
            },
            settings=("beta1", "beta2", "came_beta3", "came_clip_threshold"),
            states=1,
            needs_warmup=True,
            divides=True,
        ),
        # Pagliardini et al. 2024, arXiv 2409.03137
        OptimizerFacts(
            name="ademamix",
            label="AdEMAMix",
            maker="pytorch_optimizer.AdEMAMix",
            package="pytorch-optimizer",
            arguments=lambda config: {
                "betas": (*_betas(config), config.ademamix_beta3),
                "eps": config.eps,
                "alpha": config.ademamix_alpha,
                "t_alpha_beta3": config.ademamix_warmup or None,
                "weight_decouple": True,
            },
            settings=(*ADAM, "ademamix_beta3", "ademamix_alpha", "ademamix_warmup"),
            states=3,
            shards=True,
            divides=True,
        ),
        # Mishchenko & Defazio 2023, arXiv 2306.06101
        OptimizerFacts(
            name="prodigy",
            label="Prodigy",
            maker="prodigyopt.Prodigy",
            package="prodigyopt",
            arguments=lambda config: {
                "betas": _betas(config),
                "eps": config.eps,
                "d_coef": config.prodigy_d_coef,
                "use_bias_correction": True,
                "safeguard_warmup": True,
            },
            settings=(*ADAM, "prodigy_d_coef"),
            states=4,
            largest_rate=math.inf,
            finds_own_step=True,
            rounds=False,
        ),
        # Momentum as in Sutskever et al. 2013; weight decay is added to the gradient.
        OptimizerFacts(
            name="sgd",
            label="SGD",
            maker="torch.optim.SGD",
            arguments=lambda config: {
                "momentum": config.sgd_momentum,
                "nesterov": config.sgd_nesterov,
                "fused": True,
            },
            settings=("sgd_momentum", "sgd_nesterov"),
            states=1,
            steps_in_place=True,
            largest_rate=math.inf,
            makes_momentum_late=True,
            divides=True,
            steps_alone=True,
        ),
        # any of LIBRARY_OPTIMIZERS; `facts_of_optimizer` has what depends on which
        OptimizerFacts(
            name="other",
            label="Other, by name",
            maker="pytorch_optimizer.",
            package="pytorch-optimizer",
            arguments=lambda config: read_arguments(config.other_arguments),
            settings=("other_name", "other_arguments"),
            largest_rate=math.inf,
            rounds=False,
            takes_channels_last=False,
        ),
    )
}
"""By name, in the order in which they are offered."""


def facts_of_optimizer(config: OptimizerConfig) -> OptimizerFacts:
    """The facts of the chosen optimizer. OPTIMIZERS[config.name] knows nothing of `other_name`."""
    facts = OPTIMIZERS[config.name]
    if facts.name != "other":
        return facts
    chosen = LIBRARY_OPTIMIZERS[config.other_name]
    return replace(
        facts,
        label=config.other_name,
        maker=facts.maker + config.other_name,
        states=chosen.states,
        finds_own_step=chosen.finds_own_step,
        splits=chosen.splits,
        takes_float64=chosen.takes_float64,
    )


def optimizers_that(is_meant: Callable[[OptimizerFacts], bool]) -> list[str]:
    """The names of the optimizers that satisfy a condition, for the `visible_when` of a setting."""
    return [facts.name for facts in OPTIMIZERS.values() if is_meant(facts)]


def optimizers_with(setting: str) -> dict[str, list[str]]:
    """The `visible_when` of a setting beside `optimizer.name` that only some optimizers use."""
    return {".name": optimizers_that(lambda facts: setting in facts.settings)}
