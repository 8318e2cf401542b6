"""The settings that the window edits: values, invalid input, undo, presets and the saved state."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError

from modules.config.describe import SettingInfo, settings_by_path, value_at
from modules.config.describe import is_visible as is_visible_in
from modules.config.errors import ConfigError
from modules.config.explain import generic_path
from modules.config.files import config_from_values, load_values, save_config, to_values
from modules.config.presets import load_preset
from modules.config.setting_values import Length, copied, flatten, plain, put_value, value_in
from modules.config.TrainConfig import TrainConfig
from modules.importers.ImportResult import ImportResult
from modules.session.following import run_of_record
from modules.session.RunFolder import RunFolder
from modules.session.working_folder import absolute_path
from modules.ui.models.kept_settings import is_within, kept_settings
from modules.ui.models.Listeners import Listeners
from modules.ui.models.saved_settings import origin_of, read_saved
from modules.ui.models.StateFile import StateFile
from modules.ui.models.typed_text import moved_texts, read_text, refusal_of
from modules.ui.models.UndoHistory import UndoHistory

FIRST_PRESET = "demo"
Paths: TypeAlias = set[str]  # below, `set` is the model's method


@dataclass(frozen=True)
class Snapshot:
    """The state that undo restores. baseline: the values as loaded, which changes are relative to.

    Snapshots after the same load share one baseline object.
    """

    values: dict
    typed: dict[str, Any]
    preset_name: str
    source_file: str
    source_run: str
    baseline: dict


class SettingsModel:
    """The settings of the next run, one path each ("optimizer.learning_rate", "concepts.0.path").

    `config` always holds individually valid values; input that a setting refuses is kept in `typed` until it
    is fixed.
    `source_file` is the absolute path of the file that the settings were opened from or saved to, else "". Settings of
    a run are a copy without a file, as its own file is the record of what it was trained with: `source_run` is its
    folder, else "".
    state_path: the JSON file that stores the state; without one, or with a damaged one, the demo is loaded.
    `restored` says whether the last state was restored; `notice` is a sentence on why not.
    """

    _config: TrainConfig
    _flat: dict[str, Any]
    _baseline: dict
    _flat_baseline: dict[str, Any]

    def __init__(self, state_path: Path | None = None):
        self.typed: dict[str, Any] = {}
        self._refusals: dict[str, str] = {}
        self.preset_name = self.source_file = self.source_run = ""
        self.notice = ""
        self._state_file = StateFile(state_path)
        self._state: dict | None = None  # the current one, once it was asked for
        self._listeners: Listeners[[set[str]]] = Listeners()
        self.history: UndoHistory[Snapshot] = UndoHistory()
        self.restored = self._restore()
        if not self.restored:
            self._take(config_from_values(load_preset(FIRST_PRESET)), FIRST_PRESET)

    # one setting

    def get(self, path: str) -> Any:
        """The value in effect. Raises KeyError, AttributeError or IndexError if the path is not a setting."""
        return value_at(self._config, path)

    def shown(self, path: str) -> Any:
        """What a field shows: the refused input, if any, else the value."""
        return self.typed[path] if path in self.typed else self.get(path)

    def set(self, path: str, value: Any) -> str | None:
        """Set a value, or text typed by the user. Returns None, or a sentence on why it is refused.

        Consecutive typing in one setting is undone as a whole.
        """
        info = self.info(path)
        before = self._snapshot()
        refusal = self._assign(path, info, value)
        self.typed.pop(path, None)
        self._refusals.pop(path, None)
        if refusal is not None:
            self.typed[path], self._refusals[path] = value, refusal
        is_typing = isinstance(value, str) and info.type != "choice"
        self._commit(before, {path}, same_as=path if is_typing else "")
        return refusal

    def info(self, path: str) -> SettingInfo:
        """The declaration of a setting. Raises KeyError if the path is not a setting."""
        return settings_by_path()[generic_path(path)]

    def set_many(self, values: Mapping[str, Any]) -> None:
        """Set several values, which have to be valid, as one step of undo."""
        before = self._snapshot()
        for path, value in values.items():
            self._assign(path, self.info(path), value)
            self._drop_typed(path)
        self._commit(before, set(values))

    def reset(self, path: str) -> None:
        """Reset a setting to its default; a list becomes empty."""
        self.set(path, copied(self.info(path).default))

    def is_visible(self, path: str) -> bool:
        """Whether a setting matters, given the values of the others."""
        info = self.info(path)
        if "[]" not in info.path:
            return is_visible_in(info, self._config)
        item = re.match(r"(.*?\.[0-9]+)(\.|$)", path)
        assert item is not None  # a setting of an item of a list has its number
        return is_visible_in(info, self._config, self.get(item[1]))

    def differs_from_default(self, path: str) -> bool:
        return path in self.typed or self.get(path) != self.info(path).default

    def differs_from_preset(self, path: str) -> bool:
        """Whether the setting differs from the preset, or from its default if the preset does not have this part."""
        if path not in self._flat_baseline:
            return self.differs_from_default(path)
        return path in self.typed or self._flat.get(path) != self._flat_baseline[path]

    # all settings

    def config(self) -> TrainConfig | None:
        """A copy of the settings for a run; None while some field contains refused input."""
        return None if self.refused_input() else config_from_values(to_values(self._config))

    @property
    def values(self) -> dict:
        """The values in effect, as in a settings file."""
        return to_values(self._config)

    @property
    def in_effect(self) -> TrainConfig:
        """The settings, with the last valid value where input is refused. Not to be changed: it is not a copy."""
        return self._config

    def refused_input(self) -> dict[str, str]:
        """Path -> sentence, for each visible setting whose input is refused."""
        return {path: sentence for path, sentence in self._refusals.items() if self.is_visible(path)}

    def tell_again(self, paths: Paths) -> None:
        """Tell the listeners that something about these settings has changed, other than their values."""
        self._notify(paths)

    def modified_paths(self) -> list[str]:
        """The settings that differ from the preset or file they were loaded from, in the order of declaration.

        A list whose length has changed is listed as a whole.
        """
        return self._differing(self._flat_baseline)

    def is_in_preset(self, path: str) -> bool:
        """Whether the preset or file has the setting, which is not the case in an added part."""
        return path in self._flat_baseline

    def preset_value(self, path: str) -> Any:
        """The value in the preset or file that the settings were loaded from; None if it has none."""
        return plain(self._flat_baseline.get(path))

    def compare(self, other: TrainConfig) -> list[tuple[str, Any, Any]]:
        """(path, current value, value in `other`) of each setting that differs, with paths as in `modified_paths`."""
        flat = flatten(to_values(other))
        shown = {path: plain(value) for path, value in self._flat.items()} | self.typed
        return [(path, shown.get(path), plain(flat.get(path))) for path in self._differing(flat)]

    def compare_preset(self, name: str) -> list[tuple[str, Any, Any]]:
        """What `load_preset` would change, as in `compare`. Raises ConfigError if the preset can't be used."""
        config, _, kept = self._with_preset(name)
        return [change for change in self.compare(config) if not is_within(change[0], kept)]

    def reset_to_preset(self, paths: Sequence[str]) -> None:
        """Reset settings to the values of the preset. A list is reset as a whole; settings in parts that either the
        preset or the list does not have are left unchanged."""
        before = self._snapshot()
        values = to_values(self._config)
        for path in paths:
            if path not in self._flat or not self.is_in_preset(path):
                continue
            self._drop_typed(path)
            put_value(values, path, copied(value_in(self._baseline, path)))
        self._config = config_from_values(values)
        self._commit(before, set(paths))

    # undo

    def undo(self) -> bool:
        """Undo the last change; returns False if there is none."""
        return self._return_to(self.history.undo(self._snapshot()))

    def redo(self) -> bool:
        """Redo the change that was undone last; returns False if there is none."""
        return self._return_to(self.history.redo(self._snapshot()))

    @contextlib.contextmanager
    def one_undo_step(self) -> Iterator[None]:
        """All changes within the block are undone together."""
        before, earlier = self._snapshot(), self.history.earlier()
        try:
            yield
        finally:
            if self._snapshot() != before:
                self.history.join(earlier, before)

    def kept(self) -> Snapshot:
        """The settings as they are now, for `return_to`."""
        return self._snapshot()

    def return_to(self, kept: Snapshot) -> None:
        """Show settings as they were kept, as one step of undo."""
        before = self._snapshot()
        self._show(kept)
        self._commit(before, set())

    def stem_from(self, kept: Snapshot) -> bool:
        """Whether the settings were loaded when those kept were, so that nothing else was loaded since."""
        return self._baseline is kept.baseline

    # presets and files

    @property
    def is_preset(self) -> bool:
        """Whether the settings come from a preset, rather than from a file or a run."""
        return not (self.source_file or self.source_run)

    def load_preset(self, name: str, keeps_own: bool = True) -> list[str]:
        """Start from a preset. Returns the paths of the settings kept.

        keeps_own: keep the user's own data and folders; otherwise the settings become exactly those of the preset.
        Raises ConfigError, leaving everything unchanged, if it can't be used.
        """
        config, baseline, kept = self._with_preset(name, keeps_own)
        before = self._snapshot()
        typed = {path: text for path, text in self.typed.items() if is_within(path, kept)}
        self._take(config, name, baseline=baseline, typed=typed)
        self._commit(before, set())
        modified = self.modified_paths()  # values equal to the preset's need no mention
        return [path for path in kept if any(is_within(one, [path]) for one in modified)]

    def load_file(self, path: str | Path) -> None:
        """Load the settings of a file. Raises ConfigError, leaving everything unchanged, if it can't be used."""
        config = config_from_values(load_values(path), str(path))
        before = self._snapshot()
        self._take(config, *origin_of(path))
        self._commit(before, set())

    def load_imported(self, result: ImportResult, name: str, data_only: bool = False) -> None:
        """Take settings that were imported from another program's file, which saving never writes to.

        name: what they are called. data_only: take the concepts and the settings of the data, and keep all others.
        Raises UserError, leaving everything unchanged, if they can't be used.
        """
        if not data_only:
            return self.load_copy(result.config(), name)
        config, before = result.data_in(self._config), self._snapshot()
        self._take(config, self.preset_name, self.source_file, self.source_run, self._baseline)
        self._commit(before, set())

    def load_copy(self, config: TrainConfig, name: str) -> None:
        """Take settings that saving never writes back to where they came from. name: what they are called."""
        before = self._snapshot()
        self._take(config, name)
        self._commit(before, set())

    def load_run(self, folder: Path) -> None:
        """Load the settings of a run, to train in its folder. Raises UserError, as `load_file` does ConfigError."""
        with self.one_undo_step():
            self.load_file(RunFolder(folder).config_path)
            if RunFolder(self.get("workspace_dir")).path != folder:  # moved, or relative to another folder
                self.set("workspace_dir", str(folder))

    def save(self, path: str | Path) -> None:
        """Write the settings to a file, which becomes their source.

        Raises ConfigError if it can't be written or is the record of a run, or if a field contains refused input.
        """
        if run := run_of_record(path):
            raise ConfigError(f"{path} records the settings of the run {run.name}: save to another file.")
        if refused := self.refused_input():
            raise ConfigError(f"the settings can't be saved: {next(iter(refused.values()))}")
        save_config(self._config, path)
        loaded, baseline = self._baseline, to_values(self._config)
        self.preset_name, self.source_file, self.source_run = Path(path).name, absolute_path(path), ""
        self._baseline, self._flat_baseline = baseline, flatten(baseline)

        def of_file(one: Snapshot) -> Snapshot:
            name, file = self.preset_name, self.source_file
            return dataclasses.replace(one, preset_name=name, source_file=file, source_run="", baseline=baseline)

        # Earlier snapshots of the same load are relative to the file too.
        self.history.replace(lambda one: of_file(one) if one.baseline is loaded else one)
        self.history.end_typing()  # so that undo leads back to the saved state
        self._notify(set())

    # parts of a list

    def add(self, path: str, values: dict | None = None) -> int:
        """Append a part to a list ("concepts"); returns its index. Raises ConfigError for invalid values."""
        before = self._snapshot()
        parts = value_in(to_values(self._config), path)
        self._replace_list(path, [*parts, dict(values or {})])
        self._commit(before, {path})
        return len(parts)

    def replace_parts(self, path: str, parts: Sequence[dict]) -> None:
        """Replace all parts of a list ("concepts"). Raises ConfigError for invalid values."""
        before = self._snapshot()
        self._replace_list(path, [dict(part) for part in parts])
        self._drop_typed(path)
        self._commit(before, {path})

    def remove(self, path: str, index: int) -> None:
        """Remove a part from a list."""
        order = [number for number in range(len(self.get(path))) if number != index]
        self._reorder(path, order)

    def duplicate(self, path: str, index: int) -> None:
        """Insert a copy of a part behind it."""
        order = list(range(len(self.get(path))))
        self._reorder(path, [*order[: index + 1], *order[index:]])

    def move(self, path: str, source: int, target: int) -> None:
        """Move the part at index `source` to index `target`."""
        order = list(range(len(self.get(path))))
        order.insert(target, order.pop(source))
        self._reorder(path, order)

    # listeners and the saved state

    def subscribe(self, changed: Callable[[Paths], None]) -> Callable[[], None]:
        """Call `changed` with the changed paths after every change; problems and visibility of others may have
        changed too.

        When the length of a list changes, its own path is included ("concepts"). Returns a function that unsubscribes.
        """
        return self._listeners.add(changed)

    def pending_save(self) -> Callable[[], None] | None:
        """A function that writes the current state, to be called in any thread; None if it is already written.

        The function raises OSError if the file can't be written. It does nothing if a later state was written first.
        """
        if self._state is None:  # with hundreds of concepts it takes too long to be taken each second
            self._state = vars(self._snapshot())
        return self._state_file.pending_save(self._state)

    def _restore(self) -> bool:
        path = self._state_file.path
        if path is None or not path.exists():
            return False
        try:
            self._take(*read_saved(json.loads(path.read_bytes())))
        except ConfigError as error:
            self.notice = f"The last settings can't be used: {error.problems[0].message} The demo is loaded instead."
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.notice = f"{path} can't be read: the demo is loaded instead of the last settings."
        else:
            return True
        if aside := self._state_file.set_aside():
            self.notice += f" They are kept in {aside}."
        return False

    def _with_preset(self, name: str, keeps_own: bool = True) -> tuple[TrainConfig, dict, list[str]]:
        """The settings after applying a preset, the preset's own values, and the paths of the settings kept."""
        preset = to_values(config_from_values(load_preset(name), f"preset {name}"))
        now, values = to_values(self._config), copied(preset)
        # After loading a file or a run, everything but the defaults is the user's own.
        start = self._flat_baseline if self.is_preset else flatten(to_values(TrainConfig()))
        kept = kept_settings(self._differing(start), now, preset) if keeps_own else []
        for path in kept:
            put_value(values, path, value_in(now, path))
        return config_from_values(values), preset, kept

    def _take(
        self,
        config: TrainConfig,
        name: str,
        source_file: str = "",
        source_run: str = "",
        baseline: dict | None = None,
        typed: dict[str, Any] | None = None,
    ) -> None:
        self._config = config
        self._flat = flatten(to_values(config))
        self._baseline = to_values(config) if baseline is None else baseline
        self._flat_baseline = flatten(self._baseline)
        self.preset_name, self.source_file, self.source_run = name, source_file, source_run
        self._keep_typed(typed or {})

    def _assign(self, path: str, info: SettingInfo, value: Any) -> str | None:
        try:
            read = read_text(info, value) if isinstance(value, str) else value
            parent, _, name = path.rpartition(".")
            setattr(self.get(parent) if parent else self._config, name, read)
        except ValidationError as error:
            return refusal_of(path, info, value, error)
        except ValueError as error:
            return f"{info.label}: {error}."
        return None

    def _keep_typed(self, typed: dict[str, Any]) -> None:
        """Restore refused input, and determine again why each is refused."""
        self.typed, self._refusals = {}, {}
        for path, text in typed.items():
            value = self.get(path)
            refusal = self._assign(path, self.info(path), text)
            self._assign(path, self.info(path), value)
            if refusal is not None:
                self.typed[path], self._refusals[path] = text, refusal

    def _replace_list(self, path: str, parts: list[dict]) -> None:
        values = to_values(self._config)
        put_value(values, path, parts)
        self._config = config_from_values(values)

    def _reorder(self, path: str, order: list[int]) -> None:
        before = self._snapshot()
        parts = value_in(to_values(self._config), path)
        self._replace_list(path, [parts[number] for number in order])
        places = {old: new for new, old in reversed(list(enumerate(order)))}  # for a part and its copy, the original's
        self._keep_typed(moved_texts(self.typed, path, places))
        self._commit(before, {path})

    def _drop_typed(self, path: str) -> None:
        for other in [one for one in self.typed if one == path or one.startswith(f"{path}.")]:
            del self.typed[other], self._refusals[other]

    def _differing(self, then: dict[str, Any]) -> list[str]:
        now = self._flat
        changed = {path for path in now.keys() | then.keys() if now.get(path) != then.get(path)}
        changed |= self.refused_input().keys()
        resized = {path for path in changed if isinstance(now.get(path, then.get(path)), Length)}
        changed = {path for path in changed if not any(path.startswith(f"{other}.") for other in resized)}
        order = {path: number for number, path in enumerate(settings_by_path())}
        return sorted(changed, key=lambda path: (order.get(generic_path(path), 0), path))

    def _snapshot(self) -> Snapshot:
        values = to_values(self._config)
        origin = self.preset_name, self.source_file, self.source_run
        return Snapshot(values, dict(self.typed), *origin, self._baseline)

    def _commit(self, before: Snapshot, touched: Paths, same_as: str = "") -> None:
        """After a change: add an undo step, as UndoHistory.add, and notify the listeners."""
        if self._snapshot() == before:
            return
        self.history.add(before, same_as)
        self._notify(touched | self._changed_since(before))

    def _return_to(self, then: Snapshot | None) -> bool:
        if then is None:
            return False
        now = self._snapshot()
        self._show(then)
        self._notify(self._changed_since(now))
        return True

    def _show(self, then: Snapshot) -> None:
        origin = then.preset_name, then.source_file, then.source_run
        self._take(config_from_values(then.values), *origin, then.baseline, then.typed)

    def _changed_since(self, before: Snapshot) -> Paths:
        self._flat, old = flatten(to_values(self._config)), flatten(before.values)
        values = {path for path in self._flat.keys() | old.keys() if self._flat.get(path) != old.get(path)}
        texts = {path for path in self.typed.keys() | before.typed if self.typed.get(path) != before.typed.get(path)}
        return values | texts

    def _notify(self, paths: Paths) -> None:
        self._state = None
        self._listeners.tell(paths)
