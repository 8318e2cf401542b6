"""Checks of settings against each other, without disk, model or GPU.

The range of each setting is declared with it. Checks that depend on the model family (image sizes), on files or on the
machine are made where these are known.
"""

import re
from collections.abc import Iterator

from modules.config.clips import frame_problems
from modules.config.counted import counted
from modules.config.errors import ConfigError
from modules.config.families import families_with, load_families
from modules.config.image_sizes import size_problems
from modules.config.layer_ranks import read_layer_ranks
from modules.config.methods import METHODS, facts_of
from modules.config.optimizers import OPTIMIZERS, facts_of_optimizer, optimizers_that
from modules.config.problems import Problem, Remedy, set_to
from modules.config.schedule_pieces import read_pieces
from modules.config.show_value import show_value
from modules.config.TrainConfig import TrainConfig

SNR_FAMILIES = families_with(objective="ddpm")  # with a signal-to-noise ratio; the others are flow models
SNR_WEIGHTS = ("min_snr_gamma", "debiased", "p2")
DROPOUTS = ("dropout", "rank_dropout", "module_dropout")  # settings of LoraConfig
FLOW_WEIGHTS = ("sigma", "sigma_sqrt", "cosmap")


def find_problems(config: TrainConfig) -> list[Problem]:
    """The problems of the settings, blocking ones first."""
    checks = (
        _check_model,
        _check_family,
        _check_concepts,
        _check_references,
        _check_data,
        _check_sizes,
        _check_trained_parts,
        _check_embeddings,
        _check_precision,
        _check_quantization,
        _check_adapter,
        _check_block_swap,
        _check_noise,
        _check_loss,
        _check_without_effect,
        _check_optimizer,
        _check_own_step,
        _check_optimizer_options,
        _check_fused_backward,
        _check_state_in_ram,
        _check_validation,
        _check_schedule,
        _check_intervals,
        _check_machines,
        _check_sharding,
    )
    problems = [problem for check in checks for problem in check(config)]
    num_ranks = _known_num_ranks(config)
    if num_ranks is not None:
        batch = check_batch(config.batch_size, config.batch_size_mode, num_ranks, config.gradient_accumulation_steps)
        problems += [batch] if batch else []
    return sorted(problems, key=lambda problem: not problem.blocking)


def check_settings(config: TrainConfig) -> list[Problem]:
    """The problems that are only warnings. Raises ConfigError for blocking ones."""
    problems = find_problems(config)
    blocking = [problem.message for problem in problems if problem.blocking]
    if blocking:
        raise ConfigError(blocking)
    return problems


def check_batch(batch_size: int, mode: str, num_ranks: int, accumulation: int) -> Problem | None:
    """Check that the batch can be divided: a global batch has to be a multiple of ranks x accumulation steps.

    num_ranks: over all machines.
    """
    share = num_ranks * accumulation
    if mode != "global" or batch_size % share == 0:
        return None
    below = batch_size - batch_size % share
    fits = f"{below} or {below + share}" if below else f"{share}"
    ranks = counted(num_ranks, "GPU")
    steps = f" with gradient_accumulation_steps {accumulation}" if accumulation > 1 else ""
    start = f"batch_size {batch_size} (global) on {ranks}{steps}"
    message = f"{start}: {batch_size} is not a multiple of {share}; use {fits}."
    return Problem("batch_size", message, remedy=set_to("batch_size", below or share))


def _known_num_ranks(config: TrainConfig) -> int | None:
    """The number of ranks over all machines; None if it depends on the machine's GPUs."""
    if not config.enable_multi_gpu:
        return 1
    per_node = config.world_size or len(config.device_indexes) or None
    return per_node * config.num_nodes if per_node else None


def _check_model(config: TrainConfig) -> Iterator[Problem]:
    if not config.model.base.strip():
        yield Problem("model.base", "model.base is empty: name the folder, Hub model or .safetensors file to train.")
    for path, folder in (("workspace_dir", config.workspace_dir), ("cache_dir", config.cache_dir)):
        if not folder.strip():
            yield Problem(path, f"{path} is empty: name a folder to write to.")


