"""The settings as data: what a window, a reference page and an error message need to know of each."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from modules.config.TrainConfig import TrainConfig

SettingType = Literal["bool", "int", "float", "str", "choice", "list[int]", "list"]
SCALAR_TYPES: dict[type, SettingType] = {bool: "bool", int: "int", float: "float", str: "str"}


@dataclass(frozen=True)
class SettingInfo:
    """One setting.

    path: "optimizer.learning_rate"; "concepts[].path" for a setting of the parts in a list.
    type: "list" is a list of parts, whose settings follow under "path[]".
    optional: whether it may be empty (None).
    default: in a config nobody touched, or in a new part of a list.
    choices: the values allowed, as written in files; choice_labels: the words for each.
    ge, gt, le, lt: the range; of every entry, if the setting is a list of numbers.
    section: label of the part it belongs to, empty at the top.
    visible_when: path -> values with which the setting matters; all have to hold.
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


def walk_settings(cls: type = TrainConfig) -> list[SettingInfo]:
    """All settings of `cls` and its parts, in the order they are declared.

    Raises TypeError for a field without label and help, or of a type no form could show.
    """
    return list(_walk_part(cls, cls(), prefix="", section_label="", conditions={}))


@lru_cache(maxsize=1)
def settings_by_path() -> dict[str, SettingInfo]:
    """The settings of TrainConfig under their paths, as in `walk_settings`."""
    return {info.path: info for info in walk_settings()}


def value_at(config: Any, path: str) -> Any:
    """The value at a path such as "optimizer.learning_rate" or "concepts.0.path"."""
    value = config
    for name in path.split("."):
        value = value[int(name)] if isinstance(value, list) else getattr(value, name)
    return value


def is_visible(info: SettingInfo, config: Any, item: Any = None) -> bool:
    """Whether a setting matters, given the values of the others.

    item: the part in question, for a setting of the parts in a list ("concepts[].path").
    """
    for path, allowed in info.visible_when.items():
        _, in_list, name = path.partition("[].")
        value = value_at(item, name) if in_list else value_at(config, path)
        if value not in allowed:
            return False
    return True


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
        **{limit: _limit(metadata, limit) for limit in ("ge", "gt", "le", "lt")},
        label=shown["label"],
        help=shown["help"],
        unit=shown["unit"],
        group=shown["group"],
        importance=shown["importance"],
        section=section_label,
        visible_when=visible_when,
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
    raise TypeError(f"setting {path} has the type {annotation}, which no form can show")


def _strip(annotation: Any) -> tuple[Any, bool]:
    """The type without Annotated and None, and whether None was allowed."""
    optional = False
    if get_origin(annotation) in (Union, UnionType):
        rest = [entry for entry in get_args(annotation) if entry is not NoneType]
        optional = len(rest) < len(get_args(annotation))
        annotation = rest[0] if len(rest) == 1 else annotation
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation, optional


def _limit(metadata: list[Any], name: str) -> float | None:
    # A plain field holds annotated_types.Ge and the like; the entries of a list hold a FieldInfo around them.
    for entry in metadata:
        for constraint in (entry, *getattr(entry, "metadata", ())):
            if hasattr(constraint, name):
                return getattr(constraint, name)
    return None


def _absolute(path: str, prefix: str) -> str:
    return prefix + path[1:] if path.startswith(".") else path


def _require(shown: dict, text: str, path: str) -> None:
    if not shown.get(text):
        raise TypeError(f"setting {path} has no {text}: declare it with setting() or section()")
