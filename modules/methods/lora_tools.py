"""Makes new files of LoRAs: merged into a model, several as one, at another rank, or taken from a fine-tuned model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from modules.config.ModelConfig import ModelConfig
from modules.families.registry import FAMILIES, family_of
from modules.methods.layers import preset_layers
from modules.weights.BaseModel import BaseModel
from modules.weights.convert import check_free, check_suffix, family_of_lora, torch_dtype, usual_dtype
from modules.weights.embedding_files import BUNDLE, bundled_names
from modules.weights.errors import WeightsError
from modules.weights.inspect import inspect_base
from modules.weights.load_pipeline import load_pipeline
from modules.weights.lora_layers import (
    ADAPTER_METADATA,
    Layers,
    adapter_metadata,
    diffusers_tensors,
    is_diffusers,
    is_kohya,
    kohya_tensors,
    with_dtype,
)
from modules.weights.lora_math import approximated, combined, resized
from modules.weights.lora_reading import read_layers
from modules.weights.LoraSource import EXPERT, LoraSource
from modules.weights.model_files import save_folder
from modules.weights.safe import load_tensors, read_header, save_tensors, tensor_shapes
from modules.weights.single_file import save_single_file

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor

    from modules.families.Family import Family

_UNCHANGED = 1e-6  # of the weight's norm: a layer that differs by less is left out
_RANK_FIELDS = ("ss_network_dim", "ss_network_alpha", "ss_network_args")  # of metadata, wrong at another rank


def merge_into_model(
    base: str,
    loras: Mapping[str, float],
    target: Path,
    dtype: str = "",
    config_folder: str = "",
    note: Callable[[str], None] = lambda text: None,
) -> Path:
    """Writes a model with LoRAs added to its weights; a single file if `target` ends in .safetensors, else a folder.

    base: a diffusers folder, Hub id or single file. loras: file -> strength. dtype: to save in; "" for that of most of
    the base. config_folder, note: as in `load_pipeline`.
    Raises WeightsError if a file can't be used or the family has no single-file layout.
    """
    import torch

    check_free(target)
    to_file = target.suffix == ".safetensors"
    info = inspect_base(base)
    family = family_of(info.index)
    if to_file and (family is None or family.single_file is None):
        raise WeightsError(f"'{target}': {info.detail} can't be written as a single file; name a folder.")
    if to_file and (words := _words(map(LoraSource, loras))):
        raise WeightsError(
            f"'{target}': a single file has no place for the word {bundled_names(words)[0]!r}; name a folder."
        )
    name = dtype or (usual_dtype(base) if info.kind != "hub" else "float32")
    pipe = load_pipeline(base, loras, torch.device("cpu"), config_folder, dtype=name, note=note, with_unused=True)
    _merge(pipe)
    if to_file:
        assert family is not None  # checked above
        save_single_file(target, family, pipe.components, torch_dtype(name), {"family": family.name})
    else:
        save_folder(pipe, target, torch_dtype(name), family.exact_components if family else ())
    return target


def combine(
    loras: Sequence[tuple[Path, float]],
    target: Path,
    rank: int | None = None,
    family: str = "",
    dtype: str = "",
    note: Callable[[str], None] = lambda text: None,
) -> Path:
    """Writes one LoRA that does what all of them do together, in the format of the first one.

    loras: (file, strength). rank: of the result, approximated by SVD; None: the sum of theirs, which is exact.
    family: of LoRAs that don't tell. dtype: to save in; "" for that of the first. note: as in `read_layers`.
    """
    check_free(target)
    check_suffix(target)
    files = [LoraSource(path) for path, _ in loras]
    families = [family_of_lora(file, family, FAMILIES) for file in files]
    for file, other in zip(files, families, strict=True):
        if other is not families[0]:
            raise WeightsError(f"'{file.path}': is a LoRA for {other.name}; choose one for {families[0].name}.")
    strengths = [strength for _, strength in loras]
    read = [read_layers(file, families[0], note=note) for file in files]
    layers = combined(list(zip(read, strengths, strict=True)))
    if rank is not None:
        layers = resized(layers, rank)
    return _save_like(files[0], target, layers, families[0], dtype, {}, _words(files))


def resize(
    source: Path,
    target: Path,
    rank: int | None = None,
    share: float = 1.0,
    family: str = "",
    dtype: str = "",
    note: Callable[[str], None] = lambda text: None,
) -> Path:
    """Writes the best approximation of a LoRA at a lower rank, in its format; see `resized` for rank and share.

    note: as in `read_layers`.
    """
    check_free(target)
    check_suffix(target)
    file = LoraSource(source)
    known = family_of_lora(file, family, FAMILIES)
    layers = resized(read_layers(file, known, note=note), rank, share)
    dropped = (*_RANK_FIELDS, ADAPTER_METADATA, EXPERT, "format")
    metadata = {name: text for name, text in file.metadata.items() if name not in dropped}
    return _save_like(file, target, layers, known, dtype, metadata, _words([file]))


def extract(base: str, tuned: str, target: Path, rank: int, as_kohya: bool = False, dtype: str = "") -> list[Path]:
    """Writes what a fine-tuned model adds to the weights of its base as a LoRA, approximated by SVD.

    base, tuned: diffusers folders. dtype: to save in; "" for that of most of the tuned model.
    Returns the files: a model with several experts gives one for each. Raises WeightsError if the models can't be
    compared, or are the same.
    """
    check_free(target)
    check_suffix(target)
    family = _comparable(base, tuned)
    folders = [Path(folder).expanduser() for folder in (base, tuned)]
    layers: Layers = {}
    for component, path, difference in _differences(family, *folders):
        layers.setdefault(component, {})[path] = approximated(difference, rank)
    if not layers:
        raise WeightsError(f"'{tuned}': has the same weights as {base}; choose a model that was trained from it.")
    written = []
    for expert in family.denoisers[1:]:
        if expert in layers:
            file = target.with_name(f"{target.stem}_{expert}{target.suffix}")
            check_free(file)
            own = {expert: layers.pop(expert)}
            written.append(_save(file, own, family, as_kohya, dtype or usual_dtype(tuned), {}))
    if layers:
        written.insert(0, _save(target, layers, family, as_kohya, dtype or usual_dtype(tuned), {}))
    return written


def _merge(pipe: DiffusionPipeline) -> None:
    """Adds the active adapters to the weights and removes them."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from torch import nn

    for module in pipe.components.values():
        if not isinstance(module, nn.Module):
            continue
        adapted = {name: layer for name, layer in module.named_modules() if isinstance(layer, BaseTunerLayer)}
        for name, layer in reversed(adapted.items()):  # an adapter inside of another one first, as it is applied
            layer.merge()
            parent, _, last = name.rpartition(".")
            setattr(module.get_submodule(parent), last, layer.get_base_layer())
        if adapted:
            del module.peft_config
            vars(module)["_hf_peft_config_loaded"] = False  # else it would be saved with adapters