def _check_family(config: TrainConfig) -> Iterator[Problem]:
    family = load_families()[config.family]
    if len(config.model.clip_skips) > 2 and family.skips_layers:
        skips = ", ".join(map(str, config.model.clip_skips))
        message = f"model.clip_skips {skips}: {family.label} has two CLIP text encoders; leave out what is too much."
        remedy = set_to("model.clip_skips", config.model.clip_skips[:2], "First two")
        yield Problem("model.clip_skips", message, remedy=remedy)
    if config.output.float8_denoiser and facts_of(config).trains_weights and not family.single_file:
        path = "output.float8_denoiser"
        message = f"{path}: {family.label} can't be saved as a single file, which alone holds float8; switch it off."
        yield Problem(path, message, remedy=_switch_off(path))
    if config.method not in family.methods:
        message = f"method {config.method!r} can't train {family.label}: use {' or '.join(family.methods)}."
        yield Problem("method", message)
    trains_both = family.experts and (config.denoiser.expert == "both" or not facts_of(config).chooses_parts)
    if trains_both and config.enable_multi_gpu and config.ddp_static_graph:
        message = f"ddp_static_graph: a step of {family.label} may train one of its denoisers alone; switch it off."
        yield Problem("ddp_static_graph", message, remedy=_switch_off("ddp_static_graph"))


def _check_concepts(config: TrainConfig) -> Iterator[Problem]:
    enabled = [(f"concepts.{i}", concept) for i, concept in enumerate(config.concepts) if concept.enabled]
    if not enabled:
        yield Problem("concepts", "concepts: there is no dataset yet; add a folder of images.")
        return
    for path, concept in enabled:
        if not concept.path.strip():
            yield Problem(f"{path}.path", f"{path}.path is empty: name the folder with the images, or disable it.")
        if concept.captions == "prompt" and not concept.prompt.strip() and facts_of(config).uses_captions:
            message = f"{path}.prompt is empty: its images are trained without words; write a prompt to use one."
            yield Problem(f"{path}.prompt", message, blocking=False)
    if all(concept.loss_weight == 0 for _, concept in enabled):
        message = "loss_weight is 0 for every enabled concept: nothing would be learnt; set one above 0."
        yield Problem(f"{enabled[0][0]}.loss_weight", message)


def _check_references(config: TrainConfig) -> Iterator[Problem]:
    """Reference images that the model can't see, or that it can't do without."""
    if not facts_of(config).uses_denoiser:
        return
    family = load_families()[config.family]
    for number, concept in enumerate(config.concepts):
        path = f"concepts.{number}.reference_folder"
        if concept.enabled and concept.reference_folder and not family.max_references:
            message = f"{path}: {family.label} takes no reference images; empty it."
            yield Problem(path, message, remedy=Remedy("Train without references", {path: ""}))
        if concept.enabled and not concept.reference_folder and family.needs_references:
            message = (
                f"{path} is empty: {family.label} learns edits; choose the folder of the images before the edit, which "
                "have the names of those after it."
            )
            yield Problem(path, message)
    for number, sample in enumerate(config.sampling.samples):
        path = f"sampling.samples.{number}.reference"
        if sample.enabled and sample.prompt and not sample.reference and family.needs_references:
            message = (
                f"{path} is empty: {family.label} edits images; choose one, or empty the prompt, so that an image of "
                "the dataset gives both."
            )
            yield Problem(path, message)


def _check_data(config: TrainConfig) -> Iterator[Problem]:
    enabled = [(f"concepts.{i}", concept) for i, concept in enumerate(config.concepts) if concept.enabled]
    if enabled and all(concept.validation for _, concept in enabled):
        path = f"{enabled[0][0]}.validation"
        yield Problem(path, f"{path} is on for every enabled concept: nothing would be trained; switch one off.")
    for path, concept in enabled:
        lists = {name: getattr(concept, name) for name in ("removed_tags", "dropped_tags", "undropped_tags")}
        for name, listed in lists.items():
            for tag in listed.split(concept.tag_separator or None):
                try:
                    re.compile(tag.strip())
                except re.error as error:
                    message = f"{path}.{name}: {tag.strip()!r} is no regular expression ({error}); correct it."
                    yield Problem(f"{path}.{name}", message)
        separators = (concept.kept_separator, concept.secondary_separator, concept.removed_tags.strip())
        takes_tags = any((concept.shuffle_tags, concept.tag_dropout, concept.capitalization != "off", *separators))
        if takes_tags and not concept.tag_separator:
            message = f"{path}.tag_separator is empty: tags can't be told apart; write what stands between them."
            yield Problem(f"{path}.tag_separator", message)
    trained = [(path, concept) for path, concept in enabled if not concept.validation]
    shares = {path: concept.share for path, concept in trained if concept.share is not None}
    total = sum(shares.values())
    if len(shares) < len(trained) and total >= 1:
        path = f"{next(iter(shares))}.share"
        message = (
            f"{path} {next(iter(shares.values())):g}: the shares of all concepts add up to {total:g}, which leaves "
            "nothing for those without a share; lower some."
        )
        yield Problem(path, message)


