"""The kinds of captioners: what their models are told by, what they can be asked for. Without torch.

A kind is a row here and a file of its name in `kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from modules.annotators import kinds
from modules.annotators.Captioner import Captioner, CaptionOptions
from modules.config.errors import ModelFileError, UserError
from modules.config.model_index import read_json

CONFIG = "config.json"
TAG_LIST = "selected_tags.csv"
TAGGER_MODEL = "model.onnx"
STYLES = ("long", "short", "tags", "subject")


@dataclass(frozen=True)
class CaptionerKind:
    """What is known of a kind before its libraries are imported.

    name: of its file. label: for people. styles: those that it can write in, its default first. takes_prompt: whether
    it can be told what to write. models: `model_type` in a config.json -> class of transformers; empty for those that
    transformers doesn't load. processor: the class of transformers that prepares images and texts. takes_frames:
    whether it sees several frames of a clip together. has_thresholds: whether it finds a probability for each tag, and
    writes those from `general_threshold` and `character_threshold` on. example: a model on the Hub.
    """

    name: str
    label: str
    styles: tuple[str, ...]
    takes_prompt: bool = True
    models: Mapping[str, str] = field(default_factory=dict)
    processor: str = ""
    takes_frames: bool = False
    has_thresholds: bool = False
    example: str = ""

    def load(self, *arguments: Any) -> Captioner:
        """The captioner, of the arguments that its file takes. Raises UserError."""
        if self.models:
            from modules.annotators.safe_loading import import_transformers

            import_transformers()  # before the file does
        return import_module(f"{kinds.__name__}.{self.name}").CAPTIONER(*arguments)


KINDS = (
    CaptionerKind(
        "qwen_vl",
        "Qwen3-VL",
        STYLES,
        models={"qwen3_vl": "Qwen3VLForConditionalGeneration"},
        processor="Qwen3VLProcessor",
        takes_frames=True,
        example="Qwen/Qwen3-VL-4B-Instruct",
    ),
    CaptionerKind(
        "llava",
        "LLaVA (JoyCaption)",
        STYLES,
        models={"llava": "LlavaForConditionalGeneration"},
        processor="LlavaProcessor",
        example="fancyfeast/llama-joycaption-beta-one-hf-llava",
    ),
    CaptionerKind(
        "florence2",
        "Florence-2",
        ("long", "short"),
        takes_prompt=False,
        models={"florence2": "Florence2ForConditionalGeneration"},
        processor="Florence2Processor",
        example="florence-community/Florence-2-large",
    ),
    CaptionerKind(
        "blip2",
        "BLIP-2",
        ("short",),
        models={"blip-2": "Blip2ForConditionalGeneration"},
        processor="Blip2Processor",
        example="Salesforce/blip2-opt-2.7b",
    ),
    CaptionerKind(
        "wd_tagger",
        "WD tagger",
        ("tags",),
        takes_prompt=False,
        has_thresholds=True,
        example="SmilingWolf/wd-eva02-large-tagger-v3",
    ),
)
SERVER = CaptionerKind("chat_server", "server", STYLES, takes_frames=True)
"""Not told by files: whatever answers in OpenAI's chat form at an address."""
TAGGER = next(kind for kind in KINDS if kind.name == "wd_tagger")


def kind_in(folder: Path, name: str) -> CaptionerKind:
    """The kind of the model in a folder. name: as the user calls it, for messages.

    Raises UserError if it is none of KINDS, or if its files bring code of their own.
    """
    if (folder / TAG_LIST).is_file():
        return TAGGER
    try:
        config = read_json(folder / CONFIG)
    except FileNotFoundError:
        raise UserError(f"--model {name!r}: has no {CONFIG} and no {TAG_LIST}: {_examples()}.") from None
    except (ModelFileError, OSError) as error:
        raise UserError(f"--model {name!r}: its {CONFIG} can't be read: download the model again.") from error
    model_type = config.get("model_type")
    kind = next((kind for kind in KINDS if model_type in kind.models), None)
    if "auto_map" in config:
        instead = f"use {kind.example}" if kind else _examples()
        raise UserError(f"--model {name!r}: asks to run code of its own, which is never done: {instead}.")
    if kind is None:
        shown = f"is a {model_type!r}, which" if isinstance(model_type, str) else "is of a kind that"
        raise UserError(f"--model {name!r}: {shown} can't write captions here: {_examples()}.")
    return kind


def model_class(kind: CaptionerKind, folder: Path) -> str:
    """The class of transformers for a model in a folder that `kind_in` has found to be of that kind."""
    return kind.models[read_json(folder / CONFIG)["model_type"]]


def check_options(kind: CaptionerKind, options: CaptionOptions) -> None:
    """Raises UserError, naming the option of the scripts, if the kind can't do what is wanted."""
    if options.prompt and not kind.takes_prompt:
        raise UserError(f"--prompt: {kind.label} takes no instructions; leave it out, or choose another model.")
    style = options.style
    if style and style not in kind.styles:
        able = ", ".join(other.label for other in (*KINDS, SERVER) if style in other.styles)
        raise UserError(
            f"--style {style}: {kind.label} only writes {' or '.join(kind.styles)}; choose one of these, or one of "
            f"{able}."
        )
    if (style == "subject") != bool(options.name):
        raise UserError("--style subject and --name belong together: give both, such as --style subject --name ohwx.")


def _examples() -> str:
    return "use a model such as " + " or ".join(kind.example for kind in KINDS)
