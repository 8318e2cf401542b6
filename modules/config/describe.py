"""The settings as data, for the window, the reference page and error messages."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from modules.config.TrainConfig import TrainConfig

SettingType = Literal["bool", "int", "float", "str", "choice", "list[int]", "list[float]", "list[str]", "list"]
NUMBER_LISTS: tuple[SettingType, ...] = ("list[int]", "list[float]")
PLAIN_LISTS: tuple[SettingType, ...] = (*NUMBER_LISTS, "list[str]")  # whose entries are no sections
AS_DECLARED = ("also_called", "format", "empty_means", "part_name", "scope", "kept_as", "kept_while", "in_crash_report")
SCALAR_TYPES: dict[type, SettingType] = {bool: "bool", int: "int", float: "float", str: "str"}


@dataclass(frozen=True)
class SettingInfo:
    """One setting.

    path: "optimizer.learning_rate"; "concepts[].path" for a setting of the parts in a list.
    type: "list" is a list of parts, whose settings follow under "path[]".
    optional: whether it may be empty (None).
    default: in a new config, or in a new part of a list.
    choices: the allowed values, as written in files. choice_labels: their labels.
    ge, gt, le, lt: the range; of each entry, if the setting is a list of numbers.
    section: label of the section it belongs to, empty at the top level.
    visible_when: path, or several paths as from `alternatives`, -> values for which the setting matters; all conditions
        have to hold.
    also_called, format, empty_means, part_name, scope, kept_as, kept_while, in_crash_report: as declared with
    `setting`.
    """

    path: str
    type: SettingType
    optional: bool
    default: Any
    choices: tuple[str, ...]
    choice_labels: dict[str, str] = field(hash=False)
    ge: float | None
    gt: float | None
    le: float | None
    lt: float | None
    label: str
    help: str
    unit: str
    group: str
    importance: str
    section: str
    visible_when: dict[str, list[Any]] = field(hash=False)
    also_called: str
    format: str
    empty_means: str
    part_name: str
    scope: str
    kept_as: str
    kept_while: tuple[str, ...]
    in_crash_report: bool


def walk_settings(cls: type = TrainConfig) -> list[SettingInfo]:
    """All settings of `cls` and its sections, in the order of declaration.

    Raises TypeError for a field without label and help, or of a type that a form can't show.
    """
    return list(_walk_part(cls, cls(), prefix="", section_label="", conditions={}))


@lru_cache(maxsize=1)
def settings_by_path() -> dict[str, SettingInfo]:
    """The settings of TrainConfig by path, in the order of `walk_settings`."""
    return {info.path: info for info in walk_settings()}


def part_paths(path: str, number: int) -> list[str]:
    """The settings of part `number` of the list at `path`: "concepts", 2 -> "concepts.2.name", "concepts.2.path" ..."""
    prefix = f"{path}[]."
    names = [name.removeprefix(prefix) for name in settings_by_path() if name.startswith(prefix)]
    return [f"{path}.{number}.{name}" for name in names]


def value_at(config: Any, path: str) -> Any:
    """The value at a path such as "optimizer.learning_rate" or "concepts.0.path"."""
    value = config
    for name in path.split("."):
        value = value[int(name)] if isinstance(value, list) else getattr(value, name)
    return value


def is_visible(info: SettingInfo, config: Any, item: Any = None) -> bool:
    """Whether a setting has any effect, given the values of the others.

    item: the part in question, for a setting of the parts in a list ("concepts[].path").
    """
    for paths, allowed in info.visible_when.items():
        if not any(_value_of(path, config, item) in allowed for path in alternatives(paths)):
            return False
    return True


def alternatives(paths: str) -> list[str]:
    """The paths of a condition in `visible_when`, of which one has to have one of the values."""
    return paths.split(" or ")


def _value_of(path: str, config: Any, item: Any) -> Any:
    _, in_list, name = path.partition("[].")
    return value_at(item, name) if in_list else value_at(config, path)


def range_text(info: SettingInfo) -> str:
    """The range in words, such as "at least 0 and below 1"; empty if there is none."""
    if info.ge is not None and info.le is not None:
        return f"{info.ge} to {info.le}" if info.ge != info.le else f"{info.ge}"
    low = f"at least {info.ge}" if info.ge is not None else f"above {info.gt}" if info.gt is not None else ""
    high = f"at most {info.le}" if info.le is not None else f"below {info.lt}" if info.lt is not None else ""
    return " and ".join(text for text in (low, high) if text)


def _walk_part(
    cls: Any, instance: Any, prefix: str, section_label: str, conditions: dict[str, list[Any]]
) -> Iterator[SettingInfo]:
    for name, declared in cls.__pydantic_fields__.items():
        path = prefix + name
        shown = declared.json_schema_extra or {}
        _require(shown, "label", path)
        visible_when = conditions | {_absolute(other, prefix): v for other, v in shown["visible_when"].items()}
        annotation, optional = _strip(declared.annotation)
        if dataclasses.is_dataclass(annotation):
            yield from _walk_part(annotation, getattr(instance, name), f"{path}.", shown["label"], visible_when)
            continue
        _require(shown, "help", path)
        info = _describe(path, declared, annotation, optional, getattr(instance, name), section_label, visible_when)
        yield info
        if info.type == "list":
            part = get_args(annotation)[0]
            yield from _walk_part(part, part(), f"{path}[].", shown["label"], visible_when)


def _describe(path, declared, annotation, optional, default, section_label, visible_when) -> SettingInfo:
    shown = declared.json_schema_extra
    metadata = list(declared.metadata)
    if get_origin(annotation) is list:
        metadata += getattr(get_args(annotation)[0], "__metadata__", ())
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    return SettingInfo(
        path=path,
        type=_type_name(annotation, path),
        optional=optional,
        default=default,
        choices=choices,
        choice_labels={choice: shown["choice_labels"].get(choice, choice) for choice in choices},
        ge=_limit(metadata, "ge"),
        gt=_limit(metadata, "gt"),
        le=_limit(metadata, "le"),
        lt=_limit(metadata, "lt"),
        label=shown["label"],
        help=shown["help"],
        unit=shown["unit"],
        group=shown["group"],
        importance=shown["importance"],
        section=section_label,
        visible_when=visible_when,
        **{name: shown[name] for name in AS_DECLARED},
    )


def _type_name(annotation: Any, path: str) -> SettingType:
    if get_origin(annotation) is Literal:
        return "choice"
    if annotation in SCALAR_TYPES:
        return SCALAR_TYPES[annotation]
    if get_origin(annotation) is list:
        entry, _ = _strip(get_args(annotation)[0])
        if dataclasses.is_dataclass(entry):
            return "list"
        if entry is int:
            return "list[int]"
        if entry is float:
            return "list[float]"
        if entry is str:
            return "list[str]"
    raise TypeError(f"setting {path} has the type {annotation}, which no form can show")


def _strip(annotation: Any) -> tuple[Any, bool]:
    """The type without Annotated and None, and whether None is allowed."""
    optional = False
    if get_origin(annotation) in (Union, UnionType):
        rest = [entry for entry in get_args(annotation) if entry is not NoneType]
        optional = len(rest) < len(get_args(annotation))
        annotation = rest[0] if len(rest) == 1 else annotation
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation, optional


def _limit(metadata: list[Any], name: str) -> float | None:
    # A plain field has annotated_types.Ge and the like; in the entries of a list they are wrapped in a FieldInfo.
    for entry in metadata:
        for constraint in (entry, *getattr(entry, "metadata", ())):
            if hasattr(constraint, name):
                return getattr(constraint, name)
    return None


def _absolute(path: str, prefix: str) -> str:
    return " or ".join(prefix + one[1:] if one.startswith(".") else one for one in alternatives(path))


def _require(shown: dict, text: str, path: str) -> None:
    if not shown.get(text):
        raise TypeError(f"setting {path} has no {text}: declare it with setting() or section()")
