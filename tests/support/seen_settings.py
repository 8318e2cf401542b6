"""What can be seen of the settings in the window, beside what they are.

Each function gives (what it is, what the window shows, what it should show).
"""

from __future__ import annotations

import tkinter
from collections.abc import Callable, Iterator
from typing import Any

from modules.config.errors import UserError
from modules.config.families import model_of
from modules.launch.command_text import bash_line, commands_text
from modules.machine.run_shape import shape_lines
from modules.ui.cards.OwnImagesCard import OwnImagesCard
from modules.ui.tabs.DatasetTab import DatasetTab
from modules.ui.tabs.ModelTab import ModelTab, describe_parts
from modules.ui.tabs.MultiGpuTab import MultiGpuTab
from modules.ui.TrainUI import TrainUI
from modules.ui.widgets.Field import Field, value_text
from modules.ui.widgets.form import SettingsForm
from modules.ui.widgets.make_field import ChoiceField, SwitchField
from modules.ui.widgets.PromptList import COLUMNS, PromptList
from modules.ui.widgets.typed_fields import TextField
from modules.ui.windows.ChangesWindow import ChangesWindow
from modules.ui.windows.MultiNodeWindow import MultiNodeWindow

Seen = Iterator[tuple[str, Any, Any]]


def seen_settings(app: TrainUI) -> Seen:
    """Of everything that is on the screen at this moment."""
    yield from _bars(app)
    for widget in _widgets(app):
        look = next((look for kind, look in LOOKS.items() if isinstance(widget, kind)), None)
        if look is not None and widget.winfo_viewable():
            yield from look(app, widget)


def settings_to_be_seen(app: TrainUI) -> Seen:
    """When nothing is being built or laid out any more: which fields there should be, and the drawing of a card."""
    for form in _widgets(app):
        if isinstance(form, SettingsForm) and form.winfo_viewable():
            shown = [path for path, field in form.fields.items() if field.editor.winfo_viewable()]
            yield f"fields on {form}", shown, [path for path in form.paths if form.is_field_shown(path)]
    tab = app.tabs[app.tab_bar.selected]
    if isinstance(tab, DatasetTab) and tab.cards.cards:
        canvas = tab.cards.canvas
        drawn = {canvas.itemcget(item, "text") for item in canvas.find_all() if canvas.type(item) == "text"}
        yield "drawn concept", tab.cards.cards[0].title in drawn, True


def _bars(app: TrainUI) -> Seen:
    settings, bar = app.settings, app.top_bar
    count = len(settings.modified_paths())
    yield "preset", bar.preset.cget("text"), f"{settings.preset_name}  ▾"
    yield "changes", _text(bar.modified), f"modified ({count})" if count else ""
    for path, menu in (("family", bar.family), ("method", bar.method)):
        yield f"{path} in the bar", menu.get(), settings.info(path).choice_labels[settings.get(path)]
    yield "filter", app.filter.get(), "All" if app.preferences.show_all else "Basic"
    yield "problems", app.bottom_bar.problems.cget("text"), app.problems.count_text()


def _form(app: TrainUI, form: SettingsForm) -> Seen:
    for field in form.fields.values():
        if field.label.winfo_viewable():
            yield f"place of {field.path}", True, form.is_field_shown(field.path)
            yield from _field(app, field)


def _field(app: TrainUI, field: Field) -> Seen:
    settings, path, value = app.settings, field.path, app.settings.shown(field.path)
    if isinstance(field, SwitchField):
        yield path, bool(field.editor.get()), value
    elif isinstance(field, ChoiceField):
        yield path, field.editor.get(), field.info.choice_labels[value]
    else:
        text = field.editor.get("1.0", "end-1c") if isinstance(field, TextField) else field.entry.get()
        yield path, text, value_text(value)
    mark = "●" if settings.differs_from_preset(path) else "○" if settings.differs_from_default(path) else ""
    yield f"mark of {path}", _text(field._dot), mark
    problems = "\n".join(problem.message for problem in app.problems.at(path))
    yield f"sentence below {path}", _text(field._problem), problems


