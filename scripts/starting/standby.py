"""Imports what a script of Chorus needs, and runs it once the window says so: python scripts/starting/standby.py KIND

The window starts it, and asks for a run or for images by one line of JSON on its stdin (modules/ui/models/Standby.py).
If stdin ends without one, because the window is gone or needs it no longer, it ends, too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()
elif __name__ == "__mp_main__":  # in a rank that this script has spawned
    from modules.launch.parent_watch import end_with_parent

    end_with_parent()

from modules.session.program_end import end_program

if TYPE_CHECKING:
    from collections.abc import Callable


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    return wait_for_run(args.ranks, args.family) if args.kind == "train" else wait_for_images(args.family)


def wait_for_run(num_ranks: int, family: str) -> int:
    """Become the supervisor of a run of `num_ranks` ranks, which wait together with this process."""
    said = tempfile.TemporaryFile()  # noqa: SIM115 - what libraries say on import, for the log of the run
    for descriptor in (1, 2):
        os.dup2(said.fileno(), descriptor)
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as start_training does: libraries may read it
    from modules.launch.WaitingRanks import WaitingRanks, import_for_run, write_output_to
    from modules.session.signals import remember_early_signals
    from scripts.train import main as train

    waiting = WaitingRanks(num_ranks, partial(import_for_run, family))
    from modules.launch import start  # while the ranks import theirs

    request = read_request()
    if request is None:
        waiting.end()
        os._exit(0)
    remember_early_signals()  # until here they end this process
    waiting.log = Path(request["log"])
    write_output_to(waiting.log)
    said.seek(0)
    sys.stderr.write(said.read().decode("utf-8", "replace"))
    take(request, "train.py")
    return train(request["arguments"], waiting)


def wait_for_images(family: str) -> int:
    """Become scripts/sample.py, sample_run.py or sample_grid.py, with the streams of this process."""
    from modules.families.registry import FAMILIES
    from modules.launch.WaitingRanks import gpus_left_alone
    from modules.layers.quiet_imports import quiet_libraries
    from modules.weights.libraries import gc_paused, import_pipeline
    from scripts.sample import main as sample
    from scripts.sample_grid import main as sample_grid
    from scripts.sample_run import main as sample_run

    quiet_libraries()
    with gc_paused(for_good=True), gpus_left_alone():
        # ruff: noqa: F401 - for those who import them later
        from modules.data.conditions import inpainting
        from modules.sampling.LoadedPipeline import LoadedPipeline
        from modules.trainer.sample_model import sample_model
        from modules.weights.load_pipeline import load_pipeline

        if family in FAMILIES:
            import_pipeline(FAMILIES[family].pipeline)
    request = read_request()
    if request is None:
        return 0
    mains: dict[str, Callable[[list[str]], int]] = {
        "sample.py": sample,
        "sample_run.py": sample_run,
        "sample_grid.py": sample_grid,
    }
    take(request, request["script"])
    return mains[request["script"]](request["arguments"])


def read_request() -> dict[str, Any] | None:
    """What the window asks for; None if it does not any more. From then on, stdin is empty, as that of a script is."""
    line = sys.stdin.buffer.readline()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return json.loads(line) if line.endswith(b"\n") else None


def take(request: dict[str, Any], script: str) -> None:
    """Make the environment and sys.argv of this process those of the script."""
    os.environ.update(request["variables"])
    sys.argv = [str(Path(__file__).resolve().parents[1] / script), *request["arguments"]]


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Wait, with all libraries imported, for what the window asks for.")
    parser.add_argument("kind", choices=("train", "sample"))
    parser.add_argument("--family", default="", help="that will probably be used")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="on this machine; of train")
    return parser.parse_args(argv)


if __name__ == "__main__":
    end_program(main)
