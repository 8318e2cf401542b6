"""Declaration of a setting: default, range, texts and every other fact about it, in one place."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

Group = Literal[
    "general", "model", "method", "data", "training", "optimizer", "multi_gpu", "sampling", "backup", "output"
]
Importance = Literal["basic", "advanced"]
VisibleWhen = Mapping[str, Sequence[Any]]
TextFormat = Literal["", "file", "folder", "file_or_folder", "long"]
Scope = Literal["run", "machine"]

STRICT = ConfigDict(validate_assignment=True, extra="forbid", allow_inf_nan=False)
"""The pydantic configuration of all settings: unknown names, invalid values and NaN are refused, also on assignment."""

MAX_SIDE = 16384  # pixels; no model takes or generates images this large, so a larger value is a typing error
MAX_FRAMES = 100_000  # of a clip, likewise

IntervalUnit = Literal["never", "steps", "minutes", "epochs"]
INTERVAL_LABELS = {"never": "Never", "steps": "Steps", "minutes": "Minutes", "epochs": "Epochs"}


def setting(
    default: Any = ...,
    *,
    label: str,
    help: str,
    group: Group,
    also_called: str = "",
    unit: str = "",
    choice_labels: Mapping[str, str] | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    importance: Importance = "basic",
    visible_when: VisibleWhen | None = None,
    default_factory: Callable[[], Any] | None = None,
    format: TextFormat = "",
    empty_means: str = "",
    part_name: str = "",
    scope: Scope = "run",
    kept_as: str = "",
    kept_while: Sequence[str] = (),
    in_crash_report: bool = False,
) -> Any:
    """A field of a settings dataclass.

    default: left out for a field without one; `default_factory` makes mutable defaults instead.
    label: a few words, as in a form. help: one or two plain sentences: what it does, and good values.
    also_called: other names of the setting, as people who know kohya's scripts, OneTrainer or diffusers search for it.
    unit: of the value, such as "pixels"; empty for a bare number.
    choice_labels: labels of the values of a Literal; a value without one is shown as it is.
    ge, gt, le, lt: the range.
    visible_when: path of another setting -> the values of it for which this one matters. All have to hold.
        A path that starts with a dot is relative to the same section (".unit"). Of "path or path" one has to have one
        of the values.
    format: of a text: a path to a file or folder, or a "long" text that takes several lines; "" for a short text.
    empty_means: the effect of leaving the setting empty, in one or two words, where "empty" does not say it.
    part_name: for a list of parts, what one part is called, such as "concept".
    scope: "run" if all machines of a run must agree on the value, "machine" if each may have its own.
    kept_as: for a setting about the user's own data, which is kept when a preset is applied: what a message calls it.
    kept_while: paths of other settings; the value is kept only while each of these is kept or the same in the preset.
    in_crash_report: whether a crash report includes the value. Never for text that a user wrote.
    Raises ValueError if a text is missing or a group is unknown.
    """
    if not label.strip() or not help.strip():
        raise ValueError("a setting needs a label and a help text")
    if group not in get_args(Group):
        raise ValueError(f"unknown group {group!r} of setting {label!r}")
    presentation: dict[str, Any] = {
        "label": label,
        "help": help,
        "also_called": also_called,
        "unit": unit,
        "group": group,
        "importance": importance,
        "choice_labels": dict(choice_labels or {}),
        "visible_when": {path: list(values) for path, values in (visible_when or {}).items()},
        "format": format,
        "empty_means": empty_means,
        "part_name": part_name,
        "scope": scope,
        "kept_as": kept_as,
        "kept_while": tuple(kept_while),
        "in_crash_report": in_crash_report,
    }
    limits = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    options: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
    options |= {"default_factory": default_factory} if default_factory is not None else {"default": default}
    return Field(**options, title=label, description=help, json_schema_extra=presentation)


def section(default_factory: Callable[[], Any], *, label: str, visible_when: VisibleWhen | None = None) -> Any:
    """A field that holds a section of the settings, which is a dataclass itself.

    visible_when: applies to every setting of the section, in addition to its own.
    """
    conditions = {path: list(values) for path, values in (visible_when or {}).items()}
    presentation: dict[str, Any] = {"label": label, "visible_when": conditions}
    # A lambda: pydantic reads the signature of a factory, and that of a dataclass is long.
    return Field(default_factory=lambda: default_factory(), title=label, json_schema_extra=presentation)


def _refuse_no_number(value: Any) -> Any:
    # In Python True equals 1, so `rank: true` would silently mean rank 1.
    if isinstance(value, bool):
        raise PydanticCustomError("bool_for_number", "true and false are no numbers")
    return value


def _refuse_huge(value: int) -> int:
    # Tensors and files hold 64 bits; Python can't even print some larger integers.
    if abs(value) >= 2**63:
        raise ValueError("a whole number of at most 18 digits")
    return value


def _refuse_surrogates(value: str) -> str:
    # Lone surrogates, from an undecodable file name or a JSON escape, can't be written to a settings file.
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("text of valid Unicode characters")
    return value


Str = Annotated[str, AfterValidator(_refuse_surrogates)]
Int = Annotated[int, BeforeValidator(_refuse_no_number), AfterValidator(_refuse_huge)]
Float = Annotated[float, BeforeValidator(_refuse_no_number)]
"""Accepts text such as "1e-4": YAML 1.1 reads an unquoted 1e-4 as text."""
