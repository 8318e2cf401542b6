"""scripts/prove.py: what the ledger of proofs says of this checkout, and when it says that a proof is out of date."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from scripts import prove
from scripts.prove import LEDGER, Proofs

ROOT = Path(__file__).resolve().parents[2]
FAMILY = """SMALL = Family(
    name="small",
)
"""
MARK = "@pytest.mark." + "proof"  # apart, as this file has no proofs
TESTS = f"""import os
import pytest

{MARK}(family="small")
def test_small():
    assert not os.environ.get("FAILS")

{MARK}(family="large")
def test_large():
    pass

def test_every_change():
    assert False
"""
OF_FILE = "tests/test_slow.py"
SLOW = f"import pytest\n\n{MARK}\ndef test_slow():\n    pass\n"
FAMILIES = ("small", "large")
RUN = f"""
import sys
from pathlib import Path
from scripts.prove import Proofs
sys.exit(Proofs(Path(sys.argv[1]), {FAMILIES}).run(sys.argv[2:]))
"""


def test_every_family_is_as_it_was_proved():
    proofs = Proofs()
    if not proofs.recorded():
        pytest.skip("nothing has been proved yet; scripts/prove.py does")
    if stale := proofs.out_of_date():
        warnings.warn(f"Proofs that are out of date: {', '.join(stale)}", stacklevel=1)
    changed = proofs.unproved()
    assert not changed, (
        f"These families have changed since they were proved: python scripts/prove.py {' '.join(changed)}"
    )


def test_every_family_is_declared_in_one_file_and_every_proof_has_files_to_depend_on():
    proofs = Proofs()
    assert all(proofs.hashes(name) for name in proofs.names)
    assert {"tests/trainer/test_planted_mistakes.py", "tests/scripts/test_demo.py"} < set(proofs.files)
    trainings = ("test_matrix.py", "test_presets.py")
    models = ("test_deferred_casts.py", "test_lazy_loading.py", "test_quantization.py")
    assert {path.name for path in proofs.family_files} == {"test_conformance.py", *trainings, *models}


def test_what_python_compiles_beside_its_sources_makes_no_proof_out_of_date(tmp_path, monkeypatch):
    sources, compiled = tmp_path / "modules", tmp_path / "modules" / "__pycache__"
    monkeypatch.setattr(prove, "DEPENDS", {OF_FILE: ("modules",)})
    for path, text in {
        sources / "a.py": "a = 1\n",
        tmp_path / OF_FILE: SLOW,
        tmp_path / "requirements.txt": "",
    }.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    before = Proofs(tmp_path, ()).hashes(OF_FILE)
    compiled.mkdir()
    (compiled / "a.pyc").write_bytes(b"compiled")
    assert Proofs(tmp_path, ()).hashes(OF_FILE) == before
    (sources / "a.py").write_text("a = 2\n")
    assert Proofs(tmp_path, ()).hashes(OF_FILE) != before


@pytest.fixture
def checkout(tmp_path) -> Path:
    """Two families, with a proof each, and a file with one."""
    for folder in ("modules/families", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    for name in FAMILIES:
        (tmp_path / f"modules/families/{name}.py").write_text(FAMILY.replace("small", name))
    (tmp_path / "tests/test_families.py").write_text(TESTS)
    (tmp_path / OF_FILE).write_text(SLOW)
    (tmp_path / "requirements.txt").write_text("torch==2.13.0\nnumpy==2.4.6\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = proof\n")
    return tmp_path


def run(checkout: Path, *names: str, **environment: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(checkout), *names],
        cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": "", **environment},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode


def state(checkout: Path) -> tuple[list[str], list[str]]:
    """What is unproved, and what is out of date."""
    proofs = Proofs(checkout, FAMILIES)
    return proofs.unproved(), proofs.out_of_date()


def test_what_has_passed_is_recorded_and_what_has_failed_is_not(checkout):
    assert run(checkout, "small", "large", OF_FILE, FAILS="1") == 1
    entries = json.loads((checkout / LEDGER).read_text(encoding="utf-8"))
    assert {name: entry["passed"] for name, entry in entries.items()} == {"large": 1, OF_FILE: 1}
    assert state(checkout) == (["small"], ["small"])
    assert run(checkout, "small") == 0
    assert state(checkout) == ([], [])


def test_a_proof_holds_until_what_it_is_about_changes(checkout):
    run(checkout, "small", "large", OF_FILE)
    (checkout / "modules/families/small.py").write_text(FAMILY + "# changed\n")
    assert state(checkout) == (["small"], ["small"])
    (checkout / "modules/families/small.py").write_text(FAMILY)
    assert state(checkout) == ([], [])
    (checkout / "requirements.txt").write_text("torch==2.13.0\nnumpy==2.5.0\n")
    assert state(checkout) == ([], [])  # not a package whose code proofs run
    (checkout / "requirements.txt").write_text("torch==2.14.0\n")
    assert state(checkout) == ([], ["small", "large", OF_FILE])  # named, but nobody's own change


def test_a_changed_test_makes_its_own_proofs_out_of_date(checkout):
    run(checkout, "small", "large", OF_FILE)
    (checkout / OF_FILE).write_text(SLOW.replace("slow", "slower"))
    assert state(checkout) == ([], [OF_FILE])
    (checkout / "tests/test_families.py").write_text(TESTS + "# changed\n")
    assert state(checkout) == ([], ["small", "large", OF_FILE])
