"""Write everything in the repository that is made from what the code declares, or check that it is up to date.

    python scripts/generate.py --write
    python scripts/generate.py --check

Each file has a script of its own; this runs them in the order in which they build on each other.
"""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SCRIPTS = (
    "families_reference.py",
    "lora_layers_reference.py",
    "families_page.py",
    "preset_sizes.py",
    "config_reference.py",
    "presets_reference.py",
    "api_reference.py",
    "gpu_report.py",
    "benchmark_page.py",
)


def main() -> int:
    """The highest exit code of all; a process for each, because some read what those before them have written."""
    return max(
        subprocess.run([sys.executable, FOLDER / name, *sys.argv[1:]], check=False).returncode for name in SCRIPTS
    )


if __name__ == "__main__":
    sys.exit(main())
