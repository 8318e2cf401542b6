"""Checks between settings that need no disk, no model and no GPU.

The range of each setting alone is declared with it. What depends on the model family (multiples of sizes), on files
or on the machine is checked where these are known.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from modules.config.errors import ConfigError
from modules.config.TrainConfig import TrainConfig


@dataclass(frozen=True)
class Problem:
    """path: of the setting to change. message: one sentence. blocking: the run can't start with it."""

    path: str
    message: str
    blocking: bool = True


def find_problems(config: TrainConfig) -> list[Problem]:
    """What is wrong between the settings, the blocking problems first."""
    checks = (
        _check_model,
        _check_concepts,
        _check_trained_parts,
        _check_precision,
        _check_optimizer,
        _check_prodigy,
        _check_schedule,
        _check_intervals,
        _check_machines,
    )
    problems = [problem for check in checks for problem in check(config)]
    num_ranks = _known_num_ranks(config)
    if num_ranks is not None:
        batch = check_batch(config.batch_size, config.batch_size_mode, num_ranks, config.gradient_accumulation_steps)
        problems += [batch] if batch else []
    return sorted(problems, key=lambda problem: not problem.blocking)


def check_settings(config: TrainConfig) -> list[Problem]:
    """The problems that are worth a warning. Raises ConfigError for those with which the run can't start."""
    problems = find_problems(config)
    blocking = [problem.message for problem in problems if problem.blocking]
    if blocking:
        raise ConfigError(blocking)
    return problems


def check_batch(batch_size: int, mode: str, num_ranks: int, accumulation: int) -> Problem | None:
    """Whether the batch can be shared out: a global batch has to be a multiple of ranks x accumulation steps.

    num_ranks: over all machines.
    """
    share = num_ranks * accumulation
    if mode != "global" or batch_size % share == 0:
        return None
    below = batch_size - batch_size % share
    fits = f"{below} or {below + share}" if below else f"{share}"
    ranks = f"{num_ranks} GPU" + ("s" if num_ranks > 1 else "")
    steps = f" with gradient_accumulation_steps {accumulation}" if accumulation > 1 else ""
    start = f"batch_size {batch_size} (global) on {ranks}{steps}"
    return Problem("batch_size", f"{start}: {batch_size} is not a multiple of {share}; use {fits}.")


def _known_num_ranks(config: TrainConfig) -> int | None:
    """Ranks over all machines; None if only the machine's GPUs decide."""
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


def _check_concepts(config: TrainConfig) -> Iterator[Problem]:
    enabled = [(f"concepts.{i}", concept) for i, concept in enumerate(config.concepts) if concept.enabled]
    if not enabled:
        yield Problem("concepts", "concepts has no enabled concept: add one with the folder of your pictures.")
        return
    for path, concept in enabled:
        if not concept.path.strip():
            yield Problem(f"{path}.path", f"{path}.path is empty: name the folder with the pictures, or disable it.")
        if concept.captions == "prompt" and not concept.prompt.strip() and config.method != "vae":
            message = f"{path}.prompt is empty: its pictures are trained without words; write a prompt to use one."
            yield Problem(f"{path}.prompt", message, blocking=False)
    if all(concept.loss_weight == 0 for _, concept in enabled):
        message = "loss_weight is 0 for every enabled concept: nothing would be learnt; set one above 0."
        yield Problem(f"{enabled[0][0]}.loss_weight", message)


def _check_trained_parts(config: TrainConfig) -> Iterator[Problem]:
    if config.method != "vae" and not config.denoiser.train and not config.text_encoder.train:
        message = "denoiser.train and text_encoder.train are both off: nothing would be trained; switch one on."
        yield Problem("denoiser.train", message)


def _check_precision(config: TrainConfig) -> Iterator[Problem]:
    weights, mixed = config.model.weight_dtype, config.model.mixed_precision
    # Of LoRA the model's weights are not trained, so their precision sets no gradient's.
    if weights == "float16" and mixed == "fp16" and config.method != "lora":
        message = (
            f"model.weight_dtype float16 with mixed_precision fp16 in {config.method} training: "
            "fp16 gradients can't be unscaled: set model.weight_dtype to float32."
        )
        yield Problem("model.weight_dtype", message)
    elif weights in ("float16", "bfloat16") and config.method != "lora":
        message = (
            f"model.weight_dtype {weights} in {config.method} training: small updates are lost to rounding; "
            "use float32 with mixed_precision bf16."
        )
        yield Problem("model.weight_dtype", message, blocking=False)
    if weights == "float64" and mixed != "no":
        message = (
            f"model.mixed_precision {mixed} with weight_dtype float64: the one undoes the other; "
            "set model.mixed_precision to no."
        )
        yield Problem("model.mixed_precision", message)


def _check_optimizer(config: TrainConfig) -> Iterator[Problem]:
    optimizer = config.optimizer
    rates = {"optimizer.learning_rate": optimizer.learning_rate}
    for part in ("denoiser", "text_encoder"):
        settings = getattr(config, part)
        if settings.train and settings.learning_rate is not None and config.method != "vae":
            rates[f"{part}.learning_rate"] = settings.learning_rate
    for path, rate in rates.items():
        if optimizer.name == "prodigy" and rate < 0.1:
            message = f"{path} {rate:g} is small for Prodigy, which finds its own step: use 1.0."
            yield Problem(path, message, blocking=False)
        if optimizer.name == "adamw" and rate >= 0.1:
            message = f"{path} {rate:g} is very large for adamw: use 1e-4 for LoRA, 1e-5 for full training."
            yield Problem(path, message, blocking=False)
    if optimizer.name != "adafactor" and optimizer.beta1 > optimizer.beta2:
        message = f"optimizer.beta1 {optimizer.beta1:g} is above beta2 {optimizer.beta2:g}: use 0.9 and 0.999."
        yield Problem("optimizer.beta1", message, blocking=False)


def _check_prodigy(config: TrainConfig) -> Iterator[Problem]:
    parts = ("denoiser", "text_encoder")
    trained = {name: getattr(config, name) for name in parts if getattr(config, name).train}
    rates = {name: part.learning_rate or config.optimizer.learning_rate for name, part in trained.items()}
    if config.optimizer.name == "prodigy" and config.method != "vae" and len(set(rates.values())) > 1:
        name = next(name for name, part in trained.items() if part.learning_rate is not None)
        path = f"{name}.learning_rate"
        message = f"{path} {rates[name]:g}: Prodigy finds one step for all parts together; leave it empty."
        yield Problem(path, message)


def _check_schedule(config: TrainConfig) -> Iterator[Problem]:
    warmup = config.schedule.warmup
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
    for name in ("sampling", "backup", "output"):
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
        yield Problem("device_indexes", f"device_indexes names GPU {twice} twice: name each once.")
    if not config.enable_multi_gpu:
        return
    if config.node_rank >= config.num_nodes:
        message = (
            f"node_rank {config.node_rank} with num_nodes {config.num_nodes}: "
            f"machines are counted from 0; use 0 to {config.num_nodes - 1}."
        )
        yield Problem("node_rank", message)
    if config.num_nodes > 1 and config.master_addr in ("localhost", "127.0.0.1", "::1", ""):
        message = (
            f"master_addr {config.master_addr!r} with num_nodes {config.num_nodes}: "
            "the other machines can't find machine 0; write its address."
        )
        yield Problem("master_addr", message, blocking=False)