def _check_sizes(config: TrainConfig) -> Iterator[Problem]:
    yield from size_problems(config, load_families()[config.family].align, config.family)
    yield from frame_problems(config)
    family = load_families()[config.family]
    for number, sample in enumerate(config.sampling.samples):
        if sample.steps < family.min_sample_steps:
            path = f"sampling.samples.{number}.steps"
            message = f"{path} {sample.steps}: {family.label} takes at least {family.min_sample_steps}; raise it."
            yield Problem(path, message, remedy=set_to(path, family.min_sample_steps))


def _check_trained_parts(config: TrainConfig) -> Iterator[Problem]:
    parts = {name: getattr(config, name) for name in _part_names(config)}
    if parts and not any(part.train for part in parts.values()):
        message = "denoiser.train and text_encoder.train are both off: nothing would be trained; switch one on."
        yield Problem("denoiser.train", message)
    for name, part in parts.items():
        if not part.train or part.stop_unit == "never":
            continue
        ends = {f"{name}.stop_after": part.stop_after}
        if part is config.text_encoder:
            ends |= {f"{name}.stops_after.{number}": end for number, end in enumerate(part.stops_after)}
        for path, end in ends.items():
            if end == 0:
                yield Problem(path, f"{path} is 0 {part.stop_unit}: set it above 0, or switch {name}.train off.")
            elif part.stop_unit == "steps" and not end.is_integer():
                yield Problem(path, f"{path} is {end:g} steps: steps are whole; use a whole number.")


def _part_names(config: TrainConfig) -> list[str]:
    """The names of the parts whose settings the method uses."""
    return ["denoiser", "text_encoder"] if facts_of(config).chooses_parts else []


def _check_embeddings(config: TrainConfig) -> Iterator[Problem]:
    if not facts_of(config).trains_words:
        return
    if not config.embeddings:
        yield Problem("embeddings", "embeddings is empty: add one with a placeholder such as my-cat-1.")
    words = [embedding.placeholder for embedding in config.embeddings]
    for number, embedding in enumerate(config.embeddings):
        path, word = f"embeddings.{number}.placeholder", embedding.placeholder
        others = [other for other in words[:number] if other and (other in word or word in other)]
        if not word:
            yield Problem(path, f"{path} is empty: write the new word, such as my-cat-1.")
        elif any(character.isspace() for character in word) or word != word.lower():
            yield Problem(path, f"{path} {word!r}: it must be one word in lower case; use one such as my-cat-1.")
        elif others:
            yield Problem(path, f"{path} {word!r} and {others[0]!r}: none may contain another; choose unlike words.")
        if not embedding.initial_text.strip():
            path = f"embeddings.{number}.initial_text"
            yield Problem(path, f"{path} is empty: write a word that comes close, or * for none.")
    names = [embedding.title.lower() for embedding in config.embeddings]
    for number, name in enumerate(names):
        if name in names[:number]:
            path = f"embeddings.{number}.file_name"
            yield Problem(path, f"{path}: two embeddings would be written to {name!r}; give each a name of its own.")


def _check_precision(config: TrainConfig) -> Iterator[Problem]:
    weights, mixed = config.model.weight_dtype, config.model.mixed_precision
    # Weights that don't train have no gradients, so their precision does not matter here.
    trains_weights = facts_of(config).trains_weights
    if weights == "float16" and mixed == "fp16" and trains_weights:
        message = (
            f"model.weight_dtype float16 with mixed_precision fp16 in {config.method} training: "
            "fp16 gradients can't be unscaled: set model.weight_dtype to float32."
        )
        yield Problem("model.weight_dtype", message, remedy=set_to("model.weight_dtype", "float32"))
    elif weights in ("float16", "bfloat16") and trains_weights and not _rounds_by_chance(config):
        remedy = ", or switch optimizer.stochastic_rounding on" if weights == "bfloat16" else ""
        message = (
            f"model.weight_dtype {weights} in {config.method} training: small updates are lost to rounding; "
            f"use float32 with mixed_precision bf16{remedy}."
        )
        values: dict[str, str | bool] = {"model.weight_dtype": "float32", "model.mixed_precision": "bf16"}
        if config.optimizer.stochastic_rounding:  # which float32 does not need
            values["optimizer.stochastic_rounding"] = False
        use = Remedy("Set to float32 with bf16", values)
        yield Problem("model.weight_dtype", message, blocking=False, remedy=use)
    if weights == "float64" and mixed != "no":
        message = (
            f"model.mixed_precision {mixed} with weight_dtype float64: the one undoes the other; "
            "set model.mixed_precision to no."
        )
        yield Problem("model.mixed_precision", message, remedy=set_to("model.mixed_precision", "no", "Off"))