def _save_like(
    source: LoraSource,
    target: Path,
    layers: Layers,
    family: Family,
    dtype: str,
    metadata: Mapping[str, str],
    words: Mapping[str, Tensor],
) -> Path:
    """Writes layers in the format of `source`, and by default in its dtype.

    In diffusers' format where the source is in ComfyUI's, and that has no names for all of the layers.
    """
    names, dtype = source.shapes, dtype or usual_dtype(str(source.path))
    if family.layer_names and not is_diffusers(names, family):
        with suppress(WeightsError):
            return _save(target, layers, family, True, dtype, metadata)
    as_kohya = is_kohya(names) and not family.layer_names
    if words and not as_kohya:
        raise WeightsError(
            f"'{source.path}': is in diffusers' format, which can't hold words, such as "
            f"{bundled_names(words)[0]!r} of another file; name one in kohya's format first."
        )
    return _save(target, layers, family, as_kohya, dtype, metadata, words)


def _words(sources: Iterable[LoraSource]) -> dict[str, Tensor]:
    """The tensors of the words that LoRA files hold, by name. Raises WeightsError if two files hold the same."""
    words: dict[str, Tensor] = {}
    for source in sources:
        names = [name for name in source.shapes if name.startswith(BUNDLE)]
        if known := sorted(words.keys() & set(names)):
            raise WeightsError(f"'{source.path}': has {known[0]!r} like another file; leave one of them out.")
        words |= {name: source.tensors[name] for name in names}
    return words


