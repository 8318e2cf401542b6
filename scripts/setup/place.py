"""Whether the folder of Chorus is a place where the environment can be."""

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath

from scripts.setup.SetupError import SetupError

# The longest path in torch 2.13 has 173 characters below `.venv\Lib\site-packages\`, and Windows takes 259 in all.
MAX_CHARACTERS = 60
# What the disk has to hold at once: the packages (8 GB with CUDA), their downloads, and pip's cache of these.
CUDA_BYTES, CPU_BYTES = 14 * 10**9, 3 * 10**9


def check_length(root: PurePath, platform: str, has_long_paths: "Callable[[], bool]") -> None:
    """Raises SetupError if the paths of packages below `root` would be longer than Windows takes.

    platform: as sys.platform. has_long_paths: called only where the answer depends on it.
    """
    if platform != "win32" or len(str(root)) <= MAX_CHARACTERS or has_long_paths():
        return
    raise SetupError(
        f"The folder of Chorus, {root}, has a path of {len(str(root))} characters, and Windows leaves room for "
        f"{MAX_CHARACTERS}; move it to a short one such as %USERPROFILE%\\chorus and start again."
    )


def has_long_paths() -> bool:
    """Whether an administrator has switched long paths on (Windows only)."""
    if sys.platform != "win32":
        return True
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SYSTEM\CurrentControlSet\Control\FileSystem") as key:
            return winreg.QueryValueEx(key, "LongPathsEnabled")[0] == 1
    except OSError:
        return False


def is_synced(root: PurePath, environ: "Mapping[str, str]", home: PurePath) -> bool:
    """Whether OneDrive or iCloud Drive copies what is written below `root`.

    environ: that of Windows names the folders of OneDrive. home: of the user; below it macOS has those of all services.
    """
    folders = [type(root)(environ[name]) for name in environ if name.upper().startswith("ONEDRIVE") and environ[name]]
    folders += [home / "Library" / "Mobile Documents", home / "Library" / "CloudStorage"]
    return any(folder in (root, *root.parents) for folder in folders)


def check_free_space(folder: Path, needed_bytes: int) -> None:
    """Raises SetupError if the disk of `folder` has less free than that."""
    free = shutil.disk_usage(str(folder)).free
    if free < needed_bytes:
        raise SetupError(
            f"The disk of {folder} has {free / 1e9:.1f} GB free, and the packages need {needed_bytes / 1e9:.0f} GB; "
            "free some space and start again."
        )
