"""What train_multigpu.sh and .bat run: train_flow_matching.py on N GPUs, or on all if no number is given."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()
elif __name__ == "__mp_main__":  # in a rank that this script has spawned
    from modules.launch.parent_watch import end_with_parent

    end_with_parent()

from scripts import train_flow_matching


def main(argv: list[str] | None = None) -> int:
    return train_flow_matching.main(with_num_gpus(sys.argv[1:] if argv is None else argv))


def with_num_gpus(argv: list[str]) -> list[str]:
    """["2", "--batch_size", "4"] as options of train_flow_matching.py; without a number, all GPUs."""
    has_count = bool(argv) and (argv[0] == "all" or argv[0].isdecimal())
    return [f"--num_gpus={argv[0] if has_count else 'all'}", *argv[has_count:]]


if __name__ == "__main__":
    sys.exit(main())
