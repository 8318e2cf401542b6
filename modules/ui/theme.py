"""The appearance of the window: colours for dark and light mode, fonts and scaling."""

from __future__ import annotations

import sys
import tkinter
from collections.abc import Callable, Iterator
from tkinter import font as tkfont
from tkinter import ttk
from typing import Literal

import customtkinter as ctk
import darkdetect

from modules.ui.models.Listeners import Listeners
from modules.ui.models.Preferences import MAX_SCALE, MIN_SCALE

Pair = tuple[str, str]
"""A color for light and for dark mode, in CustomTkinter's order."""

BORDER = 1.3  # pixels: a width of 1 would disappear at scale 0.8

SANS = ("Inter", "Segoe UI", "SF Pro Text", "Roboto", "Noto Sans", "DejaVu Sans", "Helvetica")
MONO = ("JetBrains Mono", "Cascadia Mono", "Menlo", "DejaVu Sans Mono", "Liberation Mono", "Consolas", "Courier")


class Theme:
    """Colours, fonts and sizes. Text has a contrast of at least 4.5:1 on every surface (WCAG 2.2, AA).

    The colours are pairs: pass them to CustomTkinter directly, and to a Canvas or ttk through `now`.
    """

    # surfaces, from the back to the front
    page: Pair = ("#eceef1", "#202124")
    bar: Pair = ("#ffffff", "#2a2c30")
    card: Pair = ("#ffffff", "#2d2f34")
    field: Pair = ("#ffffff", "#212226")
    code: Pair = ("#f3f4f6", "#191a1c")
    control: Pair = ("#e1e5ea", "#3d4047")
    control_hover: Pair = ("#d2d8df", "#4a4e56")
    selected: Pair = ("#1d5f9e", "#2c6fae")
    selected_hover: Pair = ("#174d80", "#27639c")
    border: Pair = ("#7b8490", "#868c95")
    line: Pair = ("#d5dae0", "#44474d")

    # text
    text: Pair = ("#1a1c1f", "#e8eaed")
    muted: Pair = ("#525962", "#bcc1c8")
    on_accent: Pair = ("#ffffff", "#ffffff")
    accent: Pair = ("#1a5a96", "#86bdf2")
    error: Pair = ("#b3261e", "#ff9b92")
    warning: Pair = ("#7d5300", "#f0b849")
    success: Pair = ("#17653a", "#70d197")

    # buttons with `on_accent` on them
    start: Pair = ("#17724a", "#17724a")
    start_hover: Pair = ("#115a3a", "#115a3a")
    stop: Pair = ("#b3261e", "#b3261e")
    stop_hover: Pair = ("#8c1d17", "#8c1d17")

    focus: Pair = ("#0b66c3", "#9ccbff")

    def __init__(self, root: tkinter.Misc, appearance: str = "system", scale: float | None = None):
        """scale: 0.8 to 2.0; None: from the screen's resolution."""
        self._root = root
        self._listeners: Listeners[[]] = Listeners()
        self._fonts: dict[tuple[int, str, bool], ctk.CTkFont] = {}
        families = set(tkfont.families(root))
        self.sans = next((name for name in SANS if name in families), "TkDefaultFont")
        self.mono = next((name for name in MONO if name in families), "TkFixedFont")
        _restyle(self)
        if ctk.DrawEngine.preferred_drawing_method == "font_shapes" and "CustomTkinter_shapes_font" not in families:
            # Without its font, as with a read-only home folder, CustomTkinter would draw corners as letters.
            ctk.DrawEngine.preferred_drawing_method = "polygon_shapes"
        self.appearance = appearance
        self.scale = scale
        self._shown: tuple[bool, float] | None = None  # whether dark, and the scale, as of the last refresh
        self.set_scale(scale)
        self.set_appearance(appearance)
        # They also report changes of the system while the window is open.
        ctk.AppearanceModeTracker.add(self._follow)
        ctk.ScalingTracker.add_widget(self._follow, root)

    def close(self) -> None:
        """Call it when the window closes: CustomTkinter would keep the callbacks."""
        ctk.AppearanceModeTracker.remove(self._follow)
        ctk.ScalingTracker.remove_widget(self._follow, self._root)

    @property
    def is_dark(self) -> bool:
        return ctk.get_appearance_mode() == "Dark"

    def now(self, pair: Pair) -> str:
        """The colour of a pair in the current mode, for a Canvas, a Menu or ttk."""
        return pair[1] if self.is_dark else pair[0]

    def scaled(self, pixels: float) -> int:
        """Convert unscaled pixels to screen pixels, as CustomTkinter does for its widgets."""
        return round(pixels * ctk.ScalingTracker.get_widget_scaling(self._root))

    def font(self, size: int = 13, weight: Literal["normal", "bold"] = "normal", mono: bool = False) -> ctk.CTkFont:
        """A font for CustomTkinter's widgets, which scale it. Fonts are cached by their arguments."""
        key = (size, weight, mono)
        if key not in self._fonts:
            family = self.mono if mono else self.sans
            self._fonts[key] = ctk.CTkFont(family=family, size=size, weight=weight)
        return self._fonts[key]

    def plain_font(
        self, size: int = 13, weight: Literal["normal", "bold"] = "normal", mono: bool = False
    ) -> tuple[str, int, str]:
        """The same font for a Canvas, a Menu or ttk, already scaled: get it again after a change of the scale."""
        return (self.mono if mono else self.sans, -self.scaled(size), weight)

    def set_appearance(self, appearance: str) -> None:
        """appearance: "system", "light" or "dark"."""
        self.appearance = appearance
        if appearance == "system" and sys.platform.startswith("linux"):
            # Read once: to follow the system, CustomTkinter would run a program of 10 ms 30 times a second.
            appearance = "dark" if darkdetect.theme() == "Dark" else "light"
        ctk.set_appearance_mode(appearance)
        self.refresh()

    def set_scale(self, scale: float | None) -> None:
        """scale: 0.8 to 2.0; None: from the screen's resolution."""
        self.scale = scale
        factor = self.screen_scale() if scale is None else scale
        factor = min(max(factor, MIN_SCALE), MAX_SCALE)
        if factor != ctk.ScalingTracker.widget_scaling:
            hidden = [
                widget
                for widget in _widgets_in(self._root)
                if isinstance(widget, tkinter.Grid) and _is_put_away(widget)
            ]
            ctk.set_window_scaling(factor)
            ctk.set_widget_scaling(factor)
            for widget in hidden:  # CustomTkinter has gridded all widgets again, to scale their padding
                widget.grid_remove()
        self.refresh()

    def screen_scale(self) -> float:
        """1 at 96 dpi. On Windows and macOS CustomTkinter scales for the screen itself."""
        if not sys.platform.startswith("linux"):
            return 1.0
        return round(self._root.winfo_fpixels("1i") / 96, 2)

    def on_change(self, redraw: Callable[[], None]) -> Callable[[], None]:
        """Call `redraw` after each change of colours or scale, for anything not drawn by CustomTkinter.

        Returns a function that unsubscribes: call it when the widget is destroyed.
        """
        return self._listeners.add(redraw)

    def refresh(self) -> None:
        """Apply the current colours and scale to everything not drawn by CustomTkinter."""
        self._shown = self._look()
        self._style_ttk()
        self._listeners.tell()

    def _follow(self, *values: object) -> None:
        """Called by CustomTkinter when the appearance or scale has changed, before it updates its widgets."""
        self._root.after_idle(lambda: self.refresh() if self._shown != self._look() else None)

    def _look(self) -> tuple[bool, float]:
        return self.is_dark, ctk.ScalingTracker.get_widget_scaling(self._root)

    def style_menu(self, menu: tkinter.Menu) -> None:
        """Give a tkinter.Menu the current colours and font."""
        menu.configure(
            tearoff=False,
            relief="flat",
            borderwidth=1,
            activeborderwidth=0,
            bg=self.now(self.control),
            fg=self.now(self.text),
            disabledforeground=self.now(self.muted),
            activebackground=self.now(self.selected),
            activeforeground=self.now(self.on_accent),
            font=self.plain_font(),
        )

    def _style_ttk(self) -> None:
        style = ttk.Style(self._root)
        style.theme_use("clam")  # the only ttk theme with all colours configurable
        background, text = self.now(self.card), self.now(self.text)
        style.configure(
            "Treeview",
            background=background,
            fieldbackground=background,
            foreground=text,
            bordercolor=self.now(self.line),
            lightcolor=background,
            darkcolor=background,
            borderwidth=0,
            rowheight=self.scaled(26),
            font=self.plain_font(),
        )
        style.map(
            "Treeview",
            background=[("selected", self.now(self.selected))],
            foreground=[("selected", self.now(self.on_accent))],
        )
        style.configure(
            "Treeview.Heading",
            background=self.now(self.control),
            foreground=self.now(self.muted),
            relief="flat",
            padding=(self.scaled(6), self.scaled(3)),
            font=self.plain_font(),
        )
        style.configure("Treeview.Cell", padding=(self.scaled(4), 0))  # aligned with the heading
        style.map("Treeview.Heading", background=[("active", self.now(self.control_hover))])


