"""How diffusers is imported."""

import ast
import gc
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
import transformers

from modules.config.installation import ROOT
from modules.layers import quiet_imports
from modules.weights import libraries
from tests.support.fork_server import call_forked


@pytest.fixture(params=[True, False], ids=["searching", "not searching"])
def searches(request):
    """Whether Python looks for garbage, before."""
    was_enabled = gc.isenabled()  # a window of another test may have switched it off
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was_enabled else gc.disable)()


def test_nothing_looks_for_garbage_while_a_pipeline_is_imported(searches, monkeypatch):
    class Diffusers:
        def __getattr__(self, name: str) -> tuple[str, bool]:
            return name, gc.isenabled()

    monkeypatch.setattr(libraries, "import_diffusers", Diffusers)
    assert libraries.import_pipeline("StableDiffusionPipeline") == ("StableDiffusionPipeline", False)
    assert gc.isenabled() is searches


def test_after_an_import_that_fails_it_is_as_before(searches, monkeypatch):
    monkeypatch.setattr(libraries, "import_diffusers", object)
    with pytest.raises(AttributeError):
        libraries.import_pipeline("StableDiffusionPipeline")
    assert gc.isenabled() is searches


@pytest.mark.parametrize(("asked", "level"), [(None, "error"), ("info", "warning")])
def test_libraries_that_were_imported_before_are_quiet_too_unless_the_user_asks(asked, level, monkeypatch):
    monkeypatch.delenv("TRANSFORMERS_VERBOSITY", raising=False)
    if asked:
        monkeypatch.setenv("TRANSFORMERS_VERBOSITY", asked)
    settings = transformers.utils.logging
    before = settings.get_verbosity()
    try:
        settings.set_verbosity_warning()  # as it is where peft has imported it
        libraries.import_diffusers()
        assert settings.get_verbosity() == settings.log_levels[level]
    finally:
        settings.set_verbosity(before)


def test_bitsandbytes_is_imported_by_what_needs_it_and_with_no_other_library():
    """It takes more than a second of each start."""
    assert call_forked(is_imported_at_a_start) == (False, True)


def is_imported_at_a_start() -> tuple[bool, bool]:
    """Whether bitsandbytes is, and whether another package is, which shows that this process has started so far."""
    return "bitsandbytes" in sys.modules, "peft" in sys.modules


def test_what_transformers_replaces_while_it_loads_a_model_is_no_other_on_the_meta_device_later():
    assert call_forked(device_after_a_replacement) == "meta"


def device_after_a_replacement() -> str:
    """That of a tensor of `linspace` on the meta device, which was used once while it was another function."""
    libraries.import_diffusers()
    true_linspace = torch.linspace
    torch.linspace = lambda *args, **kwargs: true_linspace(*args, **kwargs)
    with torch.device("meta"):
        torch.empty(0)
    torch.linspace = true_linspace
    with torch.device("meta"):
        return torch.linspace(0, 1, 2).device.type


def test_what_is_hidden_from_other_libraries_can_be_imported_later(tmp_path, monkeypatch):
    (tmp_path / "heavy_package.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with quiet_imports.hidden("heavy_package"):
        assert find_spec("heavy_package") is None
        with pytest.raises(ImportError):
            import_module("heavy_package")
    package = import_module("heavy_package")
    with quiet_imports.hidden("heavy_package"):  # what is there already stays
        assert import_module("heavy_package") is package
    del sys.modules["heavy_package"]


@pytest.fixture
def seldom_used(tmp_path, monkeypatch):
    """A package with a module of which `solve` is imported by name."""
    package = tmp_path / "heavy_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").touch()
    lines = ("class Result(int): ...", "def solve(x, *, y=0):", "    return Result(x + y)")
    (package / "seldom.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(quiet_imports, "SELDOM_USED", {"heavy_package.seldom": ("solve",)})
    yield "heavy_package.seldom"
    for name in [name for name in sys.modules if name.partition(".")[0] == "heavy_package"]:
        del sys.modules[name]


def test_a_module_that_is_seldom_used_is_imported_when_its_function_is_called(seldom_used):
    names = {}
    with quiet_imports.imported_when_used():
        exec(f"import {seldom_used}\nfrom {seldom_used} import solve", names)
    assert seldom_used not in sys.modules
    result = names["solve"](1, y=2)
    assert result == 3
    assert isinstance(result, import_module(seldom_used).Result)


def test_whoever_uses_more_of_it_meanwhile_gets_the_module_itself(seldom_used):
    names = {}
    with quiet_imports.imported_when_used():
        exec(f"from heavy_package import seldom\nfrom {seldom_used} import Result", names)
    module = sys.modules[seldom_used]
    assert names["Result"] is module.Result
    assert names["seldom"].solve(1) == 1
    with quiet_imports.imported_when_used():  # what is there already stays
        assert import_module(seldom_used) is module


def test_what_a_process_of_chorus_has_imported_is_no_more_looked_at_for_garbage(searches, monkeypatch):
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    with libraries.gc_paused():
        pass
    assert not frozen, "another program may yet free what it had"
    with libraries.gc_paused(for_good=True):
        pass
    assert frozen == [False], "a collection before would look at it"


def test_no_module_imports_a_library_that_prints_notes_before_it_is_quiet():
    """At their top, they import peft by peft_layers.py or after `import_peft`. `import_pipeline` has imported diffusers
    before our pipelines, FlowHeunScheduler.py and frozen_norms.py, and `CaptionerKind.load` transformers before
    captioners, which nothing else imports at its top."""
    noisy = {"bitsandbytes", "diffusers", "peft", "transformers"}
    found = set()
    for path in [*(ROOT / "modules").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found |= {path.name for name in names if name.partition(".")[0] in noisy}
    found -= {path.name for path in (ROOT / "modules" / "families" / "pipelines").iterdir()}
    assert found == {
        *("LoraLinear.py", "peft_layers.py", "FlowHeunScheduler.py", "frozen_norms.py"),
        *("generating.py", "blip2.py"),
    }
