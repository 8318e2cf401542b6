"""No source outside of the methods asks for a method by its name: what others have to know is in a method's facts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from modules.config.methods import METHODS
from tests.support.asked_names import names_asked_for

ROOT = Path(__file__).resolve().parents[2]
HOMES = ("modules/config/methods.py", *(f"modules/methods/{name}.py" for name in METHODS))
# "vae" is a part of a pipeline there, and no function is given a method.
OF_MODELS = ("modules/families/", "modules/weights/")


def test_no_source_asks_for_a_method_by_its_name():
    found = [
        (path, name) for path, source in sources() for name in names_asked_for(ast.parse(source), METHODS, "method")
    ]
    assert found == [], "add what is asked for to the facts of the methods, in modules/config/methods.py"


def test_the_test_finds_each_way_of_asking():
    for source in (
        "if config.method == 'lora': pass",
        "if 'vae' != config.method: pass",
        "small = method in ('lora', 'embedding')",
        "match method:\n    case 'full': pass",
        "share = {'lora': 0.1, 'embedding': 0}.get(config.method, 1)",
        "WHEN = {'method': ['full', 'vae']}",
    ):
        assert names_in_source(source), source
    of_no_method = "vae = pipe['vae']; card('vae'); parts = ['vae', 'unet']; show(f'method {config.method}')"
    assert not names_in_source(of_no_method)


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "modules").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith((*HOMES, *OF_MODELS)):
            yield name, path.read_text(encoding="utf-8")


def names_in_source(source: str) -> list[str]:
    return list(names_asked_for(ast.parse(source), METHODS, "method"))
