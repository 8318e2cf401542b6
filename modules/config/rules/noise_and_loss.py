"""Rules of noise and loss, which have a meaning only for methods that use the denoiser."""

from collections.abc import Iterator

from modules.config.families import families_with
from modules.config.methods import facts_of
from modules.config.problems import Problem, Remedy, set_to, switch_off
from modules.config.TrainConfig import TrainConfig

SNR_FAMILIES = families_with(objective="ddpm")  # with a signal-to-noise ratio; the others are flow models
SNR_WEIGHTS = ("min_snr_gamma", "debiased", "p2")
FLOW_WEIGHTS = ("sigma", "sigma_sqrt", "cosmap")


def noise_problems(config: TrainConfig) -> Iterator[Problem]:
    if not facts_of(config).uses_denoiser:
        return
    low, high = config.diffusion.min_timestep, config.diffusion.max_timestep
    if low >= high:
        message = f"diffusion.min_timestep {low}: must be below max_timestep ({high}); lower it or raise the other."
        yield Problem("diffusion.min_timestep", message)
    shift_by, timesteps = config.diffusion.shift_by, config.diffusion.timesteps
    if shift_by != "none" and timesteps in ("trained", "family"):
        message = (
            f"diffusion.shift_by {shift_by} has no effect with diffusion.timesteps {timesteps}, which decides the "
            "shift itself; set timesteps to logit_normal or uniform, or shift_by to none."
        )
        remedy = set_to("diffusion.shift_by", "none", "No shift")
        yield Problem("diffusion.shift_by", message, blocking=False, remedy=remedy)
    if config.diffusion.offset_noise_by_timestep:
        path, off = "diffusion.offset_noise_by_timestep", switch_off("diffusion.offset_noise_by_timestep")
        if config.family not in SNR_FAMILIES:
            message = f"{path}: {config.family} is a flow model, and its formula is for others; turn it off."
            yield Problem(path, message, remedy=off)
        elif config.model.zero_terminal_snr:
            message = f"{path} with model.zero_terminal_snr: only the last timestep would have any; switch one off."
            yield Problem(path, message, remedy=off)
        elif not config.diffusion.offset_noise:
            message = f"{path} has no effect with diffusion.offset_noise 0; set that to 0.02, or switch this off."
            yield Problem(path, message, blocking=False, remedy=set_to("diffusion.offset_noise", 0.02))
    for name in ("offset_noise_random", "offset_noise_adaptive"):
        if getattr(config.diffusion, name) and not config.diffusion.offset_noise:
            message = f"diffusion.{name} has no effect with diffusion.offset_noise 0; set that to 0.05, or reset this."
            remedy = set_to("diffusion.offset_noise", 0.05)
            yield Problem(f"diffusion.{name}", message, blocking=False, remedy=remedy)
    if not config.model.zero_terminal_snr:
        return
    if config.family not in SNR_FAMILIES:
        message = f"model.zero_terminal_snr: {config.family} is a flow model, which ends in noise alone; turn it off."
        yield Problem("model.zero_terminal_snr", message, remedy=switch_off("model.zero_terminal_snr"))
    elif config.model.prediction_type == "epsilon":
        message = (
            "model.zero_terminal_snr with prediction_type epsilon: where there is noise alone, epsilon says nothing of "
            "the image; set model.prediction_type to v_prediction."
        )
        use = Remedy("Predict v", {"model.prediction_type": "v_prediction"})
        yield Problem("model.zero_terminal_snr", message, remedy=use)


def loss_problems(config: TrainConfig) -> Iterator[Problem]:
    if not facts_of(config).uses_denoiser:
        return
    loss = config.loss
    if not (loss.mse or loss.mae or loss.huber or loss.smooth_l1 or loss.log_cosh):
        names = "loss.mse, loss.mae, loss.huber, loss.smooth_l1 and loss.log_cosh"
        message = f"{names} are all 0: nothing would be learned; set loss.mse to 1."
        yield Problem("loss.mse", message, remedy=set_to("loss.mse", 1.0, "1"))
    fitting = {"constant", *(SNR_WEIGHTS if config.family in SNR_FAMILIES else FLOW_WEIGHTS)}
    if loss.weighting not in fitting:
        message = f"loss.weighting {loss.weighting} is not for {config.family}: use {' or '.join(sorted(fitting))}."
        yield Problem("loss.weighting", message, remedy=set_to("loss.weighting", "constant"))
    if not facts_of(config).keeps_old_model:
        for name, is_on in (
            ("prior_by_frozen_model", loss.prior_by_frozen_model),
            ("masked_prior_preservation_weight", loss.masked_training and loss.masked_prior_preservation_weight),
            ("output_preservation", loss.output_preservation),
            ("blank_preservation", loss.blank_preservation),
        ):
            if is_on:
                message = f"loss.{name} with method {config.method}: only a LoRA keeps the old model; turn it off."
                yield Problem(f"loss.{name}", message)
    elif config.lora.start_from and _holds_to_the_base(config):
        message = (
            f"lora.start_from {config.lora.start_from!r} with prior preservation: what is preserved is the base "
            "without that LoRA, which unlearns part of it; start with a new LoRA to avoid this."
        )
        yield Problem("lora.start_from", message, blocking=False)
    elif loss.prior_by_frozen_model and not _has_priors(config):
        message = "loss.prior_by_frozen_model has no effect: mark a concept with regularization, or turn it off."
        yield Problem("loss.prior_by_frozen_model", message, blocking=False)
    if loss.output_preservation and facts_of(config).keeps_old_model:
        yield from _output_preservation_problems(config)


def mask_problems(config: TrainConfig) -> Iterator[Problem]:
    if not facts_of(config).uses_denoiser:
        return
    loss = config.loss
    for name in ("unmasked_probability", "unmasked_weight"):
        if loss.masked_training and getattr(loss, name) == 1:
            message = f"loss.{name} 1: masks have no effect; use 0.1, or switch loss.masked_training off."
            yield Problem(f"loss.{name}", message, blocking=False)


def _output_preservation_problems(config: TrainConfig) -> Iterator[Problem]:
    concepts = [(f"concepts.{i}", concept) for i, concept in enumerate(config.concepts) if concept.enabled]
    for path, concept in concepts:
        for given, missing in (("trigger_word", "class_word"), ("class_word", "trigger_word")):
            if getattr(concept, given).strip() and not getattr(concept, missing).strip():
                value = getattr(concept, given)
                message = f"{path}.{given} {value!r} needs {path}.{missing}: fill in both, or neither."
                yield Problem(f"{path}.{missing}", message)
    if concepts and not any(concept.trigger_word.strip() for _, concept in concepts):
        path = f"{concepts[0][0]}.trigger_word"
        message = f"{path} is empty: loss.output_preservation has no effect; fill it in, or switch that off."
        yield Problem(path, message, blocking=False)


def _holds_to_the_base(config: TrainConfig) -> bool:
    loss = config.loss
    outside_masks = loss.masked_training and loss.masked_prior_preservation_weight
    by_prompts = loss.output_preservation or loss.blank_preservation
    return bool(by_prompts or outside_masks or (loss.prior_by_frozen_model and _has_priors(config)))


def _has_priors(config: TrainConfig) -> bool:
    return any(concept.enabled and concept.regularisation for concept in config.concepts)
