"""The formats of image files: which are read, and what would read those that are not.

Only the formats named here are given to Pillow, which would pass an EPS named .jpg to Ghostscript, another program.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import NamedTuple

from PIL import features


class _Plugin(NamedTuple):
    """A package that adds a format to Pillow.

    label: of the format. setup: the function of `module` that adds it; "" if importing is enough.
    """

    label: str
    package: str
    module: str
    format: str
    setup: str = ""

    @property
    def remedy(self) -> str:
        return f"needs the package {self.package}: run pip install {self.package} in Chorus' environment, or convert it"


_HEIF = _Plugin("HEIC", "pillow-heif", "pillow_heif", "HEIF", "register_heif_opener")
_JXL = _Plugin("JPEG XL", "pillow-jxl-plugin", "pillow_jxl", "JXL")
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_JXL_MARKS = (b"\xff\x0a", b"\x00\x00\x00\x0cJXL \r\n\x87\n")
_PLUGINS = {".heic": _HEIF, ".heif": _HEIF, ".hif": _HEIF, ".jxl": _JXL}


def readable_extensions(is_installed: Callable[[str], bool]) -> frozenset[str]:
    """The extensions of images that are read. is_installed: whether a module can be imported."""
    return frozenset(_BUILT_IN | {extension for extension, plugin in _PLUGINS.items() if is_installed(plugin.module)})


_BUILT_IN = {
    ".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".avif", ".jp2", ".j2k", ".jpx", ".bmp", ".gif",
    ".tif", ".tiff", ".tga", ".qoi", ".ppm",
}  # fmt: skip
# by content, whatever the file is called; JPEG includes MPO, what many phones write
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "AVIF", "JPEG2000", "QOI", "PPM")
# Files of this format don't begin with any mark, so that much that is none would pass.
_BY_NAME = {".tga": "TGA"}
# Pillow's name of a library that some installations of it lack -> what files of its format have in their head
_LIBRARIES = {"avif": b"ftypavi", "webp": b"WEBPVP8", "jpg_2000": b"jP  \r\n\x87\n"}
HEAD_BYTES = 16


def formats_for(path: str, head: bytes) -> tuple[str, ...]:
    """Pillow's names of the formats that a file may have, with the plugin for its content ready to use.

    head: the first HEAD_BYTES of the file.
    """
    by_name = _BY_NAME.get(os.path.splitext(path)[1].lower())
    plugin = _plugin_for(head)
    if plugin is None or not _is_installed(plugin.module):
        return (*_FORMATS, by_name) if by_name else _FORMATS
    module = importlib.import_module(plugin.module)
    if plugin.setup:
        getattr(module, plugin.setup)()
    return (*_FORMATS, plugin.format)


def why_unknown(head: bytes) -> str:
    """Why Pillow does not know the content of a file. head: its first HEAD_BYTES."""
    if not head:
        return "it is empty"
    if plugin := _plugin_for(head):
        return f"it is in the format {plugin.label}, which {plugin.remedy}"
    library = next((library for library, mark in _LIBRARIES.items() if mark in head), None)
    if library and not features.check(library):
        return f"the installed Pillow lacks {library}; install one from PyPI"
    return "its content is that of no image format that is read"


def plugin_of(extension: str) -> str:
    """What would read files with this extension, if it is a plugin that is not installed; "" otherwise."""
    plugin = _PLUGINS.get(extension)
    return plugin.remedy if plugin and not _is_installed(plugin.module) else ""


def _plugin_for(head: bytes) -> _Plugin | None:
    if head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS:
        return _HEIF
    return _JXL if head.startswith(_JXL_MARKS) else None


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


EXTENSIONS = readable_extensions(_is_installed)
