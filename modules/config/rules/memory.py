"""Rules of precision, attention and what saves memory: quantization, offloaded activations and swapped blocks."""

from collections.abc import Collection, Iterator

from modules.config.attentions import ATTENTIONS, HALF
from modules.config.families import load_families, model_of
from modules.config.methods import METHODS, facts_of
from modules.config.problems import Problem, Remedy, either, set_to
from modules.config.quantizations import EIGHT_BITS
from modules.config.show_value import show_value
from modules.config.TrainConfig import TrainConfig


def precision_problems(config: TrainConfig) -> Iterator[Problem]:
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


def attention_problems(config: TrainConfig) -> Iterator[Problem]:
    """Where the kernels that are asked for don't take the precision of the run, so that PyTorch's compute instead."""
    name, weights = config.model.attention, config.model.weight_dtype
    facts = ATTENTIONS.get(name)
    if not facts and name != "cudnn":
        return
    label, dtypes = (facts.label, facts.dtypes) if facts else ("cuDNN's attention", HALF)
    if _computes_in(config, dtypes):
        return
    path, value = "model.mixed_precision", "bf16"
    if weights == "float64":  # which mixed precision would undo
        path, value = "model.weight_dtype", "bfloat16"
    formats = "bf16, fp16 and float32" if "float32" in dtypes else "bf16 and fp16"
    message = (
        f"model.attention {name} with weight_dtype {weights} and mixed_precision no: {label} computes in {formats} "
        f"only, so PyTorch's is used; set {path} to {value}."
    )
    yield Problem(path, message, blocking=False, remedy=set_to(path, value))


def attention_mask_problems(config: TrainConfig) -> Iterator[Problem]:
    """Where the kernels that are asked for can't compute all attentions of the model."""
    facts, counted = ATTENTIONS.get(config.model.attention), model_of(config).attention
    if not facts or not counted or not facts_of(config).uses_denoiser or not _computes_in(config, facts.dtypes):
        return
    if not (rest := counted.not_taken(facts)):
        return
    masked = [kind for kind in rest if kind.masked and not facts.masks]
    widths = sorted({kind.width for kind in rest if not facts.takes(kind.width)})
    reasons = ["masks"] if masked else []
    reasons += [f"heads of width {' and '.join(map(str, widths))}"] if widths else []
    others = [name for name, other in ATTENTIONS.items() if not counted.not_taken(other)]
    number = sum(kind.count for kind in rest)
    share = "any attention" if number == counted.total else f"{number} of the {counted.total} attentions"
    remedy = f"use {either([*others, 'auto'])}" if others else "use auto" if number == counted.total else ""
    message = (
        f"model.attention {facts.name} with family {config.family}: {facts.label} can't compute {share} of a pass, "
        f"because of {' and '.join(reasons)}, so PyTorch does{f'; {remedy}' if remedy else ''}."
    )
    yield Problem("model.attention", message, blocking=False, remedy=set_to("model.attention", "auto", "Auto"))


def _computes_in(config: TrainConfig, dtypes: Collection[str]) -> bool:
    return config.model.mixed_precision != "no" or config.model.weight_dtype in dtypes


def quantization_problems(config: TrainConfig) -> Iterator[Problem]:
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


def matmul_problems(config: TrainConfig) -> Iterator[Problem]:
    """Products in 8 bits, of weights that are not held in 8 bits."""
    model, path = config.model, "model.quantized_matmul"
    if model.quantized_matmul != "on" or not facts_of(config).uses_denoiser:
        return
    if facts_of(config).trains_weights:
        message = f"{path} on with method {config.method}: weights that train can't be quantized; set it to off."
        yield Problem(path, message, remedy=set_to(path, "off", "Off"))
        return
    if model.denoiser_quantization in EIGHT_BITS:
        return
    files = model.denoiser_files(load_families()[config.family].denoisers).values()
    reason = f"products in 8 bits take weights that are held in {' or '.join(EIGHT_BITS)}"
    if any(file.lower().endswith(".gguf") for file in files):
        message = f"{path} on with a GGUF file: {reason}; set it to off."
        yield Problem(path, message, remedy=set_to(path, "off", "Off"))
        return
    held = "model.denoiser_quantization"  # where the window leads to, because the other is hidden
    message = f"{held} {model.denoiser_quantization} with {path} on: {reason}; set it to {EIGHT_BITS[0]}, or {path} to "
    yield Problem(held, f"{message}off.", remedy=set_to(held, EIGHT_BITS[0]))


