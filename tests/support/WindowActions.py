"""What a person does in the window, by chance."""

from __future__ import annotations

import random
import tkinter
from collections.abc import Callable, Iterator
from pathlib import Path

from modules.config.describe import settings_by_path
from modules.config.files import config_from_values, save_config
from modules.config.presets import list_presets, load_preset
from modules.session.RunFolder import RunFolder
from modules.ui.OpeningWindow import TABS
from modules.ui.TrainUI import TrainUI
from modules.ui.widgets import dialogs
from modules.ui.widgets.Field import Field
from modules.ui.widgets.form import SettingsForm
from modules.ui.widgets.make_field import ChoiceField, SwitchField
from modules.ui.widgets.typed_fields import EntryField, TypedField
from modules.ui.windows.ChangesWindow import ChangesWindow
from modules.ui.windows.MultiNodeWindow import MultiNodeWindow

TEXTS = {
    "int": ("1", "3", "12", "1000", "many"),
    "float": ("0.5", "1e-4", "2", "0", "x"),
    "list[int]": ("0", "1, 3", "512", "none"),
    "list[float]": ("0", "1e-4, 2e-5", "none"),
    "list[str]": ("", "a.safetensors", "~/a.safetensors; b, c.safetensors"),
    "str": ("", "a b", "29500", "~/pictures"),
}
LISTS = {  # tab -> list of parts that is edited there, and a part
    "dataset": ("concepts", {"path": "elsewhere"}),
    "sampling": ("sampling.samples", {"prompt": "a fox"}),
    "training": ("embeddings", {"placeholder": "new-word"}),
}


