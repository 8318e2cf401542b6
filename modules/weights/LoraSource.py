"""A LoRA file, opened once: what it says of itself, its tensors by layer, and what else it holds. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from modules.weights.embedding_files import BUNDLE
from modules.weights.safe import METADATA, load_finite, read_header, tensor_shapes

if TYPE_CHECKING:
    from torch import Tensor

# Ending of a tensor's name -> its kind.
ENDINGS = {
    ".lora_A.weight": "down",
    ".lora_B.weight": "up",
    ".lora_A.default.weight": "down",  # as PEFT names them in a model
    ".lora_B.default.weight": "up",
    ".lora_A": "down",  # in the files of Mochi's makers, whose alphas ComfyUI takes to be the ranks
    ".lora_B": "up",
    ".lora_down.weight": "down",
    ".lora_up.weight": "up",
    ".lora.down.weight": "down",
    ".lora.up.weight": "up",
    ".alpha": "alpha",
    ".dora_scale": "magnitude",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
}
DIFFERENCES = (".diff", ".diff_b", ".bias")  # endings in files of other programs, of what is added to norms and biases
NORM_PARTS = ("w_norm", "b_norm")  # of the adapters of norm layers, which norm_layers.py describes
EXPERT = "denoiser"  # the metadata key that names the expert of a file


class LoraSource:
    """Raises WeightsError, starting with the path, if the file can't be read.

    path, metadata, shapes: of all tensors by name.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        header = read_header(path)
        self.metadata: Mapping[str, str] = header[METADATA]
        self.shapes = tensor_shapes(header)

    @property
    def expert(self) -> str | None:
        """The denoiser whose file it is, where each has its own and all name the first."""
        return self.metadata.get(EXPERT)

    @cached_property
    def layers(self) -> dict[str, dict[str, str]]:
        """Name of a layer in the file -> kind -> the name of its tensor."""
        layers: dict[str, dict[str, str]] = {}
        for name in self.shapes:
            ending = ending_of(name)
            if ending:
                layers.setdefault(name.removesuffix(ending), {})[ENDINGS[ending]] = name
        return layers

    @cached_property
    def others(self) -> list[str]:
        """The names of tensors that are of no LoRA, and not of words that were trained with it."""
        return [name for name in self.shapes if not ending_of(name) and not name.startswith(BUNDLE)]

    @cached_property
    def norms(self) -> list[str]:
        return [name for name in self.others if is_of_norm(name)]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Raises WeightsError if one holds NaN or infinity."""
        return load_finite(self.path)

    def changes(self) -> list[str]:
        """The names of tensors that are added to norms and biases, and are not all zero, as in many extracted LoRAs."""
        return [name for name in self.others if name.endswith(DIFFERENCES) and self.tensors[name].any()]


def ending_of(name: str) -> str | None:
    """The ending of ENDINGS that the name of a tensor has."""
    return next((ending for ending in ENDINGS if name.endswith(ending)), None)


def is_of_norm(name: str) -> bool:
    """Whether a tensor of this name in a file is an adapter of a norm layer."""
    return name.rpartition(".")[2] in NORM_PARTS
