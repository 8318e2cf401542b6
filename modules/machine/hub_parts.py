"""Single parts of models on the Hugging Face Hub: a file in a repository, or the folder of a VAE."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from modules.config.errors import UserError
from modules.machine.hub import HUB_NAME, expected_error, hub_problem, is_complete
from modules.machine.weight_files import loaded_weights

# The settings in `model` that can name a part on the Hub, or a list of them -> whether it may be a folder.
PARTS = {"vae": True, "denoiser": False, "denoiser_2": False, "text_encoders": False}
WEIGHT_SUFFIXES = (".safetensors", ".gguf")
_FILE = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>\w[\w.-]*))?/(?P<file>\w[\w ./+-]*)")
CONFIG = "config.json"


@dataclass(frozen=True)
class HubPart:
    """A part on the Hub. name: as a setting has it. file: its path in the repository; "" for the folder of a VAE."""

    name: str
    repo: str
    revision: str | None
    file: str

    def on_disk(self) -> Path | None:
        """The file or folder in the Hub's cache if it is there completely, without asking the Hub; else None."""
        from huggingface_hub import try_to_load_from_cache

        for name in [self.file] if self.file else [CONFIG, f"vae/{CONFIG}"]:
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
        for folder in ("", "vae/"):
            if files := _vae_files(folder, names):
                return files
        raise UserError(f"{self.name!r}: is not a VAE on the Hub; choose the folder of one, or a file in it.")

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


def hub_part(name: str, takes_folder: bool) -> HubPart | None:
    """The part on the Hub that a setting names; None if it names a path. takes_folder: whether it may be a folder."""
    return None if not name or os.path.exists(os.path.expanduser(name)) else named_part(name, takes_folder)


def named_part(name: str, takes_folder: bool) -> HubPart | None:
    """The part on the Hub that a name means which is no path on this machine; None if it has not the form of one."""
    is_file = name.lower().endswith(WEIGHT_SUFFIXES)
    match = _FILE.fullmatch(name) if is_file else HUB_NAME.fullmatch(name) if takes_folder else None
    if match is None:
        return None
    return HubPart(name, match["repo"], match["revision"], match["file"] if is_file else "")


def _vae_files(folder: str, names: Collection[str]) -> list[str]:
    inside = {name.removeprefix(folder) for name in names if name.startswith(folder)}
    weights = loaded_weights(inside)
    return [f"{folder}{name}" for name in (CONFIG, *weights)] if CONFIG in inside and weights else []
