"""The window for choosing a base model, which asks a small server in place of the Hub."""

from __future__ import annotations

import hashlib
import threading

import pytest

from modules.config.files import save_config
from modules.config.TrainConfig import TrainConfig
from modules.ui.models.base_model import sha256_of
from modules.ui.models.HubScript import recent_bases
from modules.ui.theme import Theme
from modules.ui.windows import BaseModelWindow as module
from tests.support.hub_server import HubServer

TINY, GATED = "somebody/tiny-sd3", "somebody/gated"


@pytest.fixture
def hub(tiny_sd3, tmp_path, monkeypatch):
    server = HubServer({TINY: tiny_sd3, GATED: tiny_sd3})
    server.gated.add(GATED)
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with server.running():
        yield server


@pytest.fixture
def opened(app, hub, wait_for, tmp_path):
    """The window after a search, with a settings file used before."""
    config = TrainConfig()
    config.model.base = "/models/used before"
    save_config(config, tmp_path / "before.yaml")
    app.preferences.recent = [str(tmp_path / "before.yaml"), str(tmp_path / "gone.yaml")]
    window = app.open_tab("model").find_model()
    wait_for(app, lambda: "/models/used before" in window.table.get_children())
    window.search.insert(0, "somebody")
    window.find()
    wait_for(app, lambda: window.table.get_children() == (TINY, GATED))
    return window


def choose(app, window, name, wait_for, words):
    window.table.selection_set(name)
    wait_for(app, lambda: words in window.detail.cget("text"))


def test_a_model_is_found_downloaded_and_used(app, opened, wait_for):
    choose(app, opened, TINY, wait_for, "to download, license apache-2.0.")
    assert opened.detail.cget("text").startswith(f"{TINY}: Stable Diffusion 3")
    opened.download()
    wait_for(app, lambda: "on this machine" in opened.detail.cget("text"))
    opened.use()
    assert (app.settings.get("model.base"), app.settings.get("family")) == (TINY, "sd3")
    again = app.tabs["model"].find_model()
    wait_for(app, lambda: TINY in again.table.get_children())
    assert again.table.item(TINY)["values"][1:3] != ["", ""]


def test_weights_that_files_replace_are_neither_counted_nor_downloaded(
    app, opened, hub, tiny_sd3, wait_for, monkeypatch
):
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.HUB_MS", 1)
    weights = "diffusion_pytorch_model.safetensors"
    app.settings.set("family", "sd3")
    app.settings.set("model.base", TINY)
    wait_for(app, lambda: "to download" in app.checks.base_text)
    whole = app.checks.base_text
    app.settings.set("model.denoiser", str(tiny_sd3 / "transformer" / weights))
    app.settings.set("model.text_encoders", [str(tiny_sd3 / "text_encoder_3" / "model.safetensors")])
    wait_for(app, lambda: "to download" in app.checks.base_text and app.checks.base_text != whole)
    choose(app, opened, TINY, wait_for, "to download")
    opened.download()
    wait_for(app, lambda: "on this machine" in opened.detail.cget("text"))
    assert f"vae/{weights}" in hub.asked
    assert not {f"transformer/{weights}", "text_encoder_3/model.safetensors"}.intersection(hub.asked)


def test_the_button_to_use_a_model_has_the_colours_of_its_state(app, opened, wait_for):
    button = opened._use  # grey words would be unreadable on the blue of the enabled one
    assert (button.cget("state"), button.cget("fg_color")) == ("disabled", Theme.control)
    opened.table.selection_set(TINY)
    wait_for(app, lambda: button.cget("state") == "normal")
    assert button.cget("fg_color") == Theme.selected


def test_what_the_hub_refuses_is_told_in_the_window(app, opened, wait_for, monkeypatch):
    choose(app, opened, GATED, wait_for, "accept it on the model's page")
    pages: list[str] = []
    monkeypatch.setattr(module.webbrowser, "open", pages.append)
    opened.open_page()
    assert pages[0].endswith("/" + GATED)


def test_a_cancelled_download_says_so(app, opened, hub, wait_for):
    choose(app, opened, TINY, wait_for, "to download")
    opened.download()
    opened.download()
    assert "was cancelled" in opened.detail.cget("text")
    wait_for(app, lambda: not opened.bar.winfo_ismapped())
    assert opened._download.cget("text") == "Download"


def test_a_name_that_is_typed_is_looked_up_and_a_wrong_one_is_a_problem(app, hub, wait_for, monkeypatch):
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.HUB_MS", 1)
    app.settings.set("family", "sd3")
    app.settings.set("model.base", TINY)
    wait_for(app, lambda: app.checks.base_text.startswith("On the Hub: Stable Diffusion 3"))
    assert not app.problems.at("model.base")
    app.settings.set("model.base", "somebody/nothing")
    wait_for(app, lambda: app.problems.at("model.base"))
    assert "there is no such model" in app.problems.at("model.base")[0].message
    app.settings.set_many({"model.base": TINY, "model.denoiser": "other.safetensors"})  # as an import does
    assert not app.problems.at("model.base")  # the former one's is not said of this one
    app.settings.set("model.denoiser", "")
    wait_for(app, lambda: "to download" in app.checks.base_text and not app.problems.at("model.base"))


def test_recent_bases_are_those_of_settings_files_that_can_be_read(tmp_path):
    texts = {"a": "model: {base: x/y}", "b": "model: [", "c": "- 1", "d": "model: {base: x/y}", "e": "model: {base: z}"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert recent_bases([str(tmp_path / name) for name in ("a", "b", "c", "missing", "d", "e")]) == ["x/y", "z"]


def test_the_hash_of_a_file_is_computed_copied_and_forgotten_with_it(app, tmp_path, settle, wait_for):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights" * 1_000_000)
    tab = app.open_tab("model")
    settle(app)
    assert not tab.hash_button.winfo_manager()  # no base model is chosen
    app.settings.set("model.base", str(file))
    tab.show_hash()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    wait_for(app, lambda: tab.found.cget("text").endswith(f"SHA-256 {digest}; AutoV2 {digest[:10]}."))
    tab.show_hash()
    assert app.root.clipboard_get() == digest
    app.settings.set("model.base", str(tmp_path / "gone.safetensors"))
    assert digest not in tab.found.cget("text")
    tab.show_hash()
    wait_for(app, lambda: "can't be read: No such file or directory" in app.message.cget("text"))
    app.settings.set("model.base", str(tmp_path))
    assert not tab.hash_button.winfo_manager()


def test_a_hash_that_is_no_longer_wanted_ends(tmp_path):
    cancelled = threading.Event()
    cancelled.set()
    (tmp_path / "a").write_bytes(b"weights")
    assert sha256_of(tmp_path / "a", cancelled) == ""
