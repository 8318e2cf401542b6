"""The kinds of maskers: what their models are told by, and what a person points with. Without torch.

A kind is a row here and a file of its name in `maskers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from modules.annotators import maskers
from modules.annotators.Masker import LocalMasker, Masker
from modules.config.errors import ModelFileError, UserError
from modules.config.model_index import read_json

CONFIG = "config.json"


@dataclass(frozen=True)
class MaskerKind:
    """name: of its file. label: for people. needs: what it has to be told with each image; "" for nothing. models:
    `model_type` in a config.json -> class of transformers; empty for ONNX files. example: a model on the Hub."""

    name: str
    label: str
    needs: Literal["", "prompt", "clicks"]
    models: Mapping[str, str] = field(default_factory=dict)
    example: str = ""

    def load(self, local: LocalMasker) -> Masker:
        """Raises UserError."""
        return import_module(f"{maskers.__name__}.{self.name}").MASKER(local)


KINDS = (
    MaskerKind(
        "clipseg", "CLIPSeg", "prompt", {"clipseg": "CLIPSegForImageSegmentation"}, "CIDAS/clipseg-rd64-refined"
    ),
    MaskerKind("sam", "SAM", "clicks", {"sam": "SamModel"}, "facebook/sam-vit-base"),
    MaskerKind(
        "sam2", "SAM 2", "clicks", {"sam2": "Sam2Model", "sam2_video": "Sam2Model"}, "facebook/sam2.1-hiera-tiny"
    ),
    MaskerKind("subject", "subject by an ONNX file", ""),
)
SUBJECT = KINDS[-1]


def masker_kind_in(folder: Path, name: str) -> MaskerKind:
    """The kind of the model in a folder, or of an ONNX file. name: as the user calls it, for messages.

    Raises UserError if it is none of KINDS, or if its files bring code of their own.
    """
    if folder.suffix.lower() == ".onnx":
        return SUBJECT
    try:
        config: Mapping[str, Any] = read_json(folder / CONFIG)
    except FileNotFoundError:
        config = {}
    except (ModelFileError, OSError) as error:
        raise UserError(f"--model {name!r}: its {CONFIG} can't be read: download the model again.") from error
    model_type = config.get("model_type")
    kind = next((kind for kind in KINDS if model_type in kind.models), None)
    if kind is None:
        examples = " or ".join(kind.example for kind in KINDS if kind.example)
        raise UserError(f"--model {name!r}: can't draw masks here: use an .onnx file, or a model such as {examples}.")
    return kind


def masker_class(kind: MaskerKind, folder: Path) -> str:
    """The class of transformers for a model in a folder; "" for an ONNX file."""
    return kind.models[read_json(folder / CONFIG)["model_type"]] if kind.models else ""