def _check_quantization(config: TrainConfig) -> Iterator[Problem]:
    for part in ("denoiser", "text_encoder"):
        path = f"model.{part}_quantization"
        quantization = getattr(config.model, f"{part}_quantization")
        if quantization == "none":
            continue
        if facts_of(config).trains_weights:
            unsaved = " or ".join(method.label for method in METHODS.values() if not method.trains_weights)
            message = (
                f"{path} {quantization} with method {config.method}: quantized weights can neither train nor be saved "
                f"with the model; set it to none, or use {unsaved}."
            )
            yield Problem(path, message, remedy=set_to(path, "none"))
        elif config.model.weight_dtype == "float64":
            message = f"{path} {quantization} with model.weight_dtype float64: use bfloat16, or set it to none."
            yield Problem(path, message, remedy=set_to(path, "none"))


def _check_adapter(config: TrainConfig) -> Iterator[Problem]:
    """Which adapters and optimizers the settings of adapters can be combined with."""
    lora = config.lora
    if not facts_of(config).trains_adapters:
        return
    optimizer = facts_of_optimizer(config.optimizer)
    if lora.plus_ratio != 1 and optimizer.finds_own_step:
        message = (
            f"lora.plus_ratio {lora.plus_ratio:g} with optimizer.name {optimizer.name}: it finds one step size for all "
            "weights; set it to 1, or use another optimizer."
        )
        yield Problem("lora.plus_ratio", message, remedy=set_to("lora.plus_ratio", 1.0, "1"))
    if lora.max_norm is not None and optimizer.averages_weights:
        message = (
            f"lora.max_norm {lora.max_norm:g} with optimizer.name {optimizer.name}: it would not limit the averaged "
            "weights; leave it empty, or use another optimizer."
        )
        yield Problem("lora.max_norm", message, remedy=Remedy("Leave empty", {"lora.max_norm": None}))
    try:
        read_layer_ranks(lora.layer_ranks)
    except ValueError as error:
        yield Problem("lora.layer_ranks", f"lora.layer_ranks: {error}.")
    if lora.is_lycoris:
        yield from _check_lycoris(config)
    if lora.max_norm is not None and lora.adapter == "oft":
        message = f"lora.max_norm {lora.max_norm:g} with lora.adapter oft: it limits other adapters; leave it empty."
        yield Problem("lora.max_norm", message, remedy=Remedy("Leave empty", {"lora.max_norm": None}))
    if lora.train_norms and not lora.is_lycoris:
        yield from _check_norms_beside_lora(config)
    if lora.dora and lora.nested_unit:
        message = f"lora.nested_unit {lora.nested_unit} with lora.dora: a cut DoRA is another one; leave it empty."
        yield Problem("lora.nested_unit", message, remedy=Remedy("Leave empty", {"lora.nested_unit": None}))
    for name in DROPOUTS[1:]:
        if lora.dora and (share := getattr(lora, name)):
            message = f"lora.{name} {share:g} with lora.dora: it would change the direction's length; set it to 0."
            yield Problem(f"lora.{name}", message, remedy=set_to(f"lora.{name}", 0.0, "0"))


def _check_norms_beside_lora(config: TrainConfig) -> Iterator[Problem]:
    """Only kohya's format of a LoRA can hold norm layers; those of other adapters are of that kind anyway."""
    family = load_families()[config.family]
    if not family.has_kohya_loras:
        message = (
            f"lora.train_norms: no format of a LoRA for {family.label} holds norm layers; switch it off, or use lokr."
        )
        yield Problem("lora.train_norms", message, remedy=Remedy("Switch off", {"lora.train_norms": False}))
    elif config.output.format == "diffusers":
        message = "output.format diffusers with lora.train_norms: it can't hold norm layers; choose the single file."
        yield Problem("output.format", message, remedy=set_to("output.format", "single_file", "Single file"))


def _check_lycoris(config: TrainConfig) -> Iterator[Problem]:
    """What LoHa, LoKr, OFT and IA3 can't be combined with."""
    lora = config.lora
    on = f"with lora.adapter {lora.adapter}"
    only_lora = {"dora": False, "rslora": False, "plus_ratio": 1.0, "nested_unit": None, **dict.fromkeys(DROPOUTS, 0.0)}
    for name, off in only_lora.items():
        if (value := getattr(lora, name)) != off:
            undone = "leave it empty" if off is None else f"set it to {show_value(off)}"
            message = f"lora.{name} {show_value(value)} {on}: only lora has it; {undone}."
            yield Problem(f"lora.{name}", message, remedy=set_to(f"lora.{name}", off))
    if config.model.compile != "off":
        message = f"model.compile {config.model.compile} {on}: its layers can't be compiled; set it to off."
        yield Problem("model.compile", message, remedy=set_to("model.compile", "off", "Off"))
    for part in ("denoiser", "text_encoder"):
        path = f"model.{part}_quantization"
        if lora.composes_weights and getattr(config.model, f"{part}_quantization") == "nf4":
            message = f"{path} nf4 {on}: only lora can be added to weights in 4 bits; use int8."
            yield Problem(path, message, remedy=set_to(path, "int8"))


