from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.library_optimizers import LIBRARY_OPTIMIZERS
from modules.config.methods import methods_that
from modules.config.optimizers import OPTIMIZERS, optimizers_that, optimizers_with
from modules.config.setting import STRICT, Float, Int, setting


@dataclass(config=STRICT)
class OptimizerConfig:
    """The optimizer and its hyperparameters."""

    name: Literal[tuple(OPTIMIZERS)] = setting(  # type: ignore[valid-type] # the names are those of the table
        next(iter(OPTIMIZERS)),
        label="Optimizer",
        help="AdamW suits most runs. Adafactor, CAME (with a warm-up) and the 8-bit optimizers need less memory, "
        "Prodigy finds its own step size, and schedule-free AdamW needs no schedule. Other: about 80 more, such as "
        "Muon, Adan, ADOPT, and Adam with D-Adaptation.",
        group="optimizer",
        in_crash_report=True,
        choice_labels={facts.name: facts.label for facts in OPTIMIZERS.values()},
    )
    other_name: Literal[tuple(sorted(LIBRARY_OPTIMIZERS, key=str.lower))] = setting(  # type: ignore[valid-type]
        "Muon",
        label="Other optimizer",
        also_called="optimizer_type",
        help="A class of the package pytorch-optimizer. Its documentation describes each one.",
        group="optimizer",
        in_crash_report=True,
        visible_when=optimizers_with("other_name"),
    )
    other_arguments: str = setting(
        "",
        label="Arguments",
        help="Arguments for this class, such as: momentum=0.9, nesterov=False. Others keep the package's defaults; "
        "learning rate and weight decay are set below.",
        group="optimizer",
        visible_when=optimizers_with("other_name"),
    )
    learning_rate: Float = setting(
        1e-4,
        label="Learning rate",
        also_called="lr",
        help="Step size. 1e-4 for LoRA, 1e-5 or less for a full fine-tune; a third of that for Lion, 1.0 for Prodigy, "
        "a hundred times more for SGD.",
        group="optimizer",
        gt=0,
        le=1000,
    )
    beta1: Float = setting(
        0.9,
        label="Beta 1",
        help="Decay of the running mean of the gradients (first moment). 0.9 is almost always good.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when=optimizers_with("beta1"),
    )
    beta2: Float = setting(
        0.999,
        label="Beta 2",
        help="Decay of the running mean of the squared gradients (second moment). 0.999 is usual; 0.99 forgets faster "
        "and is the published value for Lion.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when=optimizers_with("beta2"),
    )
    eps: Float = setting(
        1e-8,
        label="Epsilon",
        help="Added to the denominator to keep the division finite. 1e-8 is usual; larger values dampen updates of "
        "weights with small gradients.",
        group="optimizer",
        gt=0,
        le=1,
        importance="advanced",
        visible_when=optimizers_with("eps"),
    )
    weight_decay: Float = setting(
        0.01,
        label="Weight decay",
        also_called="decay",
        help="Pulls weights toward zero in every step, against overfitting. 0: none.",
        group="optimizer",
        ge=0,
        le=1000,
        importance="advanced",
    )
    max_grad_norm: Float = setting(
        1.0,
        label="Gradient clipping",
        also_called="gradient_clipping",
        help="Scale gradients down to this norm if theirs is larger. 1 is usual; 0: no clipping.",
        group="optimizer",
        ge=0,
        importance="advanced",
    )
    adafactor_beta2_decay: Float = setting(
        -0.8,
        label="Adafactor: decay exponent",
        help="Exponent of the decay of squared gradients at each step: 1 - step ^ value. -0.8 is the published value.",
        group="optimizer",
        lt=0,
        importance="advanced",
        visible_when=optimizers_with("adafactor_beta2_decay"),
    )
    adafactor_clip_threshold: Float = setting(
        1.0,
        label="Adafactor: clip threshold",
        help="Updates with a larger root mean square than this are scaled down to it. 1 is the published value.",
        group="optimizer",
        gt=0,
        le=1_000_000,
        importance="advanced",
        visible_when=optimizers_with("adafactor_clip_threshold"),
    )
    adafactor_scale_parameter: bool = setting(
        False,
        label="Adafactor: relative to the weights",
        also_called="warmup_init",
        help="Multiply the learning rate by the root mean square of each weight matrix (at least 0.001), as "
        "published. With a learning rate of 0.01 this is the relative step of other trainers; with schedule.warmup "
        "10000 it includes their warmup_init.",
        group="optimizer",
        importance="advanced",
        visible_when=optimizers_with("adafactor_scale_parameter"),
    )
    prodigy_d_coef: Float = setting(
        1.0,
        label="Prodigy: step coefficient",
        help="Multiplies the step size that Prodigy finds. 1 is normal; 0.5 is more careful, 2 bolder.",
        group="optimizer",
        gt=0,
        le=1_000_000,
        importance="advanced",
        visible_when=optimizers_with("prodigy_d_coef"),
    )
    ademamix_beta3: Float = setting(
        0.9999,
        label="AdEMAMix: beta 3",
        help="Decay of the second, slow mean of the gradients. 0.9999 is the published value, for long runs; 0.999 "
        "suits runs of a few thousand steps.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when=optimizers_with("ademamix_beta3"),
    )
    ademamix_alpha: Float = setting(
        5.0,
        label="AdEMAMix: alpha",
        help="Weight of the slow mean relative to the fast one. 5 to 10 is usual; 0 is AdamW.",
        group="optimizer",
        ge=0,
        le=1_000_000,
        importance="advanced",
        visible_when=optimizers_with("ademamix_alpha"),
    )
    ademamix_warmup: Int = setting(
        0,
        label="AdEMAMix: warm-up",
        also_called="t_alpha, t_beta3",
        help="Number of steps in which alpha rises from 0 and beta 3 from beta 1 to their values. The published value "
        "is the length of the run; 0: no warm-up.",
        group="optimizer",
        unit="steps",
        ge=0,
        importance="advanced",
        visible_when=optimizers_with("ademamix_warmup"),
    )
    came_beta3: Float = setting(
        0.9999,
        label="CAME: beta 3",
        help="Decay of the update instability, which CAME uses as confidence. 0.9999 is the published value.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when=optimizers_with("came_beta3"),
    )
    came_clip_threshold: Float = setting(
        1.0,
        label="CAME: clip threshold",
        help="Updates with a larger root mean square than this are scaled down to it. 1 is the published value.",
        group="optimizer",
        gt=0,
        le=1_000_000,
        importance="advanced",
        visible_when=optimizers_with("came_clip_threshold"),
    )
    schedule_free_power: Float = setting(
        0.0,
        label="Schedule-free: power",
        help="Weight of later steps in the average: step ^ value. 0 weights all steps alike.",
        group="optimizer",
        ge=0,
        le=1000,
        importance="advanced",
        visible_when=optimizers_with("schedule_free_power"),
    )
    sgd_momentum: Float = setting(
        0.9,
        label="SGD: momentum",
        help="Fraction of the previous step that is repeated. 0.9 is usual; 0: none.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when=optimizers_with("sgd_momentum"),
    )
    sgd_nesterov: bool = setting(
        False,
        label="SGD: Nesterov",
        help="Look ahead along the momentum before each step. Needs a momentum above 0.",
        group="optimizer",
        importance="advanced",
        visible_when=optimizers_with("sgd_nesterov"),
    )
    stochastic_rounding: bool = setting(
        False,
        label="Stochastic rounding",
        help="Round bfloat16 weights up or down at random after each step, so small updates add up instead of being "
        "lost. Trains a bfloat16 model with half the memory for its weights.",
        group="optimizer",
        importance="advanced",
        visible_when={
            "model.weight_dtype": ["bfloat16"],
            "method": methods_that(lambda method: method.trains_weights),
            ".name": optimizers_that(lambda facts: facts.rounds),
        },
    )
    fused_backward: bool = setting(
        False,
        label="Fused backward pass",
        also_called="optimizer in backward, vram",
        help="Update each weight matrix during the backward pass and free its gradient immediately, which saves the "
        "memory of the gradients and doesn't change the result. Without gradient clipping and accumulation, on one "
        "GPU.",
        group="optimizer",
        in_crash_report=True,
        importance="advanced",
        visible_when={
            "method": methods_that(lambda method: method.trains_weights),
            ".name": optimizers_that(lambda facts: facts.steps_alone),
        },
    )
    state_in_ram: bool = setting(
        False,
        label="State in system memory",
        also_called="cpu_offload_optimizer, offload_optimizer, CPUOffloadOptimizer, paged optimizer, vram",
        help="Keep the optimizer's state in system memory and copy it to the GPU and back in each step, which saves "
        "GPU memory, slows steps down and doesn't change the result.",
        group="optimizer",
        in_crash_report=True,
        importance="advanced",
        visible_when={".name": optimizers_that(lambda facts: facts.steps_alone)},
    )
