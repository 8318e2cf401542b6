"""Rules of the optimizer, its learning rates and their schedule."""

from collections.abc import Iterator

from modules.config.methods import facts_of
from modules.config.optimizers import OPTIMIZERS, facts_of_optimizer, optimizers_that
from modules.config.problems import Problem, Remedy, either, set_to, switch_off
from modules.config.rates import rate_of
from modules.config.rules.ranks import known_num_ranks
from modules.config.rules.trained_parts import part_names
from modules.config.schedule_pieces import read_pieces
from modules.config.TrainConfig import TrainConfig


def rate_problems(config: TrainConfig) -> Iterator[Problem]:
    optimizer = config.optimizer
    facts = facts_of_optimizer(optimizer)
    rates = {"optimizer.learning_rate": optimizer.learning_rate}
    for part in part_names(config):
        settings = getattr(config, part)
        if settings.train and settings.learning_rate is not None:
            rates[f"{part}.learning_rate"] = settings.learning_rate
    if part_names(config) and config.text_encoder.train and config.text_encoder.learning_rates:
        rates["text_encoder.learning_rates"] = max(config.text_encoder.learning_rates)
    for path, rate in rates.items():
        if facts.finds_own_step and rate < 0.1:
            message = f"{path} {rate:g} is small for {facts.label}, which finds its own step: use 1.0."
            yield Problem(path, message, blocking=False, remedy=set_to(path, 1.0))
        if rate >= facts.largest_rate:
            message = f"{path} {rate:g} is very large for {optimizer.name}: use 1e-4 for a LoRA, 1e-5 to fine-tune."
            yield Problem(path, message, blocking=False)
    if "beta2" in facts.settings and optimizer.beta1 > optimizer.beta2:
        message = f"optimizer.beta1 {optimizer.beta1:g} is above beta2 {optimizer.beta2:g}: use 0.9 and 0.999."
        usual = Remedy("Set to 0.9 and 0.999", {"optimizer.beta1": 0.9, "optimizer.beta2": 0.999})
        yield Problem("optimizer.beta1", message, blocking=False, remedy=usual)


def own_step_problems(config: TrainConfig) -> Iterator[Problem]:
    facts = facts_of_optimizer(config.optimizer)
    trained = {name: getattr(config, name) for name in part_names(config) if getattr(config, name).train}
    rates = {name: rate_of(part, config) for name, part in trained.items()}
    if facts.finds_own_step and len(set(rates.values())) > 1:
        name = next(name for name, part in trained.items() if part.learning_rate is not None)
        path = f"{name}.learning_rate"
        message = f"{path} {rates[name]:g}: {facts.label} finds one step for all parts together; leave it empty."
        parts = {f"{part}.learning_rate": None for part in trained}
        yield Problem(path, message, remedy=Remedy("Leave empty", parts))
    if facts.finds_own_step and "text_encoder" in trained and config.text_encoder.learning_rates:
        path = "text_encoder.learning_rates"
        message = f"{path}: {facts.label} finds one step for all parts together; leave it empty."
        yield Problem(path, message, remedy=Remedy("Leave empty", {path: []}))


def option_problems(config: TrainConfig) -> Iterator[Problem]:
    optimizer = config.optimizer
    facts = facts_of_optimizer(optimizer)
    if facts.averages_weights:
        yield from _averaging_problems(config)
    if facts.needs_warmup and config.schedule.warmup == 0:
        message = (
            f"schedule.warmup 0 with optimizer.name {facts.name}: its first steps are far too large; use 0.05 or more."
        )
        yield Problem("schedule.warmup", message, blocking=False, remedy=set_to("schedule.warmup", 0.05))
    if "sgd_nesterov" in facts.settings and optimizer.sgd_nesterov and optimizer.sgd_momentum == 0:
        message = "optimizer.sgd_nesterov with sgd_momentum 0: there is nothing to look ahead along; set it to 0.9."
        yield Problem("optimizer.sgd_momentum", message, remedy=set_to("optimizer.sgd_momentum", 0.9))
    if not facts.takes_float64 and config.model.weight_dtype == "float64":
        message = f"optimizer.name {optimizer.name} with model.weight_dtype float64: use float32, or adamw."
        yield Problem("optimizer.name", message)
    try:
        facts.arguments(optimizer)
    except ValueError as error:
        yield Problem("optimizer.other_arguments", f"optimizer.other_arguments {optimizer.other_arguments!r}: {error}.")
    if optimizer.stochastic_rounding and not facts.rounds:
        message = (
            f"optimizer.stochastic_rounding with optimizer.name {optimizer.name}: it can't step a part of the weights "
            "at a time; choose another optimizer, such as adamw or adafactor, or turn it off."
        )
        yield Problem("optimizer.stochastic_rounding", message)


