"""The reference page of the settings is up to date."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from modules.config.describe import walk_settings

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "config_reference.py"


def test_the_page_is_up_to_date(tmp_path):
    # Run from another folder, as the script has to find the repository itself.
    command = [sys.executable, SCRIPT, "--check"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_stale_page_is_noticed(tmp_path):
    for name in ("modules/config", "scripts", "docs", "resources"):
        (tmp_path / name).mkdir(parents=True)
    tables = ROOT / "resources" / "other_programs"
    shutil.copytree(tables, tmp_path / tables.relative_to(ROOT))
    others = [SCRIPT, SCRIPT.with_name("generated_file.py"), ROOT / "resources" / "families.json"]
    for source in [*(ROOT / "modules").glob("*.py"), *(ROOT / "modules" / "config").glob("*.py"), *others]:
        (tmp_path / source.relative_to(ROOT)).write_bytes(source.read_bytes())
    copy = tmp_path / "scripts" / SCRIPT.name
    page = tmp_path / "docs" / "settings.md"

    def run(action: str) -> int:
        return subprocess.run([sys.executable, copy, action], capture_output=True, check=False).returncode

    assert run("--check") == 1
    assert run("--write") == 0
    assert run("--check") == 0
    assert page.read_bytes() == (ROOT / "docs" / "settings.md").read_bytes()
    page.write_text(page.read_text(encoding="utf-8").replace("`batch_size`", "`batchsize`"), encoding="utf-8")
    assert run("--check") == 1


def test_every_setting_has_one_row():
    rows = [line for line in (ROOT / "docs" / "settings.md").read_text(encoding="utf-8").splitlines() if "`" in line]
    for info in walk_settings():
        label = info.label.replace("|", "\\|")
        assert sum(line.startswith(f"| {label} | `{info.path}` |") for line in rows) == 1, info.path


def test_no_condition_lists_so_many_families_that_nobody_reads_them():
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for condition in re.findall(r"`family` is ([^*]*?)(?: and `|\.\*)", page):
        assert condition.count(" or ") < 8, condition