def _widgets_in(widget: tkinter.Misc) -> Iterator[tkinter.Misc]:
    for child in widget.winfo_children():
        yield child
        yield from _widgets_in(child)


def _is_put_away(widget: tkinter.Misc) -> bool:
    return getattr(widget, "_last_geometry_manager_call", None) is not None and not widget.winfo_manager()


def _restyle(theme: Theme) -> None:
    """Replace CustomTkinter's default colours, whose contrast is too low: down to 2.1:1 in light mode."""
    for widget, colours in {**_colours_of_surfaces(theme), **_colours_of_controls(theme)}.items():
        for name, value in colours.items():
            ctk.ThemeManager.theme[widget][name] = list(value) if isinstance(value, tuple) else value
    ctk.ThemeManager.theme["CTkFont"].update(family=theme.sans, size=13, weight="normal")


def _colours_of_surfaces(theme: Theme) -> dict[str, dict[str, Pair | float]]:
    """The colours of containers, texts and bars."""
    entry = _colours_of_entries(theme)
    bar = {"fg_color": theme.line, "progress_color": theme.selected}
    return {
        "CTk": {"fg_color": theme.page},
        "CTkToplevel": {"fg_color": theme.page},
        "CTkFrame": {"fg_color": theme.card, "top_fg_color": theme.card, "border_color": theme.line},
        "CTkScrollableFrame": {"label_fg_color": theme.control},
        "CTkLabel": {"text_color": theme.text, "border_color": theme.line},
        "CTkEntry": {**entry, "placeholder_text_color": theme.muted},
        "CTkTextbox": {
            **entry,
            "scrollbar_button_color": theme.border,
            "scrollbar_button_hover_color": theme.muted,
        },
        "CTkProgressBar": {**bar, "border_color": theme.line},
        "CTkSlider": {
            **bar,
            "progress_color": theme.border,
            "button_color": theme.selected,
            "button_hover_color": theme.selected_hover,
        },
        "CTkScrollbar": {"button_color": theme.border, "button_hover_color": theme.muted},
    }


