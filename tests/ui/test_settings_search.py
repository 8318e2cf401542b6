"""The search over all settings, and the navigation to a setting wherever its field is."""

import importlib
import tkinter
from pathlib import Path

import customtkinter as ctk
import pytest

from modules.config.describe import settings_by_path
from modules.ui.models.explanations import ACTIONS, EXPLANATIONS
from modules.ui.models.find_settings import find_settings, search
from modules.ui.OpeningWindow import TABS
from modules.ui.TrainUI import tab_of
from modules.ui.widgets.form import SettingsForm, find_field

LABELS = Path(__file__).parent / "window_labels.txt"
OF_PARTS = [path for path in settings_by_path() if "[]" in path]


@pytest.fixture
def app(shared_app):
    """The window, with the first parts chosen."""
    for tab, parts in (("dataset", "cards"), ("sampling", "prompts")):
        if tab in shared_app.tabs:
            getattr(shared_app.tabs[tab], parts).choose(0)
    return shared_app


def type_in(app, text: str) -> None:
    entry = app.top_bar.search
    entry.focus_force()
    app.update()
    entry.delete(0, "end")
    entry.insert(0, text)
    entry._entry.event_generate("<KeyRelease>", keysym="p")
    entry._entry.event_generate("<Return>")
    app.update()


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_what_the_search_is_for_is_never_cut(make_app, settle, scale):
    app = make_app(tab="tools")
    app.theme.set_scale(scale)
    app.settings.set("epochs", 3)  # so that the button "modified (1)" takes some of the room
    entry = app.top_bar.search
    for width in (960, 1024, 1100, 1400):
        tkinter.Wm.wm_geometry(app.root, f"{round(width * scale)}x700")
        settle(app)
        assert "Search" in entry._entry.get()
        assert entry._entry.xview() == (0.0, 1.0), f"cut at {width}"


def field_with_keys(app, path: str):
    """The field of a setting, if it has the focus."""
    field = find_field(app.tabs[tab_of(path)], path)
    return field if field is not None and app.focus_lastfor() is field.focus_widget() else None


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("network_dim", "lora.rank"),
        ("vram", "model.gradient_checkpointing"),
        ("unet", "denoiser.train"),
        ("cfg", "sampling.samples[].guidance"),
        ("autocast", "model.mixed_precision"),
        ("max_train_steps", "max_steps"),
        ("enable_bucket", "data.bucketing"),
        ("flip_aug", "concepts[].augmentation.flip"),
        ("min_snr_gamma", "loss.snr_gamma"),
        ("lr", "optimizer.learning_rate"),
    ],
)
def test_the_names_of_other_programs_are_found(word, path):
    assert path in find_settings(word)[:4]


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("dim", "lora.rank"),
        ("network", "lora.rank"),
        ("lr", "optimizer.learning_rate"),
        ("quant", "model.denoiser_quantization"),
        ("adamw8bit", "optimizer.name"),
        ("optimizer_type", "optimizer.name"),
        ("min_snr_gamma", "loss.snr_gamma"),
    ],
)
def test_a_word_that_users_bring_with_them_finds_its_setting_first(word, path):
    assert find_settings(word)[0] == path


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("optimizer", "optimizer.name"),
        ("learning rate", "optimizer.learning_rate"),
        ("learning_rate", "optimizer.learning_rate"),
        ("resolution", "data.resolution"),
        ("Captions", "concepts[].captions"),
        ("rank", "lora.rank"),
        ("lora rank", "lora.rank"),
        ("Text encoder learning rate", "text_encoder.learning_rate"),
        ("optimizer.beta2", "optimizer.beta2"),
        ("resol", "data.resolution"),
        ("epoch", "epochs"),
        ("tag shuffling", "concepts[].shuffle_tags"),
        ("ZeRO-1", "ddp_shard_optimizer"),
    ],
)
def test_the_setting_that_is_called_so_comes_first(words, path):
    assert find_settings(words)[0] == path


def test_each_setting_comes_first_under_its_own_path_and_among_those_of_its_label_under_that():
    for path, info in settings_by_path().items():
        if path != "config_version":
            assert find_settings(path)[0] == path
            assert settings_by_path()[find_settings(info.label)[0]].label == info.label


def test_a_word_is_not_found_inside_another_word_of_a_help_text():
    assert find_settings("oft")[0] == "lora.adapter"
    assert "epochs" not in find_settings("oft")


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("Save every N epochs", "output.every"),
        ("LR # cycles:", "schedule.restarts"),
        ("the learning rate of the optimizer", "optimizer.learning_rate"),
        ("gradientcheckpointing", "model.gradient_checkpointing"),
        ("lora rank dimension", "lora.rank"),
        ("sdxl", "family"),
        ("Stable Diffusion XL", "family"),
        ("Adafactor", "optimizer.name"),
        ("AdamW 8bit", "optimizer.name"),
        ("cosine with restarts", "schedule.name"),
    ],
)
def test_stop_words_punctuation_and_single_unknown_words_do_not_count_and_choices_are_found(words, path):
    assert find_settings(words)[0] == path


