"""What a person sees of the settings is what will be trained."""

from __future__ import annotations

from modules.ui.form import find_field


def test_a_tab_shows_the_preset_that_was_chosen_while_it_was_hidden(app, settle):
    """Its text about the family needs more lines then: a page on a Canvas is mapped as soon as its size changes, even
    on a hidden tab, and gets no other <Map> event when the tab is opened."""
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
