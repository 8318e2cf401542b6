"""The multi-GPU tab: devices, links, parallelism and its effects, the launch command, and the live ranks."""

from __future__ import annotations

import tkinter
from collections.abc import Generator
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.describe import settings_by_path
from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.config.TrainConfig import TrainConfig
from modules.machine.backend import choose_backend
from modules.machine.Machine import read_machine
from modules.machine.run_shape import RunShape, shape_lines, uses_torchrun
from modules.ui.cards.Card import Card
from modules.ui.cards.CommandCard import CommandCard
from modules.ui.cards.DeviceTable import DeviceTable
from modules.ui.cards.LinksCard import LinksCard
from modules.ui.cards.RankTable import RankTable
from modules.ui.cards.ShapeCard import ShapeCard
from modules.ui.models.run_text import describe_ranks
from modules.ui.models.RunState import RunState
from modules.ui.widgets.dialogs import open_window
from modules.ui.widgets.form import SettingsForm
from modules.ui.widgets.Page import Page
from modules.ui.widgets.scrolling import focus_in_sight, make_scrollbar, scroll_to
from modules.ui.windows.MultiNodeWindow import MultiNodeWindow

if TYPE_CHECKING:
    from modules.ui.App import App

USAGE_SECONDS = 1.0
TWO_COLUMNS = 1100  # minimum width, unscaled: the table of GPUs takes half of it

# shown even with advanced settings hidden
ALWAYS = ("use_torchrun", "distributed_backend", "distributed_data_loading", "gradient_reduce_precision", "lr_scaling")
BATCH_PATHS = ("batch_size", "batch_size_mode", "gradient_accumulation_steps")


