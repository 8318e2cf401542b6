"""Write docs/settings.md from the settings' declarations, or check that it is up to date.

python scripts/config_reference.py --write
python scripts/config_reference.py --check
"""

import functools
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.config.describe import SettingInfo, alternatives, range_text, walk_settings  # noqa: E402
from modules.config.families import (  # noqa: E402
    families_taking,
    families_taking_clips,
    families_taking_images,
    families_with,
    load_families,
)
from modules.config.other_programs import foreign_names  # noqa: E402
from modules.config.TextEncoderConfig import SEVERAL, TEXT_TRAINS  # noqa: E402
from scripts.generated_file import write_or_check  # noqa: E402

PAGE = ROOT / "docs" / "settings.md"
GROUP_TITLES = {
    "general": "General",
    "model": "Model",
    "method": "Training method",
    "data": "Data",
    "training": "Training",
    "optimizer": "Optimizer and schedule",
    "multi_gpu": "Multi-GPU",
    "sampling": "Sampling",
    "backup": "Backup",
    "output": "Output",
}
TYPE_WORDS = {
    "bool": "true or false",
    "int": "whole number",
    "float": "number",
    "str": "text",
    "list[int]": "list of whole numbers",
    "list[float]": "list of numbers",
    "list[str]": "list of texts",
    "list": "list",
}
MANY = 8  # of more families than these, the names are not listed
INTRODUCTION = """\
# Settings

Every setting of a run: its label in the window, and its name in a settings file (YAML or JSON). What a file leaves out
is the default. On the command line a setting is changed with `--set`, as in `--set optimizer.learning_rate=1e-5`.
`[]` in a name stands for an entry of a list: `concepts[].path` is written `--set concepts.0.path=images` for the first
concept.

This page is made from the declarations in `modules/config` by `python scripts/config_reference.py --write`.
"""


def main() -> int:
    return write_or_check(__doc__.splitlines()[0], {PAGE: reference_page()})


def reference_page() -> str:
    """The whole page: one table for each group of settings."""
    settings = walk_settings()
    parts = [INTRODUCTION]
    for group, title in GROUP_TITLES.items():
        rows = [_row(info) for info in settings if info.group == group]
        titles = ("in the window", "in files", "value", "default", "range", "unit", "what it does")
        header = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        parts.append("\n".join([f"## {title}", "", *header, *rows]) + "\n")
    return "\n".join(parts)


def _row(info: SettingInfo) -> str:
    if info.type == "choice":
        value = ", ".join(f"`{choice}`" for choice in info.choices)
    else:
        value = TYPE_WORDS[info.type] + (", or empty" if info.optional else "")
    text = info.help + _other_names(info) + _visibility(info)
    cells = [info.label, f"`{info.path}`", value, _default(info), range_text(info), info.unit, text]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(info: SettingInfo) -> str:
    if info.default is None or info.default == "" or info.default == []:
        return "empty"
    return f"`{str(info.default).lower() if info.type == 'bool' else info.default}`"


def _other_names(info: SettingInfo) -> str:
    known = (info.path.rpartition(".")[2], *info.also_called.split(", "))
    foreign = [name for name in foreign_names().get(info.path, ()) if "." not in name and name not in known]
    names = ", ".join(filter(None, (*foreign, info.also_called)))
    return f" *Also called {names}.*" if names else ""


@functools.cache
def _groups() -> dict[str, tuple[str, ...]]:
    """What families are called together."""
    return {
        "a video model": families_taking_clips(),
        "a video model that starts from text or from a first frame": families_taking("first_frame", needed=False),
        "a flow model": families_with(objective="flow"),
        "not a flow model": families_with(objective="ddpm"),
        "a model with several text encoders that can be trained": tuple(SEVERAL),
        "a model that takes reference images": families_taking("references", without="layers"),
        "a model whose samples can start from images": families_taking_images(),
    }


def _group_of(names: set[Any]) -> str:
    """What many families are called together; "" for a few, and for what are no families."""
    families = load_families()
    if len(names) <= MANY or not names <= families.keys():
        return ""
    for group, members in _groups().items():
        if names == set(members):
            return group
    others = [name for name in families if name not in names]
    return f"any other than {' or '.join(others)}" if len(others) < len(names) else ""


def _visibility(info: SettingInfo) -> str:
    if not info.visible_when:
        return ""
    conditions, told = [], TEXT_TRAINS if info.path.startswith("text_encoder.") else {}
    if told and "text_encoder.train" not in info.visible_when:  # which says it for the others
        conditions.append("the method can train a text encoder of the family")
    for path, values in info.visible_when.items():
        if told.get(path) == values:
            continue
        allowed = " or ".join(str(value).lower() if isinstance(value, bool) else str(value) for value in values)
        allowed = _group_of(set(values)) or allowed
        names = " or ".join(f"`{one}`" for one in alternatives(path))
        conditions.append(f"{names} is {allowed}")
    return f" *Used if {' and '.join(conditions)}.*"


if __name__ == "__main__":
    sys.exit(main())