@pytest.mark.parametrize("typed", ["optimizr", "optimizzer", "optomizer", "otpimizer"])
def test_one_letter_of_a_word_may_be_missing_too_many_wrong_or_swapped(typed):
    assert find_settings(typed)[0] == "optimizer.name"


def test_short_words_and_two_letters_are_not_corrected():
    assert find_settings("rnak") == []
    assert find_settings("otpimzer") == []


def test_half_of_the_words_are_not_enough():
    assert find_settings("optimizer xyzzy") == []
    assert find_settings("optimizer name xyzzy")


def labels_of_other_windows() -> dict[str, list[tuple[str, str]]]:
    """Program -> its labels, each with what it means here."""
    programs: dict[str, list[tuple[str, str]]] = {}
    for line in LABELS.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            programs[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            label, arrow, meaning = line.partition(" -> ")
            assert arrow, line
            programs[list(programs)[-1]].append((label, meaning))
    return programs


@pytest.mark.parametrize("program", ["OneTrainer", "kohya_ss", "ai-toolkit"])
def test_the_labels_of_other_windows_lead_to_what_they_mean(program):
    wanted = {label: set(found.split(", ")) for label, found in labels_of_other_windows()[program] if found[0] != "("}
    assert set().union(*wanted.values()) <= settings_by_path().keys()
    missed = [label for label, paths in wanted.items() if paths.isdisjoint(row.path for row in search(label)[:3])]
    assert len(missed) <= 0.05 * len(wanted), missed


def test_labels_of_other_windows_that_need_no_setting_are_explained():
    rows = [row for rows in labels_of_other_windows().values() for row in rows]
    wanted = [label for label, meaning in rows if meaning.startswith("(explained")]
    assert [label for label in wanted if not any(row.text for row in search(label)[:3])] == []


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ("token", "Hugging Face token"),
        ("Latent Caching", "Latent caching"),
        ("cache latents", "Latent caching"),
        ("lowvram", "Low VRAM"),
        ("low vram", "Low VRAM"),
        ("Offline Mode", "Offline mode"),
        ("async_offloading", "async_offloading (OneTrainer): It changes no result."),
    ],
)
def test_what_is_no_setting_is_explained_first(words, start):
    assert search(words)[0].text.startswith(start)


def test_a_setting_that_is_called_so_comes_before_an_explanation():
    first, *others = search("xformers")
    assert (first.path, first.text) == ("model.attention", "")
    assert any("PyTorch's own attention" in row.text for row in others)


def test_explanations_lead_to_settings_that_exist():
    assert {row.path for row in EXPLANATIONS.values()} - {""} <= settings_by_path().keys()


@pytest.mark.parametrize(
    ("words", "tab", "action"),
    [
        ("merge", "tools", "open_model_tools"),
        ("convert", "tools", "open_model_tools"),
        ("doctor", "tools", "open_doctor"),
        ("debug", "tools", "open_doctor"),
        ("check data", "tools", "check_data"),
        ("dark", "general", ""),
        ("crash report", "tools", ""),
    ],
)
def test_tools_and_actions_are_found_by_their_plain_words(words, tab, action):
    first = search(words)[0]
    assert (first.tab, first.action) == (tab, action)


def test_every_action_leads_to_a_tab_that_has_it():
    for row in ACTIONS.values():
        if row.tab:
            kind = getattr(importlib.import_module(f"modules.ui.tabs.{TABS[row.tab]}"), TABS[row.tab])
            assert not row.action or callable(getattr(kind, row.action))


def test_a_tool_that_is_found_is_opened(app, settle, monkeypatch):
    opened = []
    monkeypatch.setattr("modules.ui.tabs.ToolsTab.ToolsTab.open_model_tools", lambda tab: opened.append(tab))
    app.open_tab("general")
    type_in(app, "merge lora")
    settle(app)
    assert opened == [app.tabs["tools"]]
    assert app.tab_bar.selected == "tools"


def test_an_explanation_without_a_setting_is_shown_in_full(app, settle):
    type_in(app, "token")
    settle(app)
    assert "hf auth login" in app.message.cget("text")


def test_a_long_explanation_is_not_cut(app, settle):
    entry = app.top_bar.search
    entry.focus_force()
    entry.insert(0, "dreambooth")
    entry._entry.event_generate("<KeyRelease>", keysym="h")
    settle(app)
    text = entry._list.get(0)
    assert entry._list.tk.call("font", "measure", entry._list.cget("font"), text) <= entry._list.winfo_width()
    assert entry._frame.winfo_x() + entry._frame.winfo_width() <= app.root.winfo_width()


def test_return_leads_to_what_is_typed_though_a_key_is_still_held(app, settle):
    entry = app.top_bar.search
    type_in(app, "optimizer")
    entry.focus_force()
    entry.insert(0, "batch size")
    entry._entry.event_generate("<Return>")
    settle(app)
    assert field_with_keys(app, "batch_size")


def test_return_without_a_hit_leads_nowhere(app, settle):
    type_in(app, "optimizer")
    settle(app)
    app.open_tab("general")
    type_in(app, "no such words")
    settle(app)
    assert app.tab_bar.selected == "general"
    assert app.top_bar.search.get() == "no such words"


