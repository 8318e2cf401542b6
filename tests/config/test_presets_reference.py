"""The reference page of the presets is up to date."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "presets_reference.py"


def test_the_page_is_up_to_date(tmp_path):
    # Run from another folder, as the script has to find the repository itself.
    command = [sys.executable, SCRIPT, "--check"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