def _averaging_problems(config: TrainConfig) -> Iterator[Problem]:
    name = config.optimizer.name
    if config.optimizer.beta1 == 0:
        message = f"optimizer.beta1 0 with {name}: its weights mix with their average by beta1; use 0.9."
        yield Problem("optimizer.beta1", message, remedy=set_to("optimizer.beta1", 0.9))
    if config.ema.enabled:
        message = f"ema.enabled with optimizer.name {name}: it averages by itself; turn ema.enabled off."
        yield Problem("ema.enabled", message, remedy=switch_off("ema.enabled"))
    if config.schedule.name != "constant":
        message = (
            f"schedule.name {config.schedule.name} with optimizer.name {name}: its average takes the place of "
            "a falling rate; use constant."
        )
        yield Problem("schedule.name", message, blocking=False, remedy=set_to("schedule.name", "constant"))


def rounding_problems(config: TrainConfig) -> Iterator[Problem]:
    of_weights = facts_of(config).trains_weights
    # float16 weights are handled by memory.precision_problems
    if config.optimizer.stochastic_rounding and (not of_weights or config.model.weight_dtype in ("float32", "float64")):
        dtype = config.model.weight_dtype if of_weights else "float32"
        message = (
            f"optimizer.stochastic_rounding has no effect: what method {config.method} trains is in {dtype} here, and "
            "it is for bfloat16; turn it off."
        )
        off = switch_off("optimizer.stochastic_rounding")
        yield Problem("optimizer.stochastic_rounding", message, blocking=False, remedy=off)


def fused_backward_problems(config: TrainConfig) -> Iterator[Problem]:
    """What can't be known or done while the gradients of a step come one after the other, or never are all there."""
    optimizer, path = config.optimizer, "optimizer.fused_backward"
    if not optimizer.fused_backward:
        return
    on, off = f"with {path}", switch_off(path)
    if not facts_of(config).trains_weights:
        message = f"{path} has no effect with method {config.method}, whose gradients are small; turn it off."
        yield Problem(path, message, blocking=False, remedy=off)
        return
    if not OPTIMIZERS[optimizer.name].steps_alone:
        able = optimizers_that(lambda facts: facts.steps_alone)
        message = f"optimizer.name {optimizer.name} {on}: it steps all weights together; use {either(able)}."
        yield Problem("optimizer.name", message)
    if optimizer.max_grad_norm:
        clip = "optimizer.max_grad_norm"
        message = f"{clip} {optimizer.max_grad_norm:g} {on}: no gradient is left when their norm is known; set it to 0."
        yield Problem(clip, message, remedy=set_to(clip, 0.0, "0"))
    if config.gradient_accumulation_steps > 1:
        steps = "gradient_accumulation_steps"
        count = config.gradient_accumulation_steps
        message = f"{steps} {count} {on}: gradients that add up have to be kept; set it to 1."
        yield Problem(steps, message, remedy=set_to(steps, 1))
    if config.model.mixed_precision == "fp16":
        message = f"model.mixed_precision fp16 {on}: steps that overflow can't be taken back; use bf16."
        yield Problem("model.mixed_precision", message, remedy=set_to("model.mixed_precision", "bf16"))
    if config.enable_multi_gpu and known_num_ranks(config) != 1:
        message = f"{path} with enable_multi_gpu: GPUs add up the gradients of whole steps; switch one of the two off."
        yield Problem(path, message, remedy=off)


def state_in_ram_problems(config: TrainConfig) -> Iterator[Problem]:
    name = config.optimizer.name
    if config.optimizer.state_in_ram and not OPTIMIZERS[name].steps_alone:
        able = either(optimizers_that(lambda facts: facts.steps_alone))
        message = f"optimizer.name {name} with optimizer.state_in_ram: it steps all weights together; use {able}."
        yield Problem("optimizer.name", message)


def schedule_problems(config: TrainConfig) -> Iterator[Problem]:
    warmup, decay = config.schedule.warmup, config.schedule.decay
    if config.schedule.name == "wsd" and decay > 1 and not decay.is_integer():
        message = f"schedule.decay {decay:g}: from 1 it counts optimizer steps; use a whole number, or less than 1."
        yield Problem("schedule.decay", message)
    if config.schedule.name == "piecewise":
        try:
            read_pieces(config.schedule.pieces)
        except ValueError as error:
            yield Problem("schedule.pieces", f"schedule.pieces: {error}.")
    if warmup < 1:
        return
    if not warmup.is_integer():
        message = f"schedule.warmup {warmup:g}: from 1 it counts optimizer steps; use a whole number, or less than 1."
        yield Problem("schedule.warmup", message)
    if config.max_steps is not None and warmup >= config.max_steps:
        message = (
            f"schedule.warmup {warmup:g} does not end within max_steps {config.max_steps}: "
            "use fewer steps, or a share such as 0.1."
        )
        yield Problem("schedule.warmup", message, blocking=False)
