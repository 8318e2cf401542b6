"""The dataset window: all images of a concept or of all concepts in a grid, and the current one large beside it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import customtkinter as ctk

from modules.config.files import config_from_values
from modules.config.labels import with_labels
from modules.config.visible_text import visible_text
from modules.data.masks import uses_masks
from modules.data.videos import is_video
from modules.ui.file_drops import accept_drops, add_dropped_folders
from modules.ui.models.CaptionWork import CaptionWork
from modules.ui.models.dataset_reading import Listing, find_item_masks, list_items, read_details
from modules.ui.models.DatasetView import ALL, DatasetItem, DatasetView, Trait, concept_names
from modules.ui.models.PictureDecoder import PictureDecoder
from modules.ui.models.training_fit import mark_small
from modules.ui.widgets.DatasetBar import DatasetBar
from modules.ui.widgets.DatasetHead import DatasetHead, Tool
from modules.ui.widgets.dialogs import bring_up, set_size, show_over
from modules.ui.widgets.VirtualGrid import Tile, VirtualGrid
from modules.ui.windows.dataset_keys import bind_window_keys
from modules.ui.windows.dataset_marks import marks_of
from modules.ui.windows.dataset_room import Division, share_room
from modules.ui.windows.dataset_tools import tools_of
from modules.ui.windows.DuplicateFinder import FIND, DuplicateFinder
from modules.ui.windows.EditCaptionsWindow import EditCaptionsWindow
from modules.ui.windows.ImageSide import ImageSide
from modules.ui.windows.LongCaptions import LongCaptions

if TYPE_CHECKING:
    from modules.config.TrainConfig import TrainConfig
    from modules.ui.App import App

WIDTH, HEIGHT = 1240, 800
NUM_DECODERS = 2  # processes
PART = 400  # images whose details are asked for at once
PAUSE_MS, LOADING_PAUSE_MS = 10, 100  # between two parts: scrolling and thumbnails in sight come first
SCROLLED_SECONDS = 0.3  # after which nobody scrolls any more
SHOW_EVERY = 0.7  # seconds, after which counts and filters follow what was read meanwhile
TYPING_MS = 600  # after the last change of a setting, so that no half-typed folder is read
READ_BY = {"concepts", "data", "family", "method", "workspace_dir", "cache_dir", "loss"}  # settings that matter


def open_dataset(app: App, number: int | None) -> DatasetWindow:
    """Open the window for `concepts.<number>`; None: for all that are enabled. There is only one, which is reused."""
    there = [child for child in app.root.winfo_children() if type(child) is DatasetWindow]
    window = there[0] if there else DatasetWindow(app)
    window.show(number)
    return window


class DatasetWindow(ctk.CTkToplevel):
    """Closing only hides the window, because CustomTkinter never frees one completely.

    Its keys are those of dataset_keys.py.
    """

    def __init__(self, app: App):
        super().__init__(app.root, fg_color=app.theme.page)
        self.app = app
        self.view = DatasetView()
        self.number: int | None = None  # of the concept shown; None: all
        self._is_open = self._was_shown = self._is_finding = False
        self._shared: Division | None = None
        self._config: TrainConfig | None = None  # that the images were found with
        self._listing = Listing()
        self._numbers: dict[str, int] = {}  # of items, by path
        self._given_up = threading.Event()  # cancels what is being read
        self._next_unread = 0
        self._find_job: str | None = None
        self._read_job: str | None = None
        self._notice = ""  # what was done last
        self._long = LongCaptions(app, self._take_lengths)
        self._versions: Counter[str] = Counter()  # of the files of items, by path
        self._changed: set[str] = set()  # settings of folders whose files were changed, which nobody else knows yet
        self._edited: set[str] = set()  # paths of items whose captions were read again after a change
        self._picked: tuple[Sequence[str], str] | None = None  # to be shown once they are found, and what they are
        self._has_news = False  # whether something was read that is not shown yet
        self.title("Dataset")
        set_size(self, f"{WIDTH}x{HEIGHT}", (640, 420))
        self.grid_columnconfigure(0, weight=3, uniform="dataset")
        self.grid_columnconfigure(1, weight=2, uniform="dataset")
        self.grid_rowconfigure(2, weight=1)
        self._build_head()
        self.bar = DatasetBar(
            self, app, self.view, self._show_items, lambda by: self.cells.resize_by(by), self._show_masks
        )
        self.bar.grid(row=1, column=0, columnspan=2, sticky="ew", padx=12, pady=(0, 8))
        self._decoder = PictureDecoder(NUM_DECODERS)
        self.cells = VirtualGrid(
            self, app, self._tile_of, self._show_current, self._on_select, self._edit, decoder=self._decoder,
            on_unreadable=self._mark_unreadable,
        )  # fmt: skip
        self.bar.focus_after_click(self.cells.canvas)
        self.cells.grid(row=2, column=0, sticky="nsew", padx=(12, 4), pady=(0, 12))
        self.side = ImageSide(
            self, app, self._selected, self._take_renewed, self._go_to, self.edit_captions, self._note, self._make_room,
            self._go_to,
        )  # fmt: skip
        self.side.grid(row=2, column=1, sticky="nsew", padx=(4, 12), pady=(0, 12))
        self.large, self.caption = self.side.large, self.side.caption
        bind_window_keys(self)
        self._ends = [
            app.settings.subscribe(self._on_settings),
            app.checks.places.subscribe(self._on_places),
            app.every(SHOW_EVERY, self._show_news),
            lambda: app.before_closing.remove(self.side.saves_first),
        ]
        app.before_closing.append(self.side.saves_first)
        app.root.bind("<FocusIn>", lambda event: self._tell_changes(), add="+")
        accept_drops(self, lambda paths: add_dropped_folders(app, paths, self.show))
        self.bind("<Configure>", lambda event: self._share_room() if event.widget is self else None, add="+")
        self.protocol("WM_DELETE_WINDOW", self.hide)
        self.withdraw()

    # --- public methods ----------------------------------------------------------------------------------------------

    def show(self, number: int | None) -> None:
        """Show the images of `concepts.<number>`; None: of all that are enabled."""
        is_other = number != self.number or not self._is_open
        self.number, self._is_open = number, True
        self._decoder.start()
        if is_other:
            self._find()
        if self._was_shown:
            bring_up(self)
        else:
            show_over(self.app, self)
            self._was_shown = True
            self.lift()
        self.cells.canvas.focus_set()

    def hide(self) -> None:
        self.withdraw()
        self._is_open = False
        self.side.end_editing()
        self.caption.save()
        if self.caption.writing.is_busy:
            self._changed |= {f"concepts.{number}.path" for number in {item.concept for item in self.view.items}}
        self._tell_changes()
        self._give_up()
        self._decoder.close()
        self.caption.use(None, list)
        self._long.close()
        self._set_items(Listing())

    def refresh(self) -> None:
        """Read the folders again."""
        self._versions.clear()
        self.cells.forget_pictures()
        self.large.refresh()
        self._find()

    def pick(self, paths: Sequence[str], what: str) -> None:
        """Show these images alone, at once or when they are found. what: they have in common, for the person."""
        self._picked = paths, what
        if not self._is_finding:
            self._show_picked()

    # --- finding and reading -----------------------------------------------------------------------------------------

    def _find(self) -> None:
        """Find the images in a thread."""
        self._give_up()
        config = self._config = config_from_values(self.app.settings.values)
        if self.number is not None and self.number >= len(config.concepts):
            self.hide()
            return
        self._name_concepts(config)
        self._is_finding = True
        every = [number for number, concept in enumerate(config.concepts) if concept.enabled]
        numbers = every if self.number is None else [self.number]
        given_up = self._given_up = threading.Event()
        self._tell("Looking for images…")
        self.cells.empty = "Looking for images…"

        def find() -> tuple[Listing, CaptionWork]:
            listing = list_items(config, numbers, lambda: not given_up.is_set())
            return listing, CaptionWork({number: config.concepts[number] for number in numbers})

        def take(found: tuple[Listing, CaptionWork]) -> None:
            if not given_up.is_set():
                self._take_listing(*found)

        self.app.in_background(find, take)

    def _take_listing(self, listing: Listing, work: CaptionWork) -> None:
        assert self._config is not None  # the images were found with it
        self._is_finding = False
        self._long.use(self._config)
        self.side.crops.config_of_run = self._config
        self.caption.use(work, lambda: self.view.items, self._long.counts, self._shown)
        self._edited.clear()
        self.cells.empty = "No image passes the filter and the search." if listing.items else "No images"
        self._set_items(listing)
        config, given_up, items = self._config, self._given_up, list(self.view.items)

        def take(masks: list[str]) -> None:
            if not given_up.is_set():
                self._take_masks(config, masks)

        self.app.in_background(lambda: find_item_masks(config.concepts, items), take)

    def _set_items(self, listing: Listing) -> None:
        current = self.cells.selection.current
        path = self.view.items[current].path if current is not None and current < len(self.view.items) else ""
        concepts = self._config.concepts if self._config else []
        self._listing, self._next_unread = listing, 0
        self.view.separators = {number: concept.tag_separator for number, concept in enumerate(concepts)}
        self.cells.selection.choose(None)
        self.view.take_items(listing.items)
        self._duplicates.show_button()
        self._numbers = {item.path: number for number, item in enumerate(self.view.items)}
        self._show_items()
        if self.view.shown:
            self.cells.choose(self._numbers.get(path, self.view.shown[0]))
        self._show_news(is_due=True)
        if self._picked and listing.items:
            self._show_picked()

    def _show_picked(self) -> None:
        assert self._picked is not None  # there are some
        (paths, what), self._picked = self._picked, None
        self.view.take_picked(paths)
        self.bar.show_counts(self.view.counts())
        self.bar.choose("picked")
        if self.view.shown:
            self.cells.choose(self.view.shown[0])
        self._note(f"{what}.")

    def _mark_unreadable(self, number: int, reason: str) -> None:
        self._has_news |= self.view.mark_unreadable(number, reason)

    def _take_masks(self, config: TrainConfig, masks: Sequence[str]) -> None:
        for item, mask in zip(self.view.items, masks, strict=True):
            item.mask = mask
        self._mark_masks(config)
        self.cells.redraw()
        self._has_news = True
        self._read_next()

    def _mark_masks(self, config: TrainConfig) -> None:
        """Mark the images without a mask, once there are masks or the training is to read them."""
        matter = uses_masks(config) or any(item.mask for item in self.view.items)
        for item in self.view.items:
            item.set_trait(Trait.NO_MASK, matter and not item.mask)

    def _read_next(self) -> None:
        """Read sizes and captions of the next images in a thread."""
        self._read_job = None
        if time.monotonic() - self.cells.moved_at < SCROLLED_SECONDS:
            self._read_job = self.after(LOADING_PAUSE_MS, self._read_next)
            return
        first, config, given_up = self._next_unread, self._config, self._given_up
        part, tables = self.view.items[first : first + PART], self._listing.tables
        if not part or config is None:
            self._show_news(is_due=True)
            self._long.find(self.view.items)
            return

        def take(read: list[DatasetItem]) -> None:
            if given_up.is_set():
                return
            present = self.view.items[first : first + len(read)]
            # captions that were edited meanwhile are newer
            read = [there if there.path in self._edited else made for there, made in zip(present, read, strict=True)]
            self.view.items[first : first + len(read)] = read
            self._next_unread = first + len(read)
            self._has_news = True
            self.cells.redraw_items(range(first, self._next_unread))
            current = self.cells.selection.current
            if current is not None and first <= current < self._next_unread:
                self.side.show_details(self.view.items[current])
            pause = LOADING_PAUSE_MS if self.cells.is_loading else PAUSE_MS
            self._read_job = self.after(pause, self._read_next)

        self.app.in_background(lambda: read_details(config, tables, part), take)

    def _take_lengths(self, numbers: range) -> None:
        if self.winfo_exists():
            self.cells.redraw_items(numbers)
            self._has_news = True

    def _give_up(self) -> None:
        self._given_up.set()
        self._duplicates.cancel()
        for job in filter(None, (self._find_job, self._read_job)):
            self.after_cancel(job)
        self._find_job = self._read_job = None

    def _on_settings(self, paths: set[str]) -> None:
        if self._is_open and any(path.partition(".")[0] in READ_BY for path in paths):
            if self._find_job is not None:
                self.after_cancel(self._find_job)
            self._find_job = self.after(TYPING_MS, self._find)

    def _on_places(self, settings: set[str]) -> None:
        """Read the folders again that have gone or come back outside the window."""
        if self._is_open and any(name.startswith("concepts.") for name in settings):
            self._find()

    # --- display -----------------------------------------------------------------------------------------------------

    def _show_items(self) -> None:
        self.cells.show(self.view.shown)
        self._show_summary()

    def _show_news(self, is_due: bool = False) -> None:
        """Let counts and filters follow what was read."""
        if not self._has_news and not is_due:
            if self._duplicates.state:
                self._show_summary()
            return
        self._has_news = False
        self.bar.show_counts(self.view.counts())
        if self.view.is_narrowed or self.view.order != "name":
            self.view.update()
            self._show_items()
        self._show_summary()

    def _note(self, text: str) -> None:
        """Say what was done until something else is selected."""
        self._notice = text
        self._show_summary()

    def _on_select(self) -> None:
        self._notice = ""
        self._show_summary()
        self.caption.show_selection()

    def _show_summary(self) -> None:
        text = self.view.summary(len(self.cells.selection.numbers))
        total = len(self.view.items)
        text += self._duplicates.state
        if self._next_unread < total:
            text += f"; reading sizes and captions, {self._next_unread / total:.0%}"
        self._tell(" ".join(filter(None, [f"{text}.", self._notice, *map(with_labels, self._listing.problems)])))

    def _tell(self, text: str) -> None:
        self.head.tell(visible_text(text)[:400], bool(self._listing.problems))

    def _name_concepts(self, config: TrainConfig) -> None:
        self._concepts = {ALL: None, **{name: number for number, name in enumerate(concept_names(config.concepts))}}
        shown = next(name for name, number in self._concepts.items() if number == self.number)
        self.head.show_concepts(list(self._concepts), shown)
        self.title(f"Dataset: {shown}")

    def _tile_of(self, number: int) -> Tile:
        item = self.view.items[number]
        is_out = bool(item.traits & Trait.LEFT_OUT)
        return Tile(item.path, marks_of(item), is_out, *self._overlay_of(item), item.shown_part)

    def _overlay_of(self, item: DatasetItem) -> tuple[str, int]:
        """The mask that is shown over an item, "" for none, and the version of its files."""
        concepts = self._config.concepts if self._config else []
        has_own = item.concept < len(concepts) and concepts[item.concept].alpha_mask and not is_video(item.path)
        mask = (item.mask or (item.path if has_own else "")) if self.bar.shows_masks else ""
        return mask, self._versions[item.path] if mask else 0

    def _show_current(self, number: int | None) -> None:
        item = None if number is None else self.view.items[number]
        concepts = self._config.concepts if self._config else []
        overlay = self._overlay_of(item) if item else ("", 0)
        self.side.show(item, concepts[item.concept].frame_folders_fps if item else None, *overlay)

    def _show_masks(self) -> None:
        """Show the masks over the images, or no longer."""
        self.cells.redraw()
        self._show_current(self.cells.selection.current)

    def _make_room(self) -> None:
        """Give more room to what is being painted, cropped or compared."""
        self._share_room()
        if not self.side.is_editing:
            self.cells.canvas.focus_set()

    def _share_room(self) -> None:
        self._shared = share_room(self, self._shared)

    def _edit(self, number: int) -> None:
        self.side.focus_editor()

    # --- editing -----------------------------------------------------------------------------------------------------

    def _selected(self) -> list[DatasetItem]:
        return [self.view.items[number] for number in self.cells.selection.in_order]

    def former(self) -> DatasetItem | None:
        """The item that is shown before the current one."""
        current = self.cells.selection.current
        place = None if current is None else self.cells.place_of(current)
        return self.view.items[self.view.shown[place - 1]] if place else None

    def _shown(self) -> list[DatasetItem]:
        return [self.view.items[number] for number in self.view.shown]

    def edit_captions(self) -> None:
        """Edit the captions of the selected images, or of all that are shown if only one is selected."""
        self.caption.save()
        chosen = self.cells.selection.in_order
        numbers = chosen if len(chosen) > 1 else self.view.shown
        items, work = [self.view.items[number] for number in numbers], self.caption.work
        if items and work is not None:
            tags = self.view.tags(numbers).most_common()
            EditCaptionsWindow(self.app, self, work, items, tags, self.caption.text, self.caption.write_many)

    def _take_renewed(self, items: Iterable[DatasetItem]) -> None:
        """Show items whose files have changed."""
        items = list(items)
        paths = {item.path for item in items}
        self._changed |= {f"concepts.{item.concept}.path" for item in items}
        self._edited |= paths
        self._versions.update(paths)
        if self._config is not None:
            self._mark_masks(self._config)
            mark_small(self._config, [self.view.items[self._numbers[path]] for path in paths if path in self._numbers])
        self.cells.redraw_items(self._numbers[path] for path in paths if path in self._numbers)
        current = self.cells.selection.current
        if self.bar.shows_masks and current is not None and self.view.items[current].path in paths:
            self._show_current(current)
        self._has_news = True

    def _tell_changes(self) -> None:
        """Let the main window count again what was changed here, once a person turns to it and all is written."""

        def tell() -> None:
            if self._changed:
                settings, self._changed = self._changed, set()
                self.app.checks.places.tell_edits(settings)

        self.caption.writing.when_done(tell)

    def find_duplicates(self) -> None:
        """Search for images that look alike, or cancel that; compare them once they are known."""
        if self.view.alike:
            self.compare_duplicates()
            return
        concepts = self._config.concepts if self._config else []
        self._duplicates.toggle(concepts, self._next_unread >= len(self.view.items))

    def _show_duplicates(self, worse: Sequence[int], are_any: bool) -> None:
        self.bar.show_counts(self.view.counts())
        self.bar.choose("duplicate" if are_any else "all")
        self.cells.select(worse)
        self.cells.redraw()

    def compare_duplicates(self) -> None:
        """Compare the groups of images that look alike, from that of the current image on, or no longer."""
        number = next(iter(self.view.alike), None)
        if self.side.is_comparing:
            self.side.end_comparing()
        elif number is None:
            if not self._duplicates.state:  # which says that they are being looked for
                self._note(f"No images look alike, as far as is known: {FIND} compares all of them.")
        else:
            if self.view.filter_name != "duplicate":
                self.bar.choose("duplicate")
            current = self.cells.selection.current
            if current is None or not self.view.items[current].group:
                self.cells.choose(number)
            self.side.toggle_comparing()

    def _go_to(self, item: DatasetItem) -> None:
        number = self._numbers.get(item.path)
        if number is not None and self.cells.place_of(number) is not None:
            self.cells.choose(number)

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build_head(self) -> None:
        tools = (
            Tool("Refresh", self.refresh, "Read the folders again (F5)."),
            Tool(FIND, self.find_duplicates, "Find images that look alike, to be compared (D), are blurred or noisy."),
            *tools_of(self.app, lambda: self.number),
        )
        self.head = DatasetHead(self, self.app, lambda name: self.show(self._concepts[name]), tools)
        self.head.grid(row=0, column=0, columnspan=2, sticky="ew", padx=12, pady=(12, 8))
        find = self.head.buttons[FIND]
        self._duplicates = DuplicateFinder(
            self.app, self.view, find, self._show_duplicates, self._note, self._show_summary
        )

    def destroy(self) -> None:
        self.side.save()
        self.caption.writing.close()
        self._give_up()
        self._long.close()
        self._decoder.close()
        for end in self._ends:
            end()
        super().destroy()
