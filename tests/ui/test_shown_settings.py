"""The settings shown are those that will be trained."""

from __future__ import annotations

import os
import random

from modules.ui.models.concept_preview import ConceptPictures
from modules.ui.widgets.form import find_field
from tests.support.fake_nvml import eight_gpus, put_gpus
from tests.support.LateCallbacks import LateCallbacks
from tests.support.seen_settings import seen_settings, settings_to_be_seen
from tests.support.WindowActions import WindowActions

REST_SECONDS = 30.0  # after which no callback is pending any more


def test_a_tab_shows_the_preset_that_was_chosen_while_it_was_hidden(app, settle):
    """Its text about the family then needs more lines: a page on a Canvas is mapped as soon as its size changes, even
    on a hidden tab, and gets no further <Map> event when the tab is opened."""
    for name in ("model", "general"):
        app.open_tab(name)
        settle(app)
    app.settings.load_preset("sd3-embedding")
    settle(app)
    tab = app.open_tab("model")
    settle(app)
    assert find_field(tab, "model.base").entry.get() == app.settings.get("model.base")


def test_keys_do_not_go_into_a_field_on_a_hidden_tab(app, settle):
    tab = app.open_tab("training")
    settle(app)
    find_field(tab, "epochs").entry._entry.focus_force()
    app.update()
    for name in ("multi-GPU", "sampling"):
        app.tab_bar.choose_neighbour(1)
        app.update()
        assert app.focus_get() is app.tab_bar.buttons[name]._canvas


def test_whatever_a_person_does_the_window_shows_the_settings_as_they_are(make_app, tmp_path, monkeypatch, faults):
    """On a machine so busy that callbacks arrive late and in any order. For a longer run with another seed:

    WINDOW_ACTIONS=500 WINDOW_SEED=7 python -m pytest tests/ui/test_shown_settings.py
    """
    seed, num_actions = int(os.environ.get("WINDOW_SEED", 9)), int(os.environ.get("WINDOW_ACTIONS", 100))
    chance = random.Random(seed)
    put_gpus(monkeypatch, eight_gpus())
    monkeypatch.setattr("modules.ui.models.BackgroundChecks.count_pictures", lambda config, is_wanted: (708, ()))
    for module in ("tabs.DatasetTab", "windows.ConceptWindow"):
        monkeypatch.setattr(f"modules.ui.{module}.find_pictures", lambda *which: ConceptPictures())
    late = LateCallbacks(chance, monkeypatch)
    app = make_app()
    actions, num_seen = WindowActions(app, chance, tmp_path), 0
    print(f"seed {seed}")
    for number in range(num_actions):
        print(actions.act())
        for seconds in (0.0, chance.uniform(0, 1), *([REST_SECONDS] if number % 5 == 4 else [])):
            late.advance(seconds)
            app.update()
            app.winfo_pointerxy()  # a round trip: the display's answer comes after all earlier events
            app.update()
            seen = [*seen_settings(app), *(settings_to_be_seen(app) if seconds == REST_SECONDS else [])]
            wrong = [f"{what} shows {shown!r}, not {true!r}" for what, shown, true in seen if shown != true]
            assert not wrong + faults, "\n".join([*wrong, *map(repr, faults)])
            num_seen += len(seen)
    assert num_seen > 50 * num_actions