class WindowActions:
    """Actions that change the settings, or what is shown of them. Each returns in words what it has done, "" if there
    was nothing to do it to.

    folder: for the settings files and the run folder that they need.
    """

    def __init__(self, app: TrainUI, chance: random.Random, folder: Path):
        self._app, self._chance, self._folder = app, chance, folder
        save_config(config_from_values({**load_preset("sdxl-lora"), "epochs": 7}), folder / "other.yaml")
        run = RunFolder(folder / "run")
        run.create()
        run.event_path(0).touch()
        often = [self.open_tab, self.change_a_field] * 2 + [self.take_a_preset, self.undo, self.open_or_close_a_window]
        self._actions: list[Callable[[], str]] = [
            *often * 3, self.redo, self.filter, self.choose_family_or_method, self.flash, self.open_a_file, self.save,
            self.add_a_part, self.add_a_part, self.remove_a_part, self.move_a_part, self.edit_a_part,
            self.choose_devices, self.reset_a_setting, self.attach,
        ]  # fmt: skip

    def act(self) -> str:
        """Take one of the actions."""
        while True:
            action = self._chance.choice(self._actions)
            if done := action():
                return f"{action.__name__} {done}"

    def open_tab(self) -> str:
        name = self._chance.choice(list(TABS))
        self._app.tab_bar.buttons[name].invoke()
        return name

    def change_a_field(self) -> str:
        """Choose, switch or type something in a field that is on the screen, and leave it."""
        fields = list(fields_on_screen(self._app))
        if not fields:
            return ""
        field = self._chance.choice(fields)
        if isinstance(field, SwitchField):
            field.editor.toggle()
        elif isinstance(field, ChoiceField):
            field.editor._dropdown_callback(self._chance.choice(field.editor.cget("values")))
        elif isinstance(field, TypedField):
            field.write(self._chance.choice(TEXTS[field.info.type]))
            field._leave() if isinstance(field, EntryField) else field._typed()
        return f"{field.path} = {self._app.settings.shown(field.path)!r}"

    def take_a_preset(self) -> str:
        name = self._chance.choice(list_presets()).name
        self._app.top_bar._use([f"preset:{name}"])
        return name

    def undo(self) -> str:
        return "1" if self._app.settings.undo() else ""

    def redo(self) -> str:
        return "1" if self._app.settings.redo() else ""

    def filter(self) -> str:
        show_all = self._chance.random() < 0.5
        self._app.set_show_all(show_all)
        return "all" if show_all else "basic"

    def choose_family_or_method(self) -> str:
        menu = self._chance.choice([self._app.top_bar.family, self._app.top_bar.method])
        label = self._chance.choice(menu.cget("values"))
        menu._dropdown_callback(label)
        return label

    def flash(self) -> str:
        path = self._chance.choice(list(settings_by_path()))
        self._app.flash(path)
        return path

    def open_a_file(self) -> str:
        self._app.top_bar.open_file(self._folder / "other.yaml")
        return "other.yaml"

    def save(self) -> str:
        self._app.top_bar._save_to(self._folder / "mine.yaml")
        return "mine.yaml"

    def add_a_part(self) -> str:
        path, values = LISTS[self._tab_with_parts()]
        self._app.settings.add(path, values)
        return path

    def remove_a_part(self) -> str:
        path, number = self._part()
        if path:
            self._app.settings.remove(path, number)
        return path and f"{path}.{number}"

    def move_a_part(self) -> str:
        path, number = self._part()
        if path:
            self._app.settings.move(path, number, 0)
        return path and f"{path}.{number}"

    def edit_a_part(self) -> str:
        """Choose a concept or a prompt on the tab in front; a concept also in its window."""
        name = self._app.tab_bar.selected
        number = self._chance.randrange(3)
        if name == "dataset" and number < len(self._app.tabs[name].cards.cards):
            self._app.tabs[name].cards.choose(number)
            if self._chance.random() < 0.5:
                self._app.tabs[name].edit(number)
            return f"concept {number}"
        if name == "sampling" and hasattr(self._app.tabs[name], "prompts"):
            self._app.tabs[name].prompts.choose(number)
            return f"prompt {number}"
        return ""

    def choose_devices(self) -> str:
        tab = self._app.tabs.get("multi-GPU")
        if self._app.tab_bar.selected != "multi-GPU" or not tab.is_built or not tab.device_table.boxes:
            return ""
        self._chance.choice(tab.device_table.boxes).toggle()
        return str(self._app.settings.shown("device_indexes"))

    def reset_a_setting(self) -> str:
        """Of those on the screen and elsewhere, as the list of changes does."""
        paths = self._app.settings.modified_paths()
        if not paths:
            return ""
        path = self._chance.choice(paths)
        self._app.settings.reset_to_preset([path])
        return path

    def open_or_close_a_window(self) -> str:
        opened = [one for one in self._app.winfo_children() if isinstance(one, MultiNodeWindow | ChangesWindow)]
        if opened and self._chance.random() < 0.5:
            window = self._chance.choice(opened)
            title = window.title()
            (window.hide if isinstance(window, MultiNodeWindow) else window.destroy)()
            return f"away with {title}"
        if self._chance.random() < 0.5:
            return self._app.top_bar.show_changes().title()
        return dialogs.open_window(self._app, MultiNodeWindow).title()

    def attach(self) -> str:
        self._app.run.attach(self._folder / "run")
        return "to a run"

    def _tab_with_parts(self) -> str:
        """The one in front if it has a list, else any of them."""
        return self._app.tab_bar.selected if self._app.tab_bar.selected in LISTS else self._chance.choice(list(LISTS))

    def _part(self) -> tuple[str, int]:
        path, _ = LISTS[self._tab_with_parts()]
        count = len(self._app.settings.get(path))
        return (path, self._chance.randrange(count)) if count else ("", 0)


def fields_on_screen(widget: tkinter.Misc) -> Iterator[Field]:
    """In all windows."""
    for child in widget.children.values():
        if isinstance(child, SettingsForm) and child.winfo_viewable():
            yield from (field for field in child.fields.values() if field.is_shown)
        yield from fields_on_screen(child)
