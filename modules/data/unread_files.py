"""What lies in a dataset's folders and looks as if it were to be trained, but is not read; and what would read it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from modules.config.counted import counted
from modules.data.image_formats import EXTENSIONS, plugin_of
from modules.data.videos import EXTENSIONS as VIDEO_EXTENSIONS


class Unread(NamedTuple):
    """A kind of files or folders that are left out. remedy: what would read them, or why they are left out."""

    one: str
    several: str
    remedy: str


VIDEOS = Unread("video", "videos", "models of videos train them if data.frames is above 1")
FOLDERS = Unread("hidden or system folder", "hidden or system folders", "what is in it is not looked at")

LEFT_OUT = " is left out", " are left out"  # the verbs for `described`

_CONVERT, _CONVERT_VIDEO = "convert it to PNG or JPEG", "convert it to MP4"
_REMEDIES = {
    "develop it to PNG or JPEG": ".3fr .arw .cr2 .cr3 .crw .dng .erf .iiq .kdc .mrw .nef .nrw .orf .pef .raf .raw .rw2 "
    ".rwl .sr2 .srf .srw .x3f",
    "export it as PNG": ".ai .clip .eps .kra .mdp .ora .psb .psd .svg .svgz .xcf",
    _CONVERT: ".avifs .bpg .cur .dds .dib .emf .exr .fit .fits .flif .hdr .hdp .heics .heifs .icns .ico .j2c .jng .jpc "
    ".jpf .jpm .jxr .mng .mpo .pam .pbm .pcx .pfm .pgm .pnm .ras .sgi .wdp .wmf .xbm .xpm",
    _CONVERT_VIDEO: ".3g2 .3gp .asf .divx .dv .f4v .flv .m2ts .m2v .mjpeg .mpeg .mpg .mts .mxf .ogm .ogv .qt .rm .rmvb "
    ".ts .vob .wmv .y4m",
}
_BY_EXTENSION = {extension: remedy for remedy, extensions in _REMEDIES.items() for extension in extensions.split()}
# as some programs and sites save images: .jpg_large, .png~, .jpeg-1
_CHANGED = re.compile(r"(\.(?:jpe?g|png|webp|gif|bmp|tiff?))[^a-z0-9].*")


def unread_kind(name: str, videos: bool) -> Unread | None:
    """The kind of a file that looks like an image or a video but is not read; None for any other. videos: whether the
    run takes videos."""
    extension = os.path.splitext(name)[1].lower()
    if extension in EXTENSIONS:
        return None
    if extension in VIDEO_EXTENSIONS:
        return None if videos else VIDEOS
    remedy = plugin_of(extension) or _BY_EXTENSION.get(extension)
    if remedy is None and (changed := _CHANGED.fullmatch(extension)):
        remedy = f"rename it so that its name ends in {changed[1]}"
    return Unread(f"{extension} file", f"{extension} files", remedy) if remedy else None


def described(kind: Unread, paths: Sequence[str], verbs: tuple[str, str] = ("", "")) -> str:
    """Such as "3 .psd files, such as cat.psd (export it as PNG)". verbs: what follows the kind, of one and several."""
    number = counted(len(paths), kind.one + verbs[0], kind.several + verbs[1])
    return f"{number}, such as {paths[0]} ({kind.remedy})"


def merged(parts: Sequence[Mapping[Unread, Sequence[str]]]) -> dict[Unread, list[str]]:
    """The paths of each kind, each once, sorted."""
    found: dict[Unread, set[str]] = {}
    for part in parts:
        for kind, paths in part.items():
            found.setdefault(kind, set()).update(paths)
    return {kind: sorted(found[kind]) for kind in sorted(found)}