def _check_block_swap(config: TrainConfig) -> Iterator[Problem]:
    path, count = "model.blocks_to_swap", config.model.blocks_to_swap
    if count == 0:
        return
    start, none = f"{path} {show_value(count)}", set_to(path, 0)
    if facts_of(config).trains_weights:
        kept = " or ".join(method.label for method in METHODS.values() if not method.trains_weights)
        message = (
            f"{start} with method {config.method}: weights that train can't be swapped; set it to 0, or use {kept}."
        )
        yield Problem(path, message, remedy=none)
        return
    if not config.model.gradient_checkpointing:
        message = f"{start} without model.gradient_checkpointing: the backward pass needs all blocks; switch it on."
        use = Remedy("Switch on", {"model.gradient_checkpointing": True})
        yield Problem("model.gradient_checkpointing", message, remedy=use)
    if config.model.compile != "off":
        message = f"model.compile {config.model.compile} with {start}: swapped blocks can't be compiled; set it to off."
        yield Problem("model.compile", message, remedy=set_to("model.compile", "off", "Off"))


def _check_noise(config: TrainConfig) -> Iterator[Problem]:
    if not facts_of(config).uses_denoiser:
        return
    low, high = config.diffusion.min_timestep, config.diffusion.max_timestep
    if low >= high:
        message = f"diffusion.min_timestep {low}: must be below max_timestep ({high}); lower it or raise the other."
        yield Problem("diffusion.min_timestep", message)
    if config.diffusion.offset_noise_by_timestep:
        path, off = "diffusion.offset_noise_by_timestep", _switch_off("diffusion.offset_noise_by_timestep")
        if config.family not in SNR_FAMILIES:
            message = f"{path}: {config.family} is a flow model, and its formula is for others; switch it off."
            yield Problem(path, message, remedy=off)
        elif config.model.zero_terminal_snr:
            message = f"{path} with model.zero_terminal_snr: only the last timestep would have any; switch one off."
            yield Problem(path, message, remedy=off)
        elif not config.diffusion.offset_noise:
            message = f"{path} has no effect with diffusion.offset_noise 0; set that to 0.02, or switch this off."
            yield Problem(path, message, blocking=False, remedy=set_to("diffusion.offset_noise", 0.02))
    if not config.model.zero_terminal_snr:
        return
    if config.family not in SNR_FAMILIES:
        message = f"model.zero_terminal_snr: {config.family} is a flow model, which ends in noise alone; switch it off."
        yield Problem("model.zero_terminal_snr", message, remedy=_switch_off("model.zero_terminal_snr"))
    elif config.model.prediction_type == "epsilon":
        message = (
            "model.zero_terminal_snr with prediction_type epsilon: where there is noise alone, epsilon says nothing of "
            "the image; set model.prediction_type to v_prediction."
        )
        use = Remedy("Predict v", {"model.prediction_type": "v_prediction"})
        yield Problem("model.zero_terminal_snr", message, remedy=use)


def _check_loss(config: TrainConfig) -> Iterator[Problem]:
    if not facts_of(config).uses_denoiser:
        return
    loss = config.loss
    if not (loss.mse or loss.mae or loss.huber or loss.smooth_l1 or loss.log_cosh):
        names = "loss.mse, loss.mae, loss.huber, loss.smooth_l1 and loss.log_cosh"
        message = f"{names} are all 0: nothing would be learnt; set loss.mse to 1."
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
        ):
            if is_on:
                message = f"loss.{name} with method {config.method}: only a LoRA keeps the old model; switch it off."
                yield Problem(f"loss.{name}", message)
    elif config.lora.start_from and _holds_to_the_base(config):
        message = (
            f"lora.start_from {config.lora.start_from!r} with prior preservation: what is preserved is the base "
            "without that LoRA, which unlearns part of it; start with a new LoRA to avoid this."
        )
        yield Problem("lora.start_from", message, blocking=False)
    elif loss.prior_by_frozen_model and not _has_priors(config):
        message = "loss.prior_by_frozen_model has no effect: mark a concept with regularization, or switch it off."
        yield Problem("loss.prior_by_frozen_model", message, blocking=False)
    if loss.output_preservation and facts_of(config).keeps_old_model:
        yield from _check_output_preservation(config)


def _check_output_preservation(config: TrainConfig) -> Iterator[Problem]:
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
    return bool(loss.output_preservation or outside_masks or (loss.prior_by_frozen_model and _has_priors(config)))


