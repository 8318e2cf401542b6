"""The names of a component's layers in the LoRA files of ComfyUI and kohya's scripts, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LayerNames:
    """prefix: before each name. flat: whether underscores take the place of the dots in a name.

    names: path in diffusers -> name, both with {} for the number of the block; {} if all names are those of diffusers.
    fused: paths of layers -> the name of the one layer that they are in such a file, in the order of its outputs.
    also: further names that are read and never written -> the path, or the paths that such a layer is the fusion of.
    swapped: paths of layers whose outputs are in two halves, of which the second comes first in such a file.
    folds_alpha: whether layers are called `lora_A` and `lora_B` and have no alpha, which is multiplied into the second.
    """

    prefix: str
    flat: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    fused: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    also: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    swapped: tuple[str, ...] = ()
    folds_alpha: bool = False


# as ComfyUI reads them for models that it names as diffusers does
DIFFUSERS_NAMES = LayerNames("diffusion_model.")
DIFFUSERS_NAMES_WITHOUT_ALPHA = LayerNames("diffusion_model.", folds_alpha=True)
# as ComfyUI reads diffusers' own files, of which it does not find the alpha
DIFFUSERS_FILE_WITHOUT_ALPHA = LayerNames("transformer.", folds_alpha=True)
