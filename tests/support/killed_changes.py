"""Changes files of datasets by a journal, each in a process that is killed at another moment.

python -m tests.support.killed_changes PARENT ACTION: in each folder of PARENT, numbered from 1, the change or its undo
(ACTION) is killed right before the step of that number: writing, flushing or renaming a file.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from modules.curation.FileChanges import FileChanges, fingerprint
from modules.curation.Journal import Journal

NUM_FILES = 5
LABEL = "Change all"


def old(number: int) -> bytes:
    return b"" if number == 0 else b"old %d" % number


def new(number: int) -> bytes | None:
    return None if number == 1 else b"new %d" % number


def make_folder(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(NUM_FILES):
        (folder / f"{number}.txt").write_bytes(old(number))


def change(folder: Path) -> FileChanges:
    paths = {str(folder / f"{number}.txt"): number for number in range(NUM_FILES + 1)}  # one that is not there yet
    seen = {path: fingerprint(old(number)) for path, number in paths.items() if number < NUM_FILES}
    return FileChanges({path: new(number) for path, number in paths.items()}, seen)


def kill_before(count: int) -> None:
    """End this process as power loss would, right before the step of this number."""
    left = count

    def counted(action):
        def counting(*arguments, **options):
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return action(*arguments, **options)

        return counting

    os.replace, os.fsync, Path.write_bytes = map(counted, (os.replace, os.fsync, Path.write_bytes))
    Path.unlink = counted(Path.unlink)


def main(parent: str, action: str) -> None:
    for folder in sorted(Path(parent).iterdir()):
        child = os.fork()
        if not child:
            journal = Journal(folder / "cats", folder / "state")
            if action == "undo":
                journal.apply(LABEL, change(folder / "cats"))
            kill_before(int(folder.name))
            journal.undo() if action == "undo" else journal.apply(LABEL, change(folder / "cats"))
            os._exit(0)
        print(folder.name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
