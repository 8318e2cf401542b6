"""Where Chorus is installed: its package, the files that ship with it, and the folders that it may write to.

In a checkout of the repository, the package is called `modules`, and everything is written below the repository.
`pip install` makes it the package `chorus`, with `scripts` and `resources` inside (scripts/build_wheel.py). Files then
go to the folders of the user, never to site-packages.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = __name__.partition(".")[0]
"""The import name of the package: "modules" in a checkout, "chorus" after `pip install`."""
PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
IMPORT_FOLDER = PACKAGE_FOLDER.parent
"""Where a child process has to run so that `python -m {PACKAGE}...` finds this package."""
IS_INSTALLED = PACKAGE != "modules"
ROOT = PACKAGE_FOLDER if IS_INSTALLED else IMPORT_FOLDER
"""The folder that contains `scripts` and `resources`."""
SET_UP_AGAIN = "reinstall Chorus with pip" if IS_INSTALLED else "run `python scripts/setup_env.py`"
INSTALL_TORCH_BUILD = (
    "by the command that https://pytorch.org/get-started/locally gives for it"
    if IS_INSTALLED
    else "by `python scripts/setup_env.py` with CHORUS_TORCH_INDEX set to its index"
)


SHORT_NAMES = {"train_ui": "chorus", "run_queue": "chorus-queue"}


def command_name(script: str) -> str:
    """How users call scripts/SCRIPT.py: by its path in a checkout, else by the command that pip has installed."""
    if not IS_INSTALLED:
        return f"scripts/{script}.py"
    return SHORT_NAMES.get(script, f"chorus-{script.replace('_', '-')}")


CONVERTS_CAPTIONS = f"{command_name('check_data')} --convert-captions does that"
"""How captions in another encoding become UTF-8, in a terminal."""


def docs_page(name: str) -> str:
    """Where a person finds docs/NAME.md, for messages; scripts/build_wheel.py has the pages that are installed."""
    return str(ROOT / "docs" / f"{name}.md") if IS_INSTALLED else f"docs/{name}.md"


def shipped_file(name: str) -> str:
    """Where a person finds resources/NAME, for messages."""
    return str(ROOT / "resources" / name) if IS_INSTALLED else f"resources/{name}"


def window_state_folder() -> Path:
    """Where the window keeps its last settings; it may not exist yet."""
    if not IS_INSTALLED:
        return ROOT / "workspace" / ".window"
    import platformdirs

    return platformdirs.user_state_path("chorus", appauthor=False) / "window"


def terminal_state_folder() -> Path:
    """Where start_multi_gpu.py keeps the last answers; it may not exist yet."""
    return window_state_folder().with_name("terminal" if IS_INSTALLED else ".terminal")


def queue_folder() -> Path:
    """Where the queue of training runs is kept; it may not exist yet."""
    return window_state_folder().with_name("queue" if IS_INSTALLED else ".queue")


def webhook_file() -> Path:
    """Where the address of the webhook is kept, which is a secret; it may not exist yet."""
    return window_state_folder().with_name("webhook.json" if IS_INSTALLED else ".webhook.json")


def runs_folder() -> Path:
    """The folder that a demo's run folder is made in: that of the checkout, else the one that a person works in."""
    return Path("workspace") if IS_INSTALLED else ROOT / "workspace"


def window_folder() -> Path:
    """The folder that relative paths in the window start from; it may not exist yet."""
    if not IS_INSTALLED:
        return ROOT
    import platformdirs

    return platformdirs.user_documents_path() / "Chorus"
