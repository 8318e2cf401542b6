"""File names made from what people type: legal on Windows and Linux, and never a way out of a folder."""

import hashlib
import unicodedata
from pathlib import PureWindowsPath

_FORBIDDEN = frozenset('<>:"/\\|?*')
_DEVICES = frozenset(
    ["CON", "PRN", "AUX", "NUL", "CLOCK$", "CONIN$", "CONOUT$"]
    + [f"{port}{digit}" for port in ("COM", "LPT") for digit in "0123456789¹²³"]
)
_HASH_DIGITS = 8


def safe_file_name(text: str, max_bytes: int = 80) -> str:
    """A name for one file or folder that reads like `text` and is legal everywhere.

    text: a title without extension; append the extension to the result.
    max_bytes: longest result in UTF-8, at least 16.
    A text that is fine already comes back unchanged. Any other gets a short hash of the original at its end, so that
    two texts which become alike still get two names. The same text always gives the same name.
    """
    if max_bytes < 16:
        raise ValueError(f"max_bytes {max_bytes}: a name with its hash needs at least 16")
    name = _legal(text)
    if name == text and len(name.encode()) <= max_bytes:
        return name
    suffix = "-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    return _cut(name, max_bytes - len(suffix)) + suffix


def illegal_on_windows(path: str) -> str:
    """The first name in `path` that Windows takes for a device ("CON") or the stream of a file ("a:b"), or refuses.

    "" if there is none.
    """
    folders = PureWindowsPath(path)
    names = folders.parts[1:] if folders.anchor else folders.parts
    return next((name for name in names if _is_device(name) or not _FORBIDDEN.isdisjoint(name)), "")


def _legal(text: str) -> str:
    # Categories C*: control, format (bidi overrides such as U+202E), surrogates; Zl and Zp break lines.
    visible = "".join(char for char in text if unicodedata.category(char)[0] != "C")
    name = "".join(_legal_character(char) for char in unicodedata.normalize("NFC", visible))
    while ".." in name:
        name = name.replace("..", ".")
    # A leading dash reads as an option, a leading dot hides the file; Windows drops dots and spaces at the end.
    name = name.lstrip(" .-").rstrip(" .")
    if not name:
        return "unnamed"
    return f"_{name}" if _is_device(name) else name


def _is_device(name: str) -> bool:
    # Windows takes "NUL.txt" and "nul .x" for the device too.
    return name.split(".")[0].rstrip().upper() in _DEVICES


def _legal_character(char: str) -> str:
    if char in _FORBIDDEN:
        return "_"
    return " " if unicodedata.category(char)[0] == "Z" else char


def _cut(name: str, max_bytes: int) -> str:
    return name.encode()[:max_bytes].decode("utf-8", "ignore").rstrip(" .")