def _save(
    target: Path,
    layers: Layers,
    family: Family,
    as_kohya: bool,
    dtype: str,
    metadata: Mapping[str, str],
    words: Mapping[str, Tensor] | None = None,
) -> Path:
    further = [name for name in family.denoisers[1:] if name in layers]
    if further:
        (expert,) = further
        if len(layers) > 1:
            raise WeightsError(f"'{target}': a file has the LoRA of one expert; combine those of each expert alone.")
        layers, metadata = {family.denoisers[0]: layers[expert]}, {**metadata, EXPERT: expert}
    if as_kohya:
        tensors = kohya_tensors(layers, family)
    else:
        tensors = diffusers_tensors(layers)
        metadata = {**metadata, ADAPTER_METADATA: adapter_metadata(layers)}
    target.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(target, {**with_dtype(tensors, torch_dtype(dtype)), **(words or {})}, metadata)
    return target


def _comparable(base: str, tuned: str) -> Family:
    infos = [inspect_base(folder) for folder in (base, tuned)]
    for folder, info in zip((base, tuned), infos, strict=True):
        if info.kind != "folder":
            raise WeightsError(f"'{folder}': is not a diffusers folder; convert it to one first.")
    families = [family_of(info.index) for info in infos]
    family = families[0]
    if family is None or not family.lora_targets:
        raise WeightsError(f"'{base}': is {infos[0].detail}, for which there are no LoRAs; choose another model.")
    if families[1] is not family:
        raise WeightsError(f"'{tuned}': is {infos[1].detail}; choose {infos[0].detail}, as the base is.")
    return family


def _differences(family: Family, base: Path, tuned: Path) -> Iterator[tuple[str, str, Tensor]]:
    """(component, path of a layer in diffusers' format, its difference), one at a time, of layers that differ."""
    import torch

    model = BaseModel(family, ModelConfig(base=str(base)), torch.device("cpu"))
    for component in family.lora_targets:
        module = model.meta_module(component)
        files = [_files_by_tensor(folder / component) for folder in (base, tuned)]
        # transformers 5 dropped a level of this class's names, which LoRAs and the files of other programs have
        level = "text_model." if type(module).__name__ == "CLIPTextModel" else ""
        for path in preset_layers(family, component, module, "linear_conv"):
            full = f"{level}{path.removeprefix(level)}"
            before, after = (_weight(of_folder, {path, full}) for of_folder in files)
            if before is None or after is None or before.shape != after.shape:
                where = f"'{tuned}': its '{component}.{path}'"
                raise WeightsError(f"{where} does not fit the base; choose a model that was trained from {base}.")
            difference = after - before
            if not difference.isfinite().all():
                at_fault = tuned if before.isfinite().all() else base
                raise WeightsError(
                    f"'{at_fault}': the weight of its '{component}.{path}' holds NaN or infinity; choose an intact "
                    "model."
                )
            if difference.norm() > _UNCHANGED * before.norm():
                yield component, full, difference


def _weight(files: Mapping[str, Path], layers: Iterable[str]) -> Tensor | None:
    """The weight of the layer, which has one of these names, in float32; None if there is none."""
    names = [name for layer in layers if (name := f"{layer}.weight") in files]
    return load_tensors(files[names[0]], names[:1])[names[0]].float() if names else None


def _files_by_tensor(folder: Path) -> dict[str, Path]:
    return {name: file for file in sorted(folder.glob("*.safetensors")) for name in tensor_shapes(read_header(file))}
