"""What the window finds out by itself: devices and base model, on whichever tab a person is."""

import sys

import pytest

from tests.support.fake_nvml import FakeNvml, eight_gpus, real


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND))


def blocked(app, path: str) -> str:
    return app.settings.error(path) or ""


def test_a_backend_that_this_machine_has_not_is_refused_on_any_tab(app, wait_for):
    app.settings.set("enable_multi_gpu", True)
    app.settings.set("distributed_backend", "nccl")
    wait_for(app, lambda: "gloo" in blocked(app, "distributed_backend"))
    assert list(app.tabs) == ["general"]
    app.settings.set("distributed_backend", "gloo")
    wait_for(app, lambda: not blocked(app, "distributed_backend"))


def test_a_device_that_is_not_there_is_refused_on_any_tab(app, wait_for, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", eight_gpus())
    app.settings.set("device_indexes", "0, 9")
    wait_for(app, lambda: blocked(app, "device_indexes"))
    assert "9" in blocked(app, "device_indexes")


def test_a_base_model_that_is_gone_is_told_at_the_start(make_app, tmp_path, wait_for):
    first = make_app(tmp_path / "state")
    first.settings.set("model.base", str(tmp_path / "gone"))
    first.destroy()
    app = make_app(tmp_path / "state")
    wait_for(app, lambda: blocked(app, "model.base"))
    assert list(app.tabs) == ["general"]
    (tmp_path / "model.safetensors").write_bytes(b"")
    app.settings.set("model.base", str(tmp_path / "model.safetensors"))
    wait_for(app, lambda: not blocked(app, "model.base"))
    assert app.checks.base_text == "A file of 0.0 GiB."


def test_the_model_tab_says_what_the_base_is(app, wait_for):
    tab = app.open_tab("model")
    wait_for(app, lambda: tab.page.cards and tab.found.cget("text").startswith("A diffusers folder"))