def _has_priors(config: TrainConfig) -> bool:
    return any(concept.enabled and concept.regularisation for concept in config.concepts)


def _check_without_effect(config: TrainConfig) -> Iterator[Problem]:
    """Warnings about settings that are on but have no effect."""
    of_weights = facts_of(config).trains_weights
    # float16 weights are handled by _check_precision
    if config.optimizer.stochastic_rounding and (not of_weights or config.model.weight_dtype in ("float32", "float64")):
        dtype = config.model.weight_dtype if of_weights else "float32"
        message = (
            f"optimizer.stochastic_rounding has no effect: what method {config.method} trains is in {dtype} here, and "
            "it is for bfloat16; switch it off."
        )
        off = _switch_off("optimizer.stochastic_rounding")
        yield Problem("optimizer.stochastic_rounding", message, blocking=False, remedy=off)
    if not facts_of(config).uses_denoiser:
        return
    loss = config.loss
    for name in ("unmasked_probability", "unmasked_weight"):
        if loss.masked_training and getattr(loss, name) == 1:
            message = f"loss.{name} 1: masks have no effect; use 0.1, or switch loss.masked_training off."
            yield Problem(f"loss.{name}", message, blocking=False)
    takes_first = load_families()[config.family].takes_first_frame
    if config.data.image_to_video and config.data.frames == 1 and takes_first:
        message = f"data.image_to_video {config.data.image_to_video:g}: images alone are trained; raise data.frames."
        off = set_to("data.image_to_video", 0.0, "0")
        yield Problem("data.image_to_video", message, blocking=False, remedy=off)
    trained = [concept for concept in config.concepts if concept.enabled and not concept.validation]
    if trained and all(concept.regularisation for concept in trained):
        number = config.concepts.index(trained[0])
        path = f"concepts.{number}.regularisation"
        message = f"{path} is on for every concept: nothing new would be learnt; switch it off for your own images."
        yield Problem(path, message, blocking=False)


def _check_optimizer(config: TrainConfig) -> Iterator[Problem]:
    optimizer = config.optimizer
    facts = facts_of_optimizer(optimizer)
    rates = {"optimizer.learning_rate": optimizer.learning_rate}
    for part in _part_names(config):
        settings = getattr(config, part)
        if settings.train and settings.learning_rate is not None:
            rates[f"{part}.learning_rate"] = settings.learning_rate
    if _part_names(config) and config.text_encoder.train and config.text_encoder.learning_rates:
        rates["text_encoder.learning_rates"] = max(config.text_encoder.learning_rates)
    for path, rate in rates.items():
        if facts.finds_own_step and rate < 0.1:
            message = f"{path} {rate:g} is small for {facts.label}, which finds its own step: use 1.0."
            yield Problem(path, message, blocking=False, remedy=set_to(path, 1.0))
        if rate >= facts.largest_rate:
            message = f"{path} {rate:g} is very large for {optimizer.name}: use 1e-4 for LoRA, 1e-5 for full training."
            yield Problem(path, message, blocking=False)
    if "beta2" in facts.settings and optimizer.beta1 > optimizer.beta2:
        message = f"optimizer.beta1 {optimizer.beta1:g} is above beta2 {optimizer.beta2:g}: use 0.9 and 0.999."
        usual = Remedy("Set to 0.9 and 0.999", {"optimizer.beta1": 0.9, "optimizer.beta2": 0.999})
        yield Problem("optimizer.beta1", message, blocking=False, remedy=usual)


def _check_own_step(config: TrainConfig) -> Iterator[Problem]:
    facts = facts_of_optimizer(config.optimizer)
    trained = {name: getattr(config, name) for name in _part_names(config) if getattr(config, name).train}
    rates = {name: part.learning_rate or config.optimizer.learning_rate for name, part in trained.items()}
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


def _check_optimizer_options(config: TrainConfig) -> Iterator[Problem]:
    optimizer = config.optimizer
    facts = facts_of_optimizer(optimizer)
    if facts.averages_weights:
        yield from _check_averaging(config)
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
            "at a time; choose another optimizer, such as adamw or adafactor, or switch it off."
        )
        yield Problem("optimizer.stochastic_rounding", message)


def _check_fused_backward(config: TrainConfig) -> Iterator[Problem]:
    """What can't be known or done while the gradients of a step come one after the other, or never are all there."""
    optimizer, path = config.optimizer, "optimizer.fused_backward"
    if not optimizer.fused_backward:
        return
    on, off = f"with {path}", _switch_off(path)
    if not facts_of(config).trains_weights:
        message = f"{path} has no effect with method {config.method}, whose gradients are small; switch it off."
        yield Problem(path, message, blocking=False, remedy=off)
        return
    if not OPTIMIZERS[optimizer.name].steps_alone:
        able = optimizers_that(lambda facts: facts.steps_alone)
        message = f"optimizer.name {optimizer.name} {on}: it steps all weights together; use {_either(able)}."
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
    if config.enable_multi_gpu and _known_num_ranks(config) != 1:
        message = f"{path} with enable_multi_gpu: GPUs add up the gradients of whole steps; switch one of the two off."
        yield Problem(path, message, remedy=off)