def _model(app: TrainUI, tab: ModelTab) -> Seen:
    if tab.page.cards:
        yield "parts", tab.parts.cget("text"), describe_parts(model_of(app.settings.in_effect))
        yield "base", tab.found.cget("text"), app.checks.base_text


def _own_images(app: TrainUI, card: OwnImagesCard) -> Seen:
    if card._are_presets_read:
        chosen = card.quick.chosen_preset
        yield "preset on the start page", card.preset.get(), chosen.label if chosen else app.settings.preset_name
        paths = [] if card.quick.has_demo_images else [concept.path for concept in app.settings.get("concepts")]
        if len(paths) == 1:
            yield "folder on the start page", card.folder.cget("text"), paths[0] or "No folder chosen yet"


def _concepts(app: TrainUI, tab: DatasetTab) -> Seen:
    if tab._is_built:
        yield "concepts", [card.concept for card in tab.cards.cards], app.settings.get("concepts")


def _prompts(app: TrainUI, prompts: PromptList) -> Seen:
    column = list(COLUMNS).index("prompt")
    shown = [prompts.tree.item(row, "values")[column] for row in prompts.tree.get_children()]
    yield "prompts", shown, _prompts(app.settings.get("sampling.samples"))


def _devices(app: TrainUI, tab: MultiGpuTab) -> Seen:
    if not tab.is_built or app.is_building:
        return
    typed = "device_indexes" in app.settings.typed
    chosen = set() if typed else app.devices.ticked(app.settings.get("device_indexes"))
    yield "devices", {number for number, box in enumerate(tab.device_table.boxes) if box.get()}, chosen
    shape = None if app.settings.refused_input() else app.devices.shape(tab._config())
    for label, text in shape_lines(shape, tab._config()) if shape else []:
        yield label, tab.shape_card.text(label), text
    number = app.settings.get("node_rank")
    yield from _command(app, tab.command_card, lambda commands: bash_line(commands[min(number, len(commands) - 1)]))


def _nodes(app: TrainUI, window: MultiNodeWindow) -> Seen:
    yield from _command(
        app, window.commands, lambda commands: commands_text(commands, app.settings.get("master_addr"), bash_line)
    )


def _command(app: TrainUI, card, text_of: Callable) -> Seen:
    config = app.settings.config()
    try:
        text = text_of(app.launch.commands(config, app.devices.shape(config) if config else None))
    except UserError:
        text = ""
    yield "command", card.box.get("1.0", "end-1c"), text


def _changes(app: TrainUI, window: ChangesWindow) -> Seen:
    yield "changes", set(window.table.get_children()), set(app.settings.modified_paths())


def _text(label: Any) -> str:
    """Of a label or button, if it has a place."""
    return label.cget("text") if label is not None and label.winfo_manager() else ""


def _widgets(widget: tkinter.Misc) -> Iterator[tkinter.Misc]:
    for child in widget.children.values():
        yield child
        if not isinstance(child, SettingsForm):
            yield from _widgets(child)


LOOKS: dict[type, Callable[[TrainUI, Any], Seen]] = {
    SettingsForm: _form,
    ModelTab: _model,
    OwnImagesCard: _own_images,
    DatasetTab: _concepts,
    PromptList: _prompts,
    MultiGpuTab: _devices,
    MultiNodeWindow: _nodes,
    ChangesWindow: _changes,
}


def _prompts(samples) -> list[str]:
    """What the list of prompts shows; those that are left empty take the captions in turn."""
    shown = []
    for sample in samples:
        number = 1 + sum(text.startswith("(dataset caption ") for text in shown)
        empty = f"(dataset caption {number})" if sample.enabled else "(a dataset caption)"
        shown.append(sample.prompt or empty)
    return shown
