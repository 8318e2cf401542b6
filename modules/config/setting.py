"""How a setting is declared: value, range and everything a window or a reference page shows of it, in one place."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

Group = Literal[
    "general", "model", "method", "data", "training", "optimizer", "multi_gpu", "sampling", "backup", "output"
]
Importance = Literal["basic", "advanced"]
VisibleWhen = Mapping[str, Sequence[Any]]

STRICT = ConfigDict(validate_assignment=True, extra="forbid", allow_inf_nan=False)
"""Of every dataclass of settings: misspelt names, wrong values and NaN are refused, also on assignment."""

IntervalUnit = Literal["never", "steps", "minutes", "epochs"]
INTERVAL_LABELS = {"never": "Never", "steps": "Steps", "minutes": "Minutes", "epochs": "Epochs"}


def setting(
    default: Any = ...,
    *,
    label: str,
    help: str,
    group: Group,
    unit: str = "",
    choice_labels: Mapping[str, str] | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    importance: Importance = "basic",
    visible_when: VisibleWhen | None = None,
    default_factory: Callable[[], Any] | None = None,
) -> Any:
    """A field of a settings dataclass.

    default: left out for a field without one; `default_factory` makes mutable defaults instead.
    label: a few words, as in a form. help: one or two plain sentences: what it does and good values.
    unit: of the value, such as "pixels"; empty for a bare number.
    choice_labels: words for the values of a Literal; a value left out is shown as it is.
    ge, gt, le, lt: the range.
    visible_when: path of another setting -> values of it with which this one matters. All have to hold.
        A path that starts with a dot names a setting of the same part (".unit").
    Raises ValueError if a text is missing or a group is unknown.
    """
    if not label.strip() or not help.strip():
        raise ValueError("a setting needs a label and a help text")
    if group not in get_args(Group):
        raise ValueError(f"unknown group {group!r} of setting {label!r}")
    presentation: dict[str, Any] = {
        "label": label,
        "help": help,
        "unit": unit,
        "group": group,
        "importance": importance,
        "choice_labels": dict(choice_labels or {}),
        "visible_when": {path: list(values) for path, values in (visible_when or {}).items()},
    }
    limits = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    options: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
    options |= {"default_factory": default_factory} if default_factory is not None else {"default": default}
    return Field(**options, title=label, description=help, json_schema_extra=presentation)


def section(default_factory: Callable[[], Any], *, label: str, visible_when: VisibleWhen | None = None) -> Any:
    """A field that holds a part of the settings, a dataclass of its own.

    visible_when: holds for every setting of the part, beside their own.
    """
    conditions = {path: list(values) for path, values in (visible_when or {}).items()}
    presentation: dict[str, Any] = {"label": label, "visible_when": conditions}
    return Field(default_factory=default_factory, title=label, json_schema_extra=presentation)


def _refuse_no_number(value: Any) -> Any:
    # To Python True is 1, so `rank: true` would silently mean rank 1.
    if isinstance(value, bool):
        raise PydanticCustomError("bool_for_number", "true and false are no numbers")
    return value


def _refuse_huge(value: int) -> int:
    # 64 bits are what tensors and files hold; Python can't even print some larger ones.
    if abs(value) >= 2**63:
        raise ValueError("a whole number of at most 18 digits")
    return value


def _refuse_surrogates(value: str) -> str:
    # Half of a character, from a file name with broken bytes or a JSON escape: no settings file can hold it.
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError("text of valid Unicode characters")
    return value


Str = Annotated[str, AfterValidator(_refuse_surrogates)]
Int = Annotated[int, BeforeValidator(_refuse_no_number), AfterValidator(_refuse_huge)]
Float = Annotated[float, BeforeValidator(_refuse_no_number)]
"""Text such as "1e-4" is read as a number: that is what YAML 1.1 makes of an unquoted 1e-4."""