def _check_state_in_ram(config: TrainConfig) -> Iterator[Problem]:
    name = config.optimizer.name
    if config.optimizer.state_in_ram and not OPTIMIZERS[name].steps_alone:
        able = _either(optimizers_that(lambda facts: facts.steps_alone))
        message = f"optimizer.name {name} with optimizer.state_in_ram: it steps all weights together; use {able}."
        yield Problem("optimizer.name", message)


def _check_averaging(config: TrainConfig) -> Iterator[Problem]:
    name = config.optimizer.name
    if config.optimizer.beta1 == 0:
        message = f"optimizer.beta1 0 with {name}: its weights mix with their average by beta1; use 0.9."
        yield Problem("optimizer.beta1", message, remedy=set_to("optimizer.beta1", 0.9))
    if config.ema.enabled:
        message = f"ema.enabled with optimizer.name {name}: it averages by itself; switch ema.enabled off."
        yield Problem("ema.enabled", message, remedy=_switch_off("ema.enabled"))
    if config.schedule.name != "constant":
        message = (
            f"schedule.name {config.schedule.name} with optimizer.name {name}: its average takes the place of "
            "a falling rate; use constant."
        )
        yield Problem("schedule.name", message, blocking=False, remedy=set_to("schedule.name", "constant"))


def _switch_off(path: str) -> Remedy:
    return Remedy("Switch off", {path: False})


def _rounds_by_chance(config: TrainConfig) -> bool:
    return config.optimizer.stochastic_rounding and config.model.weight_dtype == "bfloat16"


def _check_validation(config: TrainConfig) -> Iterator[Problem]:
    held_out = config.data.validation_share or any(c.enabled and c.validation for c in config.concepts)
    if config.validation.unit != "never" and not held_out:
        never = set_to("validation.unit", "never", "Never")
        message = (
            f"validation.unit {config.validation.unit}: no image is held out; set data.validation_share above 0, "
            "mark a concept as validation, or set it to never."
        )
        yield Problem("validation.unit", message, blocking=False, remedy=never)


def _check_schedule(config: TrainConfig) -> Iterator[Problem]:
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


def _check_intervals(config: TrainConfig) -> Iterator[Problem]:
    for name in ("sampling", "validation", "backup", "output"):
        part = getattr(config, name)
        if part.unit == "never":
            continue
        path = f"{name}.every"
        if part.every == 0:
            yield Problem(path, f"{path} is 0 {part.unit}: set it above 0, or {name}.unit to never.")
        elif part.unit == "steps" and not part.every.is_integer():
            yield Problem(path, f"{path} is {part.every:g} steps: steps are whole; use a whole number.")
    wanted = config.sampling.at_start or config.sampling.at_end or config.sampling.unit != "never"
    if wanted and not any(sample.enabled for sample in config.sampling.samples):
        message = "sampling.samples has no enabled sample: add a prompt, or set sampling.unit to never."
        yield Problem("sampling.samples", message, blocking=False)


def _check_machines(config: TrainConfig) -> Iterator[Problem]:
    indexes = config.device_indexes
    if len(set(indexes)) < len(indexes):
        twice = next(index for index in indexes if indexes.count(index) > 1)
        once = set_to("device_indexes", list(dict.fromkeys(indexes)), ", ".join(map(str, dict.fromkeys(indexes))))
        yield Problem("device_indexes", f"device_indexes names GPU {twice} twice: name each once.", remedy=once)
    if not config.enable_multi_gpu:
        return
    if config.node_rank >= config.num_nodes:
        message = (
            f"node_rank {config.node_rank} with num_nodes {config.num_nodes}: "
            f"machines are counted from 0; use 0 to {config.num_nodes - 1}."
        )
        yield Problem("node_rank", message)
    if config.num_nodes > 1 and config.max_restarts:
        start = f"max_restarts {config.max_restarts} with num_nodes {config.num_nodes}"
        message = f"{start}: runs on several machines are not started again; use 0."
        yield Problem("max_restarts", message, blocking=False, remedy=set_to("max_restarts", 0))
    if config.num_nodes > 1 and (config.master_addr in ("localhost", "::1", "") or config.master_addr[:4] == "127."):
        message = (
            f"master_addr {config.master_addr!r} with num_nodes {config.num_nodes}: "
            "the other machines can't find machine 0; write its address."
        )
        yield Problem("master_addr", message, blocking=False)


