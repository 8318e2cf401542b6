"""The parts of the window know the main window as App only, and TrainUI is one."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from modules.ui.App import App
from modules.ui.models.Scheduler import Scheduler

UI = Path(__file__).parents[2] / "modules" / "ui"
ATTRIBUTES = set(App.__annotations__)
METHODS = {name for kind in (App, Scheduler) for name in vars(kind) if not name.startswith("_")}
BASE_CLASSES = {"RootWindow.py", "TrainUI.py"}  # they are the window


def is_app(node: ast.expr) -> bool:
    """Whether an expression is `app`, `self.app` or `self._app`."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in ("app", "_app")


def test_parts_of_the_window_use_nothing_of_it_but_what_App_offers():
    used: dict[str, list[str]] = {}
    for path in sorted(UI.rglob("*.py")):
        if path.name in BASE_CLASSES:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and is_app(node.value):
                used.setdefault(node.attr, []).append(f"{path.relative_to(UI)}:{node.lineno}")
    assert {name: places for name, places in used.items() if name not in ATTRIBUTES | METHODS} == {}
    unused = {name for name in ATTRIBUTES | METHODS if name not in used} - {"after_cancel"}  # a Scheduler's
    assert unused == set(), "App offers what nothing asks for"


def test_the_main_window_is_an_App(app):
    assert {name for name in ATTRIBUTES if not hasattr(app, name)} == set()
    for name in METHODS:
        offered = inspect.signature(getattr(App, name)).parameters.values()
        taken = inspect.signature(getattr(type(app), name)).parameters.values()
        assert [(one.name, one.kind) for one in offered] == [(one.name, one.kind) for one in taken], name
