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
        help="AdamW suits most runs. Adafactor, CAME (with a warm-up) and the 8-bit ones need less memory, Prodigy "
        "finds the size of its steps by itself, and the schedule-free AdamW needs no schedule. Other: some 80 more, "
        "such as Muon, Adan, ADOPT, and Adam with D-Adaptation.",
        group="optimizer",
        in_crash_report=True,
        choice_labels={facts.name: facts.label for facts in OPTIMIZERS.values()},
    )
    other_name: Literal[tuple(sorted(LIBRARY_OPTIMIZERS, key=str.lower))] = setting(  # type: ignore[valid-type]
        "Muon",
        label="Other optimizer",
        also_called="optimizer_type",
        help="A class of the package pytorch-optimizer. Its documentation says what each is good at.",
        group="optimizer",
        in_crash_report=True,
        visible_when=optimizers_with("other_name"),
    )
    other_arguments: str = setting(
        "",
        label="Arguments",
        also_called="optimizer_args",
        help="Arguments of this class, as in: momentum=0.9, nesterov=False. What is left out has the package's "
        "default; learning rate and weight decay are those below.",
        group="optimizer",
        visible_when=optimizers_with("other_name"),
    )
    learning_rate: Float = setting(
        1e-4,
        label="Learning rate",
        also_called="lr",
        help="Size of the steps. 1e-4 for LoRA, 1e-5 or less for a full fine-tune; a third of that for Lion, 1.0 for "
        "Prodigy, a hundred times more for SGD.",
        group="optimizer",
        gt=0,
        le=1000,
    )
    beta1: Float = setting(
        0.9,
        label="Beta 1",
        help="Memory of the running mean of the gradients. 0.9 is good almost always.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when=optimizers_with("beta1"),
    )
    beta2: Float = setting(
        0.999,
        label="Beta 2",
        help="Memory of the running mean of the squared gradients. 0.999 is usual; 0.99 forgets faster and is what "
        "Lion was published with.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when=optimizers_with("beta2"),
    )
    eps: Float = setting(
        1e-8,
        label="Epsilon",
        help="Keeps the division by the squared gradients' root finite. 1e-8; larger values damp rare weights.",
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
        help="Pulls weights toward zero at every step, against overfitting. 0 switches it off.",
        group="optimizer",
        ge=0,
        le=1000,
        importance="advanced",
    )
    max_grad_norm: Float = setting(
        1.0,
        label="Gradient clipping",
        also_called="clip_grad_norm, gradient_clipping",
        help="Gradients with a larger norm than this are shortened to it. 1 is usual, 0 switches it off.",
        group="optimizer",
        ge=0,
        importance="advanced",
    )
    adafactor_beta2_decay: Float = setting(
        -0.8,
        label="Adafactor: decay exponent",
        help="How the memory of squared gradients grows with the steps: 1 - step ^ value. -0.8 is the published value.",
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
        also_called="scale_parameter, relative_step, warmup_init",
        help="Multiply the learning rate by the root mean square of each weight matrix, at least 0.001, as published. "
        "With a learning rate of 0.01 this is the relative step of other trainers, and with schedule.warmup 10000 also "
        "their warmup_init.",
        group="optimizer",
        importance="advanced",
        visible_when=optimizers_with("adafactor_scale_parameter"),
    )
    prodigy_d_coef: Float = setting(
        1.0,
        label="Prodigy: step coefficient",
        help="Multiplies the step size that Prodigy finds. 1 is normal; 0.5 to 2 makes it more careful or bolder.",
        group="optimizer",
        gt=0,
        le=1_000_000,
        importance="advanced",
        visible_when=optimizers_with("prodigy_d_coef"),
    )
    ademamix_beta3: Float = setting(
        0.9999,
        label="AdEMAMix: beta 3",
        help="Memory of the second, slow mean of the gradients. 0.9999 is the published value, for long runs; 0.999 "
        "suits runs of some thousand steps.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when=optimizers_with("ademamix_beta3"),
    )
    ademamix_alpha: Float = setting(
        5.0,
        label="AdEMAMix: alpha",
        help="Weight of the slow mean beside the fast one. 5 to 10; with 0 it is AdamW.",
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
        help="Steps in which alpha and beta 3 grow from 0 and beta 1 to their values. The length of the run is the "
        "published value; 0 has both at once.",
        group="optimizer",
        unit="steps",
        ge=0,
        importance="advanced",
        visible_when=optimizers_with("ademamix_warmup"),
    )
    came_beta3: Float = setting(
        0.9999,
        label="CAME: beta 3",
        help="Memory of how far updates stray from their running mean, by which CAME trusts them. 0.9999 is the "
        "published value.",
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
        help="Late steps weigh more in the average, by step ^ value. 0 weighs all alike.",
        group="optimizer",
        ge=0,
        le=1000,
        importance="advanced",
        visible_when=optimizers_with("schedule_free_power"),
    )
    sgd_momentum: Float = setting(
        0.9,
        label="SGD: momentum",
        help="Fraction of the last step that is taken again. 0.9 is usual, 0 switches it off.",
        group="optimizer",
        ge=0,
        lt=1,
        importance="advanced",
        visible_when=optimizers_with("sgd_momentum"),
    )
    sgd_nesterov: bool = setting(
        False,
        label="SGD: Nesterov",
        help="Looks ahead along the momentum before each step. Needs a momentum above 0.",
        group="optimizer",
        importance="advanced",
        visible_when=optimizers_with("sgd_nesterov"),
    )
    stochastic_rounding: bool = setting(
        False,
        label="Stochastic rounding",
        help="Rounds bfloat16 weights up or down by chance after each step, so that small updates add up instead of "
        "being lost. Trains a bfloat16 model in half of the memory for its weights.",
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
        also_called="fused_backward_pass, fused_optimizer_groups, optimizer in backward, vram",
        help="Updates each weight matrix during the backward pass and frees its gradient at once: saves the memory of "
        "the gradients and changes no result. Without gradient clipping and accumulation, on one GPU.",
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
        help="Keeps the optimizer's running means in system memory and copies them to the GPU and back for each step: "
        "saves their memory on the GPU, slows steps down and changes no result.",
        group="optimizer",
        in_crash_report=True,
        importance="advanced",
        visible_when={".name": optimizers_that(lambda facts: facts.steps_alone)},
    )