def test_what_is_typed_on_while_the_window_jumps_changes_nothing(app, settle, wait_for):
    """Who types "optimizer", Return and a space means no switch."""
    before = app.settings.values
    type_in(app, "enable_multi_gpu")
    switch = field_with_keys(app, "enable_multi_gpu")
    canvas = switch.focus_widget()
    settle(app)
    for key in ("space", "Return"):
        canvas.event_generate(f"<{key}>")
    assert app.settings.values == before
    wait_for(app, lambda: not switch.is_flashing)
    canvas.event_generate("<space>")
    assert app.settings.values != before


def test_a_setting_of_all_concepts_is_found_in_the_chosen_one(app, settle):
    type_in(app, "concepts repeats")
    assert field_with_keys(app, "concepts.0.repeats")
    settle(app)
    app.tabs["dataset"].cards.choose(1)
    type_in(app, "concepts repeats")
    assert field_with_keys(app, "concepts.1.repeats")


def test_a_setting_of_all_prompts_is_found_in_the_chosen_one(app, settle):
    app.settings.add("sampling.samples", {})
    type_in(app, "negative prompt")
    assert field_with_keys(app, "sampling.samples.0.negative_prompt")
    settle(app)
    last = len(app.settings.get("sampling.samples")) - 1
    app.tabs["sampling"].prompts.choose(last)
    app.update()
    type_in(app, "negative prompt")
    assert field_with_keys(app, f"sampling.samples.{last}.negative_prompt")


def test_a_setting_of_all_embeddings_is_found_in_the_first(app):
    app.settings.set("method", "embedding")
    app.settings.add("embeddings", {"placeholder": "new-word"})
    type_in(app, "placeholder")
    assert field_with_keys(app, "embeddings.0.placeholder")


def test_each_setting_of_parts_leads_to_a_field_or_says_why_not(app):
    app.settings.set("method", "embedding")
    app.settings.add("embeddings", {"placeholder": "new-word"})
    for path in OF_PARTS:
        app.message.configure(text="")
        app.flash(path)
        shown = path.replace("[]", ".0")
        assert field_with_keys(app, shown) or "has no effect" in app.message.cget("text"), path
        assert bool(field_with_keys(app, shown)) is app.settings.is_visible(shown)


@pytest.mark.parametrize(
    ("parts", "name", "button"),
    [
        ("concepts", "concept", "Add folder…"),
        ("sampling.samples", "prompt", "Add"),
        ("embeddings", "embedding", "Add embedding"),
    ],
)
def test_an_empty_list_leads_to_the_button_that_adds_to_it(app, settle, parts, name, button):
    app.settings.set("method", "embedding")
    app.settings.set(parts, [])
    app.flash(next(path for path in OF_PARTS if path.startswith(parts)))
    assert app.message.cget("text") == f"Each {name} has this setting: add one first."
    for _ in range(2):
        settle(app)
        canvas = app.focus_lastfor()
        assert isinstance(canvas.master, ctk.CTkButton)
        assert canvas.master.cget("text") == button
        top = canvas.winfo_rooty() - app.content.winfo_rooty()
        assert 0 <= top <= app.content.winfo_height() - canvas.winfo_height()
        app.flash(parts)


def test_a_click_on_the_count_leads_to_an_empty_list_of_embeddings(app, settle):
    app.settings.set("method", "embedding")
    assert app.problems.error("embeddings")
    app.bottom_bar.problems.invoke()
    settle(app)
    assert app.tab_bar.selected == "training"
    assert app.focus_lastfor().master.cget("text") == "Add embedding"


def test_embeddings_that_do_not_matter_are_said_so(app):
    for path in ("embeddings", "embeddings[].placeholder"):
        app.message.configure(text="")
        app.flash(path)
        assert "has no effect" in app.message.cget("text")
        assert not isinstance(app.focus_lastfor().master, ctk.CTkButton)


def test_a_part_that_is_gone_is_not_flashed(app):
    for path in ("concepts.7.repeats", "sampling.samples.7.seed", "embeddings.7.placeholder"):
        app.flash(path)
        assert app.tab_bar.selected == tab_of(path)


def test_an_advanced_setting_that_was_searched_for_is_shown_alone_until_the_filter_is_used(app, settle):
    form = SettingsForm(app.content, app, ["optimizer.beta1", "optimizer.beta2"])
    form.grid(row=0, column=0)
    assert form.num_shown() == 0
    for path in ("optimizer.beta1", "concepts[].loss_weight"):
        app.flash(path)
    settle(app)
    assert field_with_keys(app, "concepts.0.loss_weight").editor.winfo_ismapped()
    assert find_field(app.open_tab("training"), "optimizer.beta1").is_shown
    assert not find_field(app.tabs["training"], "optimizer.beta2").is_shown
    assert form.num_shown() == 1
    assert (app.filter.get(), app.preferences.show_all) == ("Basic", False)
    app.set_show_all(True)
    assert form.num_shown() == 2
    app.set_show_all(False)
    assert form.num_shown() == 0
    assert not find_field(app.tabs["training"], "optimizer.beta1").is_shown
