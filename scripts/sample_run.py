"""Makes the samples of a run with the model that it has saved: python scripts/sample_run.py RUN --model FILE"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.config.files import load_config
from modules.config.installation import command_name
from modules.config.visible_text import visible_line
from modules.session.printing import print_text
from modules.session.program_end import end_program
from modules.session.RunFolder import RunFolder
from modules.session.TrainCallbacks import TrainCallbacks
from scripts.terminal import show

FOLDER = "generated"  # in the run's folder of samples, beside those of its steps


class _PrintedPaths(TrainCallbacks):
    """Prints the paths of samples. problems: the warnings."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def on_sample(self, path: str | Path, prompt: str, step: int) -> None:
        show(visible_line(str(path)))

    def on_warning(self, text: str) -> None:
        self.problems.append(text)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    run, callbacks = RunFolder(args.run), _PrintedPaths()
    try:
        config = load_config(run.config_path)
        sampling = load_config(args.config).sampling if args.config else config.sampling

        from modules.weights.libraries import gc_paused, import_pipeline

        with gc_paused(for_good=True):
            from modules.distributed.Runtime import default_device
            from modules.families.registry import FAMILIES
            from modules.trainer.sample_model import sample_model

            import_pipeline(FAMILIES[config.family].pipeline)
        device = default_device(config.device_indexes)
        folder = next_folder(run.samples_dir / FOLDER)
        sample_model(config, [Path(path) for path in args.model], sampling, folder, args.step, device, callbacks)
    except UserError as error:
        callbacks.problems.append(str(error))
    for text in callbacks.problems:
        print_text(text, sys.stderr)
    return 2 if callbacks.problems else 0


def next_folder(parent: Path) -> Path:
    """The first folder "round-N" below `parent` that does not exist."""
    number = 1
    while (parent / f"round-{number:03d}").exists():
        number += 1
    return parent / f"round-{number:03d}"


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("sample_run"), description="Make the samples of a run with the model that it has saved."
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--model", action="append", required=True, metavar="FILE", help="that the run has saved; may be repeated"
    )
    parser.add_argument("--step", type=int, default=0, metavar="N", help="after which the model was saved")
    parser.add_argument("--config", metavar="FILE", help="settings with the samples to make; default: those of the run")
    return parser.parse_args(argv)


if __name__ == "__main__":
    end_program(main)