class MultiGpuTab(ctk.CTkFrame):
    """Cards in two columns, or in one if the window is narrow."""

    def __init__(self, parent: tkinter.Misc, app: App):
        super().__init__(parent, fg_color="transparent")
        self.app = app
        self.devices, self.launch = app.devices, app.launch
        self._is_reading = False
        self._num_columns = 0
        self._page = Page(self)
        self._page.pack(fill="both", expand=True)
        # Created before the cards, so that cards packed into them are stacked above.
        self._columns = [ctk.CTkFrame(self._page, fg_color="transparent") for _ in range(2)]
        self._view = app.views.add(self, lambda paths: self._show_all())
        self._ends = [
            self._view.end,
            self.devices.subscribe(self._on_devices),
            self.launch.subscribe(self._view.invalidate),
            app.every(USAGE_SECONDS, self._poll_usage),
        ]
        self.is_built = False
        self._stacks: list[list[Card]] = [[], []]
        self._device_card: Card | None = None
        self.links_card: LinksCard | None = None
        self.shape_card: ShapeCard | None = None
        self.command_card: CommandCard | None = None
        self._rank_card: Card | None = None
        self._build_shape_card()
        self._steps: list[Generator[None, None, None]] = []
        self._in_slices(self._build())

    def destroy(self) -> None:
        for end in self._ends:
            end()
        for steps in self._steps:
            steps.close()
        super().destroy()

    def refresh_machine(self) -> None:
        """Query the driver for the GPUs again."""
        self.app.in_background(read_machine, self._if_there(self.devices.take_machine))

    def choose(self, indexes: set[int]) -> None:
        """Train on these GPUs."""
        self.app.settings.set("device_indexes", self.devices.setting_for(indexes))
        self._show_choice()  # even if nothing changed, because the click has toggled a box

    def choose_idle(self) -> None:
        idle = self.devices.idle()
        if not idle:
            text = "No GPU is idle: all are computing, or hold the memory of other programs."
            self.app.show_message(text, "warning", lambda: not self.devices.idle())
            return
        self.choose(idle)

    def open_nodes(self) -> None:
        """Open the window for several machines."""
        open_window(self.app, MultiNodeWindow)

    def show(self) -> None:
        """Update all cards from the settings and the machine."""
        config = self._config()
        is_valid = not self.app.settings.refused_input()
        shape = self.devices.shape(config) if is_valid else None
        self._backend_note.configure(text=self._launch_text(config))
        lines = shape_lines(shape, config) if shape else []
        lines += [("Memory", self.devices.memory_text(config))] if is_valid else []
        assert self.shape_card is not None  # since views are refreshed
        self.shape_card.show(lines)
        self._show_command(self.app.settings.config(), shape)

    # --- events ------------------------------------------------------------------------------------------------------

    def _on_devices(self, what: str) -> None:
        if not self.is_built:
            return
        if what == "machine":
            self._in_slices(self._show_machine())
        if what == "usage":
            self.device_table.show_usage()
        self._view.invalidate()

    def _in_slices(self, steps: Generator[None, None, None]) -> None:
        self._steps.append(steps)
        self.app.in_slices(steps)

    def _show_machine(self) -> Generator[None, None, None]:
        seen = focus_in_sight(self._page)
        yield from self.device_table.show_machine()
        self._show_choice()
        yield
        assert self.links_card is not None  # machines are shown once all cards are built
        self.links_card.show_machine()
        for button in self._choose_buttons:
            button.configure(state="normal" if self.devices.gpus else "disabled")
            yield
        if seen is not None and seen.winfo_exists():
            scroll_to(seen)  # a long table may have pushed it out of view

    def _show_all(self) -> None:
        if self.is_built:
            self._show_choice()
            self.show()

    def _show_choice(self) -> None:
        if self.devices.machine is not None:
            ticked = self.devices.ticked(self.app.settings.get("device_indexes")) if self._is_chosen() else set()
            self.device_table.show_choice(ticked)
            note = self.devices.choice_note(self._config()) if self._is_chosen() else ""
            self.choice_note.configure(text=note)
            self.choice_note.grid() if note else self.choice_note.grid_remove()

    def _is_chosen(self) -> bool:
        """Whether the setting contains GPUs to train on, rather than none or invalid input."""
        return "device_indexes" not in self.app.settings.typed

    def _poll_usage(self) -> None:
        if not self.is_built or self._is_reading or not self.devices.gpus or not self.winfo_viewable():
            return
        self._is_reading = True

        def take(usage: list) -> None:
            self._is_reading = False
            self.devices.take_usage(usage)

        def fail(error: Exception) -> None:
            self._is_reading = False
            raise error

        self.app.in_background(self.devices.read_usage(), self._if_there(take), fail)

    def _on_run(self, state: RunState) -> None:
        self.rank_table.show(state.ranks)
        assert self._rank_card is not None  # since runs are followed
        self._rank_card.show_title(f"Ranks: {describe_ranks(state.ranks)}")

    def _on_rank(self, rank: int | None) -> None:
        """Make the log show this rank, once it is opened."""
        self.app.log_rank = rank

    def _if_there(self, then):
        """Wrap a callback for a thread's result, which may arrive after the tab is destroyed."""
        return lambda result: then(result) if self.winfo_exists() else None

    def _config(self) -> TrainConfig:
        """The settings in effect, even while some field contains invalid input."""
        return self.app.settings.config() or config_from_values(self.app.settings.values)

    def _show_command(self, config: TrainConfig | None, shape: RunShape | None) -> None:
        assert self.command_card is not None  # since views are refreshed
        try:
            commands = self.launch.commands(config, shape)
            assert config is not None  # else `commands` refuses
            places = self.launch.places_of(config)
        except UserError as error:
            self.command_card.refuse(str(error))
            return
        if len(commands) > 1:
            note = f"For machine {config.node_rank} of {len(commands)}, counted from 0. Several machines… shows all."
        else:
            note = "Copy and Save also save the current settings, which the command uses."
        self.command_card.show(config, commands, places, note)

    def _launch_text(self, config: TrainConfig) -> str:
        starter = "torchrun" if uses_torchrun(config) else "Chorus itself"
        lines = [f"Started from this window: spawn. Started by the command below: {starter}."]
        if strategy := self.devices.strategy_text(config):
            lines.append(strategy)
        if config.distributed_backend == "auto" and self.devices.machine is not None:
            backend, reason = choose_backend("auto", bool(self.devices.gpus))
            lines.append(f"Backend auto is {backend} here: {reason}.")
        return "\n".join(lines)

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build(self) -> Generator[None, None, None]:
        """Create the cards one at a time, laying each out before the next, so that the window never stalls."""
        builders = (self._build_devices, self._build_links, self._build_shape, self._build_command, self._build_ranks)
        for build in builders:
            yield
            build()
            yield
            self._arrange()
        self._page._parent_canvas.bind("<Configure>", lambda event: self._arrange(), add="+")
        yield
        self.is_built = True
        self._ends.append(self.app.run.subscribe(self._on_run))
        self._on_run(self.app.run.state)
        if self.devices.machine is not None:
            yield from self._show_machine()
        self.show()
        yield
        self.refresh_machine()

    def _build_links(self) -> None:
        self.links_card = LinksCard(self._page, self.app, self.devices)

    def _build_shape(self) -> None:
        self.shape_card = ShapeCard(self._page, self.app)

    def _build_command(self) -> None:
        self.command_card = CommandCard(self._page, self.app, "Command", extra=("Several machines…", self.open_nodes))

    def _build_devices(self) -> None:
        self._device_card = Card(self._page, self.app, "Devices on this machine")
        self.device_table = DeviceTable(self._device_card, self.app, self.devices, self.choose)
        self.device_table.grid(row=1, column=0, sticky="ew", padx=2)
        self.choice_note = self._device_card.add_note(2)
        self.choice_note.grid_remove()
        _, *self._choose_buttons = self._device_card.add_buttons(
            3,
            ("Refresh", self.refresh_machine),
            ("All", lambda: self.choose({gpu.index for gpu in self.devices.gpus})),
            ("None", lambda: self.choose(set())),
            ("Only idle", self.choose_idle),
        )

    def _build_shape_card(self) -> None:
        """Create this card at once, so that the search finds its fields; the form itself is built in slices."""
        self._run_card = Card(self._page, self.app, "Parallelism")
        others = [path for path, info in settings_by_path().items() if info.group == "multi_gpu"]
        first = ["enable_multi_gpu", *ALWAYS, *BATCH_PATHS]
        paths = [*first, *(path for path in others if path not in first)]
        self.shape_form = SettingsForm(self._run_card, self.app, paths, always=ALWAYS)
        self.shape_form.grid(row=1, column=0, sticky="ew", padx=(0, 2))
        self._backend_note = self._run_card.add_note(2)

    def _build_ranks(self) -> None:
        self._rank_card = Card(self._page, self.app, "Ranks")
        frame = ctk.CTkFrame(self._rank_card, fg_color="transparent")
        frame.grid(row=1, column=0, sticky="ew", padx=12, pady=(2, 12))
        frame.grid_columnconfigure(0, weight=1)
        self.rank_table = RankTable(frame, self.app, self._on_rank)
        self.rank_table.grid(row=0, column=0, sticky="ew")
        make_scrollbar(frame, self.rank_table, row=0, column=1)

    def _arrange(self) -> None:
        """Put the existing cards into one or two columns."""
        width = self._page._parent_canvas.winfo_width()
        count = 2 if width <= 1 or width >= self.app.theme.scaled(TWO_COLUMNS) else 1
        left, right = [self._device_card, self.links_card], [self._run_card, self.shape_card, self.command_card]
        stacks = (left, right) if count == 2 else ([left[0], *right, left[1]], [])
        if count != self._num_columns:
            self._num_columns = count
            for number, column in enumerate(self._columns):
                shown = bool(stacks[number])
                self._page.grid_columnconfigure(number, weight=int(shown), uniform="cards" if count == 2 else "")
                column.grid(row=0, column=number, sticky="new") if shown else column.grid_remove()
                for card in self._stacks[number]:
                    card.pack_forget()
            self._stacks = [[], []]
        for number, stack in enumerate(stacks):
            self._fill(number, [card for card in stack if card is not None])
        if self._rank_card is not None:
            self._rank_card.grid(row=1, column=0, columnspan=count, sticky="new", padx=6, pady=6)

    def _fill(self, number: int, cards: list[Card]) -> None:
        """Add cards to a column, leaving those that are already there in place."""
        above: dict[str, Card] = {}
        for card in cards:
            if card not in self._stacks[number]:
                card.pack(in_=self._columns[number], fill="x", padx=6, pady=6, **above)
            above = {"after": card}
        self._stacks[number] = cards
