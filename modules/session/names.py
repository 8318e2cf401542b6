"""File names made from user input: legal on Windows and Linux, and never leading out of a folder."""

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
    """A legal name for a file or folder that resembles `text`.

    text: a title without extension; append the extension to the result.
    max_bytes: maximum length of the result in UTF-8, at least 16.
    A text that is already legal is returned unchanged. Any other gets a short hash of the original appended, so that
    different texts get different names. The same text always gives the same name.
    """
    if max_bytes < 16:
        raise ValueError(f"max_bytes {max_bytes}: a name with its hash needs at least 16")
    name = _legal(text)
    if name == text and len(name.encode()) <= max_bytes:
        return name
    suffix = "-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    return _cut(name, max_bytes - len(suffix)) + suffix


def illegal_on_windows(path: str) -> str:
    """The first name in `path` that Windows refuses or takes for a device ("CON") or a stream of a file ("a:b").

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
    # A leading dash looks like an option, a leading dot hides the file; Windows strips trailing dots and spaces.
    name = name.lstrip(" .-").rstrip(" .")
    if not name:
        return "unnamed"
    return f"_{name}" if _is_device(name) else name


def _is_device(name: str) -> bool:
    # Windows treats "NUL.txt" and "nul .x" as the device too.
    return name.split(".")[0].rstrip().upper() in _DEVICES


def _legal_character(char: str) -> str:
    if char in _FORBIDDEN:
        return "_"
    return " " if unicodedata.category(char)[0] == "Z" else char


def _cut(name: str, max_bytes: int) -> str:
    return name.encode()[:max_bytes].decode("utf-8", "ignore").rstrip(" .")
