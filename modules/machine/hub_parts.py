"""Single parts of models on the Hugging Face Hub: a file in a repository, or the folder of a VAE or a denoiser."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from modules.config.errors import UserError
from modules.machine.hub import HUB_NAME, expected_error, hub_problem, is_complete
from modules.machine.weight_files import loaded_weights

# The settings in `model` that can name a part on the Hub, or a list of them -> the folders in which models have it;
# () where it has to be a file.
PARTS: dict[str, tuple[str, ...]] = {
    "vae": ("vae",),
    "denoiser": ("transformer", "unet"),
    "denoiser_2": ("transformer_2",),
    "text_encoders": (),
}
WEIGHT_SUFFIXES = (".safetensors", ".gguf")
_REPO = r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>\w[\w.-]*))?"
_FILE = re.compile(rf"{_REPO}/(?P<path>\w[\w ./+-]*)")
_FOLDER = re.compile(rf"{_REPO}/(?P<path>\w[\w.-]*)")
CONFIG = "config.json"


@dataclass(frozen=True)
class HubPart:
    """A part on the Hub.

    name: as a setting has it. file: its path in the repository; "" for a folder. folders: where that may be, the first
    with a config.json and weights; "" is the repository itself.
    """

    name: str
    repo: str
    revision: str | None
    file: str
    folders: tuple[str, ...] = ()

    def on_disk(self) -> Path | None:
        """The file or folder in the Hub's cache if it is there completely, without asking the Hub; else None."""
        from huggingface_hub import try_to_load_from_cache

        for name in [self.file] if self.file else [_in(folder, CONFIG) for folder in self.folders]:
            found = try_to_load_from_cache(self.repo, name, revision=self.revision)
            if isinstance(found, str) and (self.file or is_complete(Path(found).parent)):
                return Path(found) if self.file else Path(found).parent
        return None

    def files(self) -> list[str]:
        """The files of the part, by their paths in the repository, as the Hub lists them.

        Raises UserError if the Hub can't be asked, or has no such part.
        """
        from huggingface_hub import HfApi

        try:
            info = HfApi().model_info(self.repo, revision=self.revision)
        except Exception as error:
            raise UserError(self._cannot_fetch(expected_error(error))) from error
        names = [file.rfilename for file in info.siblings or ()]
        if self.file:
            if self.file not in names:
                raise UserError(f"{self.name!r}: the model has no such file on the Hub; check the name.")
            return [self.file]
        for folder in self.folders:
            if files := _files_in(folder, names):
                return files
        places = " or ".join(repr(folder) if folder else "itself" for folder in self.folders)
        raise UserError(
            f"{self.name!r}: the model has no such part on the Hub: no config.json and weights in {places}; check the "
            "name."
        )

    def download(self) -> Path:
        """The file or folder in the Hub's cache; what is missing there is downloaded. Raises UserError."""
        from huggingface_hub import snapshot_download

        if (path := self.on_disk()) is not None:
            return path
        files = self.files()
        try:
            folder = Path(snapshot_download(self.repo, revision=self.revision, allow_patterns=files))
        except Exception as error:
            raise UserError(self._cannot_fetch(expected_error(error))) from error
        return folder / files[0] if self.file else (folder / files[0]).parent

    def _cannot_fetch(self, error: Exception) -> str:
        return f"{self.name!r}: is not a path on this machine and can't be fetched from the Hub: {hub_problem(error)}."


def hub_part(name: str, folders: tuple[str, ...]) -> HubPart | None:
    """The part on the Hub that a setting names; None if it names a path. folders: the setting's in PARTS."""
    return None if not name or os.path.exists(os.path.expanduser(name)) else named_part(name, folders)


def named_part(name: str, folders: tuple[str, ...]) -> HubPart | None:
    """The part on the Hub that a name means which is no path on this machine; None if it has not the form of one."""
    if name.lower().endswith(WEIGHT_SUFFIXES):
        match = _FILE.fullmatch(name)
        return HubPart(name, match["repo"], match["revision"], match["path"]) if match else None
    if folders and (match := _FOLDER.fullmatch(name)):
        return HubPart(name, match["repo"], match["revision"], "", (match["path"],))
    if folders and (match := HUB_NAME.fullmatch(name)):
        return HubPart(name, match["repo"], match["revision"], "", ("", *folders))
    return None


def _in(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _files_in(folder: str, names: Collection[str]) -> list[str]:
    """The config.json and the weights in a folder of a repository; [] if it lacks one of them."""
    prefix = _in(folder, "")
    inside = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    weights = loaded_weights(inside)
    return [_in(folder, name) for name in (CONFIG, *weights)] if CONFIG in inside and weights else []
