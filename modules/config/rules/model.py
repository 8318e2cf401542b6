"""Rules of the base model, its family and the folders of a run."""

from collections.abc import Iterator

from modules.config.families import load_families
from modules.config.methods import facts_of
from modules.config.problems import Problem, set_to, switch_off
from modules.config.TrainConfig import TrainConfig


def base_problems(config: TrainConfig) -> Iterator[Problem]:
    if not config.model.base.strip():
        yield Problem("model.base", "model.base is empty: name the folder, Hub model or .safetensors file to train.")
    for path, folder in (("workspace_dir", config.workspace_dir), ("cache_dir", config.cache_dir)):
        if not folder.strip():
            yield Problem(path, f"{path} is empty: name a folder to write to.")


def family_problems(config: TrainConfig) -> Iterator[Problem]:
    """What the family can't do."""
    family = load_families()[config.family]
    if len(config.model.clip_skips) > 2 and family.skips_layers:
        skips = ", ".join(map(str, config.model.clip_skips))
        message = f"model.clip_skips {skips}: {family.label} has two CLIP text encoders; leave out what is too much."
        remedy = set_to("model.clip_skips", config.model.clip_skips[:2], "First two")
        yield Problem("model.clip_skips", message, remedy=remedy)
    if config.output.float8_denoiser and facts_of(config).trains_weights and not family.single_file:
        path = "output.float8_denoiser"
        message = f"{path}: {family.label} can't be saved as a single file, which alone holds float8; turn it off."
        yield Problem(path, message, remedy=switch_off(path))
    if config.method not in family.methods:
        message = f"method {config.method!r} can't train {family.label}: use {' or '.join(family.methods)}."
        yield Problem("method", message)
    trains_both = family.experts and (config.denoiser.expert == "both" or not facts_of(config).chooses_parts)
    if trains_both and config.enable_multi_gpu and config.ddp_static_graph:
        message = f"ddp_static_graph: a step of {family.label} may train one of its denoisers alone; turn it off."
        yield Problem("ddp_static_graph", message, remedy=switch_off("ddp_static_graph"))
