"""Write docs/api.md from the docstrings of what other programs import, or check that it is up to date.

python scripts/api_reference.py --write
python scripts/api_reference.py --check
"""

import inspect
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules import trainer  # noqa: E402
from modules.launch.accelerate import accelerate_option  # noqa: E402
from scripts.generated_file import write_or_check  # noqa: E402

PAGE = ROOT / "docs" / "api.md"
LINE_LENGTH = 100
INTRODUCTION = """\
# API of TrainingEngine

What a program imports to train a model of its own; [training_engine.md](training_engine.md) explains how to use it. The
package is called `chorus` after `pip install`, as here, and `modules` in a checkout.

```python
from chorus.trainer import (
{names}
)
```

Made from the docstrings by `python scripts/generate.py --write`.
"""
# Class or function -> the members that are documented, in this order.
MEMBERS = {
    "TrainingEngine": (
        "train",
        "backward",
        "stop",
        "evaluate",
        "predict",
        "last_checkpoint",
        "best_checkpoint",
        "top_checkpoints",
        "state_dict",
        "load_state_dict",
        "setup_distributed",
        "cleanup_distributed",
        "is_main_process",
        "reduce_tensor",
    ),
    "launch_distributed_training": (),
    "multi_node_commands": (),
    "distributed_train_worker": (),
    "History": ("num_epochs", "plot", "save"),
    "TrainCallbacks": (
        "on_started",
        "on_step",
        "on_epoch",
        "on_figures",
        "on_backup",
        "on_warning",
        "on_failed",
        "on_finished",
    ),
    "EarlyStopping": (),
    "CsvLogger": (),
    "WandbLogger": (),
    "MlflowLogger": (),
    "Profiler": (),
    "StepInfo": (),
    "UserError": (),
}


def main() -> int:
    return write_or_check(__doc__.splitlines()[0], {PAGE: reference_page()})


def reference_page() -> str:
    """The whole page: a section for each name, with its members."""
    parts = [INTRODUCTION.format(names="\n".join(f"    {name}," for name in MEMBERS))]
    for name, members in MEMBERS.items():
        owner = getattr(trainer, name)
        parts.append(_section("##", name, owner))
        parts += [_section("###", f"{name}.{member}", inspect.getattr_static(owner, member)) for member in members]
    parts.append(_section("##", "accelerate_option", accelerate_option, "from chorus.launch.accelerate import "))
    return "\n".join(parts)


def _section(heading: str, name: str, member: Any, imported: str = "") -> str:
    """A heading, the signature if it can be called, and the docstring."""
    member = getattr(member, "__func__", member)  # of a static method
    lines = [f"{heading} {name}", ""]
    if imported:
        lines += ["```python", f"{imported}{name}", "```", ""]
    if isinstance(member, property):
        lines += [f"`{name}: {_annotation(member.fget.__annotations__['return'])}`", ""]
        member = member.fget
    elif not (isinstance(member, type) and issubclass(member, Exception)):
        lines += ["```python", _signature(name.rpartition(".")[2], member), "```", ""]
    documentation = inspect.getdoc(member)
    assert documentation, f"{name} has no docstring"
    return "\n".join([*lines, _markdown(documentation, _parameters(member)), ""])


def _signature(name: str, member: Callable[..., Any]) -> str:
    """As in the source; each parameter on a line of its own if it would be too long."""
    signature = inspect.signature(member)
    parameters, previous = [], None
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and previous in (None, parameter.POSITIONAL_OR_KEYWORD):
            parameters.append("*")
        parameters.append(_parameter(parameter))
        previous = parameter.kind
    returned = signature.return_annotation
    arrow = "" if returned is signature.empty or isinstance(member, type) else f" -> {_annotation(returned)}"
    line = f"{name}({', '.join(parameters)}){arrow}"
    if len(line) <= LINE_LENGTH:
        return line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){arrow}"])


def _parameter(parameter: inspect.Parameter) -> str:
    text = parameter.name
    if parameter.kind is parameter.VAR_POSITIONAL:
        text = f"*{text}"
    elif parameter.kind is parameter.VAR_KEYWORD:
        text = f"**{text}"
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        default = parameter.default
        shown = "{}" if "factory" in repr(default) else getattr(default, "__name__", repr(default))  # of a dataclass
        text += f" = {'os.environ' if default is os.environ else shown}"
    return text


def _annotation(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"modules\.[\w.]+\.", "", text)


def _parameters(member: Callable[..., Any]) -> set[str]:
    """The names that a line of the docstring may explain."""
    if isinstance(member, type) and issubclass(member, Exception):
        return set()
    return set(inspect.signature(member).parameters)


def _markdown(documentation: str, parameters: set[str]) -> str:
    """The docstring with a list item for each line that explains parameters, and examples as code.

    Such a line starts with names of parameters and a colon, or with a call of one: "criterion(output, target): ...".
    What is indented belongs to the line before it; what is indented after an empty line is an example.
    """
    out: list[str] = []
    for block in documentation.split("\n\n"):
        lines = block.splitlines()
        if lines[0].startswith("    "):
            out += ["", "```python", *(line[4:] for line in lines), "```"]
            continue
        out.append("")
        for line in lines:
            explained = re.match(r"((\w+)(?:\([^)]*\))?(?:, \w+)*): (.*)", line)
            if explained and explained[2] in parameters:
                if out[-1] and not out[-1].startswith(("- ", "  ")):
                    out.append("")
                out.append(f"- `{explained[1]}`: {explained[3]}")
            elif line.startswith("    "):
                out.append(f"  {line.strip()}")
            else:
                if out[-1].startswith(("- ", "  ")):
                    out.append("")
                out.append(line)
    return "\n".join(out).strip("\n")


if __name__ == "__main__":
    sys.exit(main())