def rotation_problems(config: TrainConfig) -> Iterator[Problem]:
    """A rotation that changes nothing, or does not help."""
    model, path = config.model, "model.quantized_matmul_rotation"
    if not model.quantized_matmul_rotation or not facts_of(config).uses_denoiser:
        return
    place = path
    if model.quantized_matmul != "on":
        # where the window leads to, because the rotation is hidden
        place = "model.quantized_matmul" if model.denoiser_quantization in EIGHT_BITS else "model.denoiser_quantization"
        message = (
            f"{path} on with model.quantized_matmul {model.quantized_matmul}: only layers that multiply in 8 bits are "
            "rotated; set model.quantized_matmul to on, or switch the rotation off."
        )
    elif model.denoiser_quantization == "float8":
        message = (
            f"{path} on with model.denoiser_quantization float8: its rounding errors don't depend on outliers; switch "
            "the rotation off, or use int8."
        )
    else:
        return
    yield Problem(place, message, blocking=False, remedy=set_to(path, False, "Off"))


def gguf_problems(config: TrainConfig) -> Iterator[Problem]:
    """A denoiser in a GGUF file is quantized, and stays as it is."""
    files = config.model.denoiser_files(load_families()[config.family].denoisers)
    packed = [setting for setting, file in files.items() if file.lower().endswith(".gguf")]
    if not packed or not facts_of(config).uses_denoiser:
        return
    start, quantization = f"{packed[0]} {files[packed[0]]!r}", config.model.denoiser_quantization
    for other in files.keys() - packed:
        message = f"{start} is a GGUF file, but {other} is not; choose GGUF files for both experts, or for neither."
        yield Problem(other, message)
    if facts_of(config).trains_weights:
        kept = " or ".join(method.label for method in METHODS.values() if not method.trains_weights)
        message = (
            f"{start} with method {config.method}: quantized weights can neither train nor be saved with the model; "
            f"choose a .safetensors file, or use {kept}."
        )
        yield Problem(packed[0], message)
    if quantization != "none":
        message = f"model.denoiser_quantization {quantization} with {start}: it is quantized already; set it to none."
        yield Problem("model.denoiser_quantization", message, remedy=set_to("model.denoiser_quantization", "none"))
    if config.distributed_strategy in ("fsdp", "hsdp"):
        message = f"distributed_strategy {config.distributed_strategy} with {start}: it can't be sharded; use ddp."
        yield Problem("distributed_strategy", message, remedy=set_to("distributed_strategy", "ddp"))


def offloading_problems(config: TrainConfig) -> Iterator[Problem]:
    model = config.model
    if model.activation_offloading and not model.gradient_checkpointing and facts_of(config).uses_denoiser:
        message = (
            "model.activation_offloading without model.gradient_checkpointing: it moves what that keeps; switch it on."
        )
        use = Remedy("Switch on", {"model.gradient_checkpointing": True})
        yield Problem("model.gradient_checkpointing", message, remedy=use)


def swap_problems(config: TrainConfig) -> Iterator[Problem]:
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


def graph_problems(config: TrainConfig) -> Iterator[Problem]:
    """What a CUDA graph can't repeat: what the host does or decides in each pass."""
    if config.model.cuda_graphs != "on" or not facts_of(config).uses_denoiser:
        return
    for text, reason in _why_not_captured(config):
        path = "model.cuda_graphs"
        yield Problem(path, f"{path} on with {text}: {reason}; set it to off.", remedy=set_to(path, "off", "Off"))


def _why_not_captured(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """(what is set, why its passes can't be captured)."""
    model, facts = config.model, facts_of(config)
    if facts.trains_text(config):
        yield "text encoders that train", "the host encodes the captions of each pass"
    if load_families()[config.family].experts:
        yield f"family {config.family!r}", "the host chooses a denoiser for each sample"
    if model.blocks_to_swap != 0:
        yield f"model.blocks_to_swap {show_value(model.blocks_to_swap)}", "weights move in each pass"
    if model.activation_offloading:
        yield "model.activation_offloading", "activations move in each pass"
    if config.optimizer.fused_backward and facts.trains_weights:
        yield "optimizer.fused_backward", "it steps within the backward pass"
    if model.denoiser_quantization == "nf4":
        yield "model.denoiser_quantization nf4", "whether bitsandbytes' kernels can be captured is not known"
    for name in _DRAWING if model.gradient_checkpointing and facts.trains_adapters else ():
        if getattr(config.lora, name):
            reason = "what is computed again would draw other random numbers"
            yield f"lora.{name} and model.gradient_checkpointing", reason


_DRAWING = ("dropout", "rank_dropout", "module_dropout", "nested_unit")  # settings of adapters


def _rounds_by_chance(config: TrainConfig) -> bool:
    return config.optimizer.stochastic_rounding and config.model.weight_dtype == "bfloat16"