def _check_sharding(config: TrainConfig) -> Iterator[Problem]:
    if config.enable_multi_gpu and config.distributed_strategy in ("fsdp", "hsdp"):
        yield from sharding_problems(config)
    if config.enable_multi_gpu:
        yield from divided_optimizer_problems(config)


def divided_optimizer_problems(config: TrainConfig) -> Iterator[Problem]:
    """The optimizer, if ranks that each hold the whole model can't divide its state."""
    name = config.optimizer.name
    if config.ddp_shard_optimizer and config.distributed_strategy in ("ddp", "auto") and not OPTIMIZERS[name].divides:
        divided = [other for other, facts in OPTIMIZERS.items() if facts.divides]
        message = (
            f"optimizer.name {name} with ddp_shard_optimizer: it needs the state of all weights on each GPU; use "
            f"{_either(divided)}, or switch ddp_shard_optimizer off."
        )
        yield Problem("optimizer.name", message, remedy=set_to("ddp_shard_optimizer", False, "Off"))


def sharding_problems(config: TrainConfig) -> Iterator[Problem]:
    """The settings that are not supported with FSDP and HSDP."""
    family, facts, optimizer = load_families()[config.family], facts_of(config), config.optimizer.name
    on, sharding = f"with distributed_strategy {config.distributed_strategy}", "distributed_strategy"
    if not facts.can_shard:
        methods = " or ".join(method.name for method in METHODS.values() if method.can_shard)
        message = f"method {config.method!r} {on}: what it trains can't be sharded; use ddp, or {methods}."
        yield Problem(sharding, message, remedy=set_to(sharding, "ddp", "DDP"))
    if family.experts:
        message = f"family {config.family!r} {on}: a step may use one of its denoisers alone; use ddp."
        yield Problem(sharding, message, remedy=set_to(sharding, "ddp", "DDP"))
    if family.groups_texts:
        message = f"family {config.family!r} {on}: ranks may need different numbers of passes for their texts; use ddp."
        yield Problem(sharding, message, remedy=set_to(sharding, "ddp", "DDP"))
    for number, concept in enumerate(config.concepts):
        if concept.enabled and concept.reference_folder:
            path = f"concepts.{number}.reference_folder"
            message = f"{path} {on}: ranks may need different numbers of passes for their references; use ddp."
            yield Problem(path, message, remedy=set_to(sharding, "ddp", "DDP"))
    if facts.trains_adapters and config.lora.max_norm is not None:
        message = f"lora.max_norm {config.lora.max_norm:g} {on}: it needs whole weights; leave it empty, or use ddp."
        yield Problem("lora.max_norm", message, remedy=Remedy("Leave empty", {"lora.max_norm": None}))
    if facts.chooses_parts and config.text_encoder.train:
        message = f"text_encoder.train {on}: only the denoiser can be sharded; switch it off, or use ddp."
        yield Problem("text_encoder.train", message)
    if facts.uses_denoiser and config.model.compile != "off":
        message = f"model.compile {config.model.compile} {on}: sharded blocks can't be compiled; set it to off."
        yield Problem("model.compile", message, remedy=set_to("model.compile", "off", "Off"))
    if config.model.denoiser_quantization != "none":
        message = (
            f"model.denoiser_quantization {config.model.denoiser_quantization} {on}: quantized weights can't be "
            "sharded; set it to none, or use ddp."
        )
        none = set_to("model.denoiser_quantization", "none", "None")
        yield Problem("model.denoiser_quantization", message, remedy=none)
    if config.model.blocks_to_swap != 0:
        count = show_value(config.model.blocks_to_swap)
        message = f"model.blocks_to_swap {count} {on}: sharded blocks can't be swapped; set it to 0, or use ddp."
        yield Problem("model.blocks_to_swap", message, remedy=set_to("model.blocks_to_swap", 0))
    if not OPTIMIZERS[optimizer].shards:
        sharded = [name for name, other in OPTIMIZERS.items() if other.shards]
        message = f"optimizer.name {optimizer} {on}: it needs whole weights; use {_either(sharded)}."
        yield Problem("optimizer.name", message)
    if config.optimizer.state_in_ram:
        path = "optimizer.state_in_ram"
        message = f"{path} {on}: each GPU has a part of the state already; switch it off, or use ddp."
        yield Problem(path, message, remedy=_switch_off(path))
    if OPTIMIZERS[optimizer].shards and config.optimizer.stochastic_rounding:
        message = f"optimizer.stochastic_rounding {on}: it needs whole weights; switch it off, or use ddp."
        yield Problem("optimizer.stochastic_rounding", message)


def _either(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
