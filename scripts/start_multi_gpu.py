"""Starts a training from a terminal: the demo, or what scripts/train.py takes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.config.presets import ROOT, load_preset
from scripts import train

USAGE = "usage: start-multi-gpu [--demo | options of scripts/train.py]"


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv == ["--demo"]:
        try:
            return run_demo(next_demo_folder(ROOT / "workspace"))
        except UserError as error:
            print(error, file=sys.stderr)
            return 2
    if not argv or "--demo" in argv:
        print(USAGE, file=sys.stderr)
        return 2
    return train.main(argv)


def run_demo(folder: Path) -> int:
    """Teaches the demo model two new digits in `folder`, then says where to look."""
    from modules.trainer.run import FINISHED
    from modules.trainer.start import start_training

    folders = {"workspace_dir": str(folder), "cache_dir": str(folder.parent / "cache")}
    config = config_from_values({**load_preset("demo"), **folders}, source="preset demo")
    config.world_size = fitting_ranks(config.batch_size, train.count_ranks(config))
    print("A small model that draws handwritten digits, but only zero to seven, learns eight and nine.", flush=True)
    code = start_training(config)
    if code != FINISHED:
        return code
    grid = save_before_and_after(folder)
    print(f"\nBefore and after: {grid}")
    print(f"Samples:          {folder / 'samples'}")
    for path in sorted((folder / "models").iterdir()):
        print(f"LoRA:             {path}")
    return code


def fitting_ranks(batch_size: int, available: int) -> int:
    """As many ranks as can share a step's samples evenly."""
    return next(ranks for ranks in range(min(available, batch_size), 0, -1) if batch_size % ranks == 0)


def save_before_and_after(folder: Path) -> Path:
    """One picture of the run's first and last samples."""
    from modules.trainer.picture_grid import save_sample_grid

    rounds = sorted((folder / "samples").iterdir())
    return save_sample_grid({"before": rounds[0], "after": rounds[-1]}, folder / "before_after.png")


def next_demo_folder(workspace: Path) -> Path:
    """A folder of its own for each time the demo runs: no run's work is touched by the next."""
    names = ("demo" if number == 1 else f"demo-{number}" for number in range(1, 10_000))
    return next(workspace / name for name in names if not (workspace / name / "models").exists())


if __name__ == "__main__":
    sys.exit(main())
