"""The tools for LoRAs and models: what each asks for, and the command of its script. No Tk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from modules.config.families import load_families
from modules.ui.models.ScriptRun import ScriptRun

Kind = Literal["model", "file", "folder", "target", "number", "choice", "switch", "loras"]
Value = str | bool | Sequence[tuple[str, str]]

SAME = "As in the source"
DETECTED = "Detected"
DTYPES = {SAME: "", "float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}


@dataclass(frozen=True)
class ToolField:
    """One thing that a tool asks for.

    option: of the script; "" for an argument without a name. kind: a "model" is a folder or file; "loras" are pairs of
    a file and its strength, as they were typed. empty: what leaving it empty does; "": it can't be left empty.
    choices: label -> value.
    """

    name: str
    label: str
    kind: Kind
    option: str = ""
    empty: str = ""
    choices: Mapping[str, str] | None = None


@dataclass(frozen=True)
class ModelTool:
    """A script with a command of its own, if it has several. fields: arguments without a name come first, in order."""

    label: str
    help: str
    doing: str
    script: str
    fields: tuple[ToolField, ...]
    command: str = ""


def _families() -> dict[str, str]:
    return {DETECTED: "", **{info.label: name for name, info in load_families().items()}}


_TARGET = ToolField("target", "Save as", "target")
_DTYPE = ToolField("dtype", "Precision", "choice", "--dtype", choices=DTYPES)
_LORAS = ToolField("loras", "LoRAs", "loras", "--lora")
_CONFIG = ToolField(
    "config", "Diffusers config folder", "folder", "--config", "only single files need it, when offline"
)
_FAMILY = ToolField("family", "Model family", "choice", "--family", choices=_families())

TOOLS: tuple[ModelTool, ...] = (
    ModelTool(
        "Merge into a model",
        "Adds LoRAs to the weights of a model, each with its strength.",
        "Merging",
        "lora.py",
        (ToolField("base", "Model", "model"), _TARGET, _LORAS, _DTYPE, _CONFIG),
        "merge",
    ),
    ModelTool(
        "Combine LoRAs",
        "Makes one LoRA that does what several do together.",
        "Combining",
        "lora.py",
        (_TARGET, _LORAS, ToolField("rank", "Rank", "number", "--rank", "exact, as large as all"), _FAMILY, _DTYPE),
        "combine",
    ),
    ModelTool(
        "Resize a LoRA",
        "Approximates a LoRA at a lower rank, by SVD.",
        "Resizing",
        "lora.py",
        (
            ToolField("source", "LoRA", "file"),
            _TARGET,
            ToolField("rank", "Max rank", "number", "--rank", "as in the source"),
            ToolField("keep", "Share to keep", "number", "--keep", "all of each layer's squared norm"),
            _FAMILY,
            _DTYPE,
        ),
        "resize",
    ),
    ModelTool(
        "Extract a LoRA",
        "Makes a LoRA of what a fine-tuned model adds to its base model, by SVD.",
        "Extracting",
        "lora.py",
        (
            ToolField("base", "Base model", "folder"),
            ToolField("tuned", "Fine-tuned model", "folder"),
            _TARGET,
            ToolField("rank", "Rank", "number", "--rank"),
            ToolField("kohya", "For ComfyUI and A1111", "switch", "--kohya"),
            _DTYPE,
        ),
        "extract",
    ),
    ModelTool(
        "Convert",
        "Turns a diffusers folder into a single file, such a file into a folder, or a LoRA into the other format.",
        "Converting",
        "convert.py",
        (ToolField("source", "Model or LoRA", "model"), _TARGET, _FAMILY, _DTYPE, _CONFIG),
    ),
)


def tool_options(tool: ModelTool, values: Mapping[str, Value]) -> list[str]:
    """The command line of a tool. values: by the names of its fields; a missing one is empty.

    Raises ValueError, with a sentence, if something is missing or no number.
    """
    named: list[str] = []
    plain: list[str] = []
    for field in tool.fields:
        value = values.get(field.name, "")
        if field.kind == "loras":
            named += _lora_options(field, [] if isinstance(value, str | bool) else value)
        elif field.kind == "switch":
            named += [field.option] if value is True else []
        else:
            text = str(value).strip()
            if field.kind == "choice":
                text = (field.choices or {}).get(text, "")
            elif field.kind == "number" and text:
                _check_number(field.label, text)
            if not text and not field.empty and field.kind != "choice":
                raise ValueError(f"{field.label} is empty: fill it in.")
            if text and field.option:
                named += [field.option, text]
            elif text:
                plain.append(text)
    return [*([tool.command] if tool.command else []), *named, "--", *plain]


def tool_run(tool: ModelTool, options: Sequence[str]) -> ScriptRun:
    """The run of a tool; its output are the paths that it has written."""
    return ScriptRun(tool.script, None, options, exit_codes=(0,))


def with_labels_of(tool: ModelTool, text: str) -> str:
    """A message of the script, with the fields' labels in place of its options."""
    for field in tool.fields:
        if field.option:
            text = text.replace(field.option, field.label)
    return text


def _lora_options(field: ToolField, rows: Sequence[tuple[str, str]]) -> list[str]:
    options = []
    for path, strength in rows:
        path, strength = path.strip(), strength.strip()
        if not path:
            continue
        if strength:
            _check_number("Strength", strength)
        options += [field.option, f"{path}:{strength}" if strength else path]
    if not options:
        raise ValueError("LoRAs is empty: choose a file.")
    return options


def _check_number(label: str, text: str) -> None:
    try:
        float(text)
    except ValueError as error:
        raise ValueError(f"{label} {text!r} is not a number: change it.") from error
