"""The window for choosing a base model: recent ones, those on this machine, and those of the Hugging Face Hub."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from tkinter import ttk
from typing import TYPE_CHECKING, Any

import customtkinter as ctk

from modules.config.errors import UserError
from modules.config.visible_text import visible_line
from modules.session.byte_sizes import spoken_bytes
from modules.ui.keyboard import pressed_once
from modules.ui.models.base_model import is_on_hub
from modules.ui.models.HubScript import HubFacts, HubScript, model_page, part_options, read_facts, recent_bases
from modules.ui.theme import Theme
from modules.ui.widgets.dialogs import focus_soon, set_size, show_over
from modules.ui.widgets.fitting import fit_columns, wrap_to
from modules.ui.widgets.scrolling import make_scrollbar

if TYPE_CHECKING:
    from modules.ui.App import App

COLUMNS = {"Model": 420, "Where": 220, "Size": 90, "License": 150}
FACTS_MS = 250  # a row is selected that long before the Hub is asked about it
HINT = "Search the Hub for models in diffusers' format, or choose one that is on this machine."


class BaseModelWindow(ctk.CTkToplevel):
    """Choosing sets model.base, and the family if the Hub says that it is another one.

    A download goes on in a process of its own until it is cancelled or the window is closed; what is complete is kept.
    """

    def __init__(self, app: App):
        super().__init__(app.root)
        self.app = app
        self._facts: dict[str, HubFacts] = {}
        self._asking: HubScript | None = None
        self._downloading: HubScript | None = None
        self._facts_due: str | None = None
        self.title("Base model")
        self.transient(app.root)
        set_size(self, "960x560", (640, 400))
        self.grid_columnconfigure(0, weight=1)
        self.grid_rowconfigure(1, weight=1)
        self._build_search()
        self.table = self._make_table()
        self.detail = ctk.CTkLabel(self, text=HINT, font=app.theme.font(), height=40, justify="left", anchor="nw")
        self.detail.grid(row=2, column=0, columnspan=2, sticky="ew", padx=18, pady=(8, 0))
        wrap_to(self, self.detail, app.theme, 36)
        self.bar = ctk.CTkProgressBar(self, height=9)
        self.bar.grid(row=3, column=0, columnspan=2, sticky="ew", padx=18, pady=(4, 0))
        self.bar.grid_remove()
        self._build_buttons()
        self.bind("<Escape>", lambda event: self.destroy())
        self._show_known()
        show_over(app, self)
        focus_soon(app, self.search)

    def destroy(self) -> None:
        for script in (self._asking, self._downloading):
            if script is not None:
                script.cancel()
        if self._facts_due is not None:
            self.app.after_cancel(self._facts_due)
        super().destroy()

    @property
    def chosen(self) -> str:
        """The name of the selected model; "" if none is."""
        selected = self.table.selection()
        return selected[0] if selected else ""

    def find(self) -> None:
        """Search the Hub for what has been typed; for nothing, show what is on this machine."""
        text = self.search.get().strip()
        if not text:
            self._show_known()
            return
        self._tell(f"Searching the Hub for {text}…")

        def show(found: list[dict[str, Any]]) -> None:
            rows = [(one["name"], _where(one), "", one["license"]) for one in found]
            self._show_rows(rows)
            self._tell("" if rows else f"No model in diffusers' format has {text} in its name.")

        self._ask(HubScript("search", text), show)

    def download(self) -> None:
        """Download the selected model, or cancel the download."""
        if self._downloading is not None:
            self._downloading.cancel()
            self._end_download("The download was cancelled. What is complete is kept; download again to continue.")
            return
        name = self.chosen
        script = self._downloading = HubScript("download", name, *self._parts())
        self._download.configure(text="Cancel")
        self.bar.set(0)
        self.bar.grid()
        self._tell(f"Downloading {name}…")
        progress: dict[str, int] = {}  # written by the thread, read by the window
        stop = self.app.every(0.5, lambda: self._show_progress(script, name, progress))

        def take(answer: dict[str, Any] | None) -> None:
            stop()
            if answer is not None and script is self._downloading and self.winfo_exists():
                self._facts.pop(name, None)
                self._end_download("")
                self._look_up(name)

        def fail(error: Exception) -> None:
            stop()
            if script is self._downloading and self.winfo_exists():
                self._end_download(str(error), Theme.error)
            if not isinstance(error, UserError):
                raise error

        self.app.in_background(lambda: script.run(progress.update), take, fail)

    def use(self) -> None:
        """Train the selected model."""
        name = self.chosen
        if not name:
            return
        facts = self._facts.get(name)
        if facts is not None and facts.family is not None and facts.family != self.app.settings.get("family"):
            self.app.settings.set("family", facts.family)
        self.app.settings.set("model.base", name)
        self.destroy()

    def open_page(self) -> None:
        webbrowser.open(model_page(self.chosen))

    # --- what is shown -----------------------------------------------------------------------------------------------

    def _show_known(self) -> None:
        """Show recent base models and those in the Hub's cache."""
        paths = list(self.app.preferences.recent)
        current = self.app.settings.get("model.base")
        script = HubScript("list")

        def look() -> tuple[list[str], list[dict[str, Any]]]:
            return recent_bases(paths), script.run() or []

        def show(found: tuple[list[str], list[dict[str, Any]]]) -> None:
            recent, cached = found
            names = dict.fromkeys(name for name in (current, *recent) if name)
            sizes = {one["name"]: spoken_bytes(one["num_bytes"]) for one in cached}
            rows = [(name, "current" if name == current else "recent", sizes.get(name, ""), "") for name in names]
            rows += [(name, "on this machine", size, "") for name, size in sizes.items() if name not in names]
            self._show_rows(rows)

        self._run(script, look, show)

    def _show_rows(self, rows: list[tuple[str, str, str, str]]) -> None:
        self.table.delete(*self.table.get_children())
        for row in rows:
            self.table.insert("", "end", iid=row[0], values=list(map(visible_line, row)))
        self._on_choice()

    def _on_choice(self) -> None:
        name, hub = self.chosen, is_on_hub(self.chosen)
        wanted, colour = ("normal", Theme.selected) if name else ("disabled", Theme.control)
        self._use.configure(state=wanted, fg_color=colour)
        self._page.configure(state="normal" if hub else "disabled")
        if self._downloading is None:
            self._download.configure(state="normal" if hub else "disabled")
        if self._facts_due is not None:
            self.app.after_cancel(self._facts_due)
            self._facts_due = None
        if hub and self._downloading is None:
            self._facts_due = self.app.after(FACTS_MS, lambda: self._look_up(name))

    def _look_up(self, name: str) -> None:
        """Show what the Hub says of a model, which is asked once."""
        self._facts_due = None
        if name in self._facts:
            self._show_facts(self._facts[name])
            return
        self._tell(f"Looking up {name} on the Hub…")

        def show(answer: dict[str, Any]) -> None:
            self._facts[name] = read_facts(answer)
            if self.chosen == name:
                self._show_facts(self._facts[name])

        self._ask(HubScript("info", name, *self._parts()), show)

    def _parts(self) -> tuple[str, ...]:
        return part_options(self.app.settings.get)

    def _show_facts(self, facts: HubFacts) -> None:
        gated = " Gated: accept its agreement on the model page first." if facts.is_gated else ""
        self._tell(f"{facts.name}: {facts.describe()}{gated}")
        if self._downloading is None:
            self._download.configure(state="normal" if facts.pipeline and facts.missing_bytes else "disabled")

    def _show_progress(self, script: HubScript, name: str, progress: dict[str, int]) -> None:
        if script is not self._downloading or not progress.get("total"):
            return
        done, total = progress["done"], progress["total"]
        self.bar.set(done / total)
        self._tell(f"Downloading {name}: {spoken_bytes(done)} of {spoken_bytes(total)}")

    def _end_download(self, text: str, colour: tuple[str, str] = Theme.text) -> None:
        self._downloading = None
        self._download.configure(text="Download")
        self.bar.grid_remove()
        self._tell(text, colour)

    def _tell(self, text: str, colour: tuple[str, str] = Theme.text) -> None:
        self.detail.configure(text=text, text_color=colour)

    # --- questions to the Hub ----------------------------------------------------------------------------------------

    def _ask(self, script: HubScript, show: Callable[[Any], None]) -> None:
        self._run(script, script.run, show)

    def _run(self, script: HubScript, work: Callable[[], Any], show: Callable[[Any], None]) -> None:
        """Run `work`, which asks by `script`; a newer question takes the place of an older one."""
        if self._asking is not None:
            self._asking.cancel()
        self._asking = script

        def take(answer: Any) -> None:
            if script is self._asking and self.winfo_exists():
                self._asking = None
                show(answer)

        def fail(error: Exception) -> None:
            if not isinstance(error, UserError):
                raise error
            if script is self._asking and self.winfo_exists():
                self._asking = None
                self._tell(str(error), Theme.error)

        self.app.in_background(work, take, fail)

    # --- widgets -----------------------------------------------------------------------------------------------------

    def _build_search(self) -> None:
        font = self.app.theme.font()
        self.search = ctk.CTkEntry(self, placeholder_text="Search the Hugging Face Hub", font=font)
        self.search.grid(row=0, column=0, sticky="ew", padx=(14, 8), pady=(14, 8))
        self.search.bind("<Return>", lambda event: self.find())
        self.search.bind("<Down>", lambda event: self.table.focus_set())
        button = ctk.CTkButton(self, text="Search", width=90, font=font, command=pressed_once(self.find))
        button.grid(row=0, column=1, padx=(0, 14), pady=(14, 8))

    def _make_table(self) -> ttk.Treeview:
        frame = ctk.CTkFrame(self, fg_color=Theme.card)
        frame.grid(row=1, column=0, columnspan=2, sticky="nsew", padx=14)
        frame.grid_columnconfigure(0, weight=1)
        frame.grid_rowconfigure(0, weight=1)
        table = ttk.Treeview(frame, columns=list(COLUMNS), show="headings", selectmode="browse")
        make_scrollbar(frame, table, row=0, column=1)
        for title in COLUMNS:
            table.heading(title, text=title, anchor="w")
        fit_columns(table, COLUMNS, self.app.theme, stretched="Model")
        table.grid(row=0, column=0, sticky="nsew", padx=(6, 0), pady=6)
        table.bind("<<TreeviewSelect>>", lambda event: self._on_choice())
        table.bind("<Return>", lambda event: self.use())
        table.bind("<Double-1>", lambda event: self.use())
        return table

    def _build_buttons(self) -> None:
        bar = ctk.CTkFrame(self, fg_color="transparent")
        bar.grid(row=4, column=0, columnspan=2, sticky="e", padx=14, pady=(8, 14))
        colours = {"hover_color": Theme.selected_hover, "text_color": Theme.on_accent}  # on Theme.selected once enabled

        def add(column: int, text: str, command: Callable[[], None], **options: Any) -> ctk.CTkButton:
            button = ctk.CTkButton(bar, text=text, font=self.app.theme.font(), command=command, **options)
            button.grid(row=0, column=column, padx=(8 if column else 0, 0))
            return button

        add(0, "Close", self.destroy)
        self._page = add(1, "Model page", self.open_page, state="disabled")
        self._download = add(2, "Download", pressed_once(self.download), state="disabled")
        self._use = add(3, "Use", self.use, state="disabled", **colours)


def _where(found: dict[str, Any]) -> str:
    return f"Hub, {found['downloads']:,} downloads" + (", gated" if found["is_gated"] else "")