def _colours_of_controls(theme: Theme) -> dict[str, dict[str, Pair | float]]:
    """The colours of clickable widgets, with text on or beside them."""
    words = {"text_color": theme.text, "text_color_disabled": theme.muted}
    menu = {**words, "button_color": theme.control_hover, "button_hover_color": theme.line}
    box: dict[str, Pair | float] = {
        **words,
        "fg_color": theme.selected,
        "hover_color": theme.selected_hover,
        "border_color": theme.border,
    }
    return {
        "CTkButton": {
            **words,
            "fg_color": theme.control,
            "hover_color": theme.control_hover,
            "border_color": theme.border,
        },
        "CTkCheckBox": {**box, "checkmark_color": theme.on_accent, "border_width": 2},
        "CTkRadioButton": box,
        "CTkSwitch": {
            **words,
            "fg_color": theme.border,
            "progress_color": theme.selected,
            "button_color": theme.text,  # extends beyond the bar: white would be invisible on a white card
            "button_hover_color": theme.muted,
        },
        "CTkOptionMenu": {**menu, "fg_color": theme.control},
        "CTkComboBox": {**menu, **_colours_of_entries(theme)},
        "CTkSegmentedButton": {
            **words,
            "fg_color": theme.control,
            "unselected_color": theme.control,
            "unselected_hover_color": theme.control_hover,
            "selected_color": ("#ffffff", "#27639c"),
            "selected_hover_color": ("#ffffff", "#27639c"),
        },
        "DropdownMenu": {"fg_color": theme.control, "hover_color": theme.control_hover, "text_color": theme.text},
    }


def _colours_of_entries(theme: Theme) -> dict[str, Pair | float]:
    return {
        "fg_color": theme.field,
        "border_color": theme.border,
        "text_color": theme.text,
        "border_width": BORDER,
    }
