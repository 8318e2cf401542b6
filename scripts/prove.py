"""Runs proofs, the tests that take too long for every change, and keeps what they found in tests/proofs.json.

    python scripts/prove.py                              # of all families whose proof is out of date
    python scripts/prove.py FAMILY ...                   # of these families
    python scripts/prove.py tests/scripts/test_demo.py   # of this file
    python scripts/prove.py --all                        # all: many hours
    python scripts/prove.py --list                       # names those that are out of date and runs nothing

The proof of a family is all tests marked `proof(family=...)`: those for which another family usually stands
(tests/support/alike_families.py), and further trainings. All other tests marked `proof` are proofs by their file. A
proof is out of date once its own file has changed, a file that it depends on, or the version of a package whose code it
runs. An entry is written only after the proof has run and nothing has failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.config.atomic_file import write_bytes  # noqa: E402
from modules.config.families import load_families  # noqa: E402
from modules.session.printing import print_line  # noqa: E402

if TYPE_CHECKING:
    import pytest

LEDGER = "tests/proofs.json"
FAMILY_MARK, FILE_MARK = "mark.proof(family=", re.compile(r"mark\.proof\b(?!\(family=)")
PACKAGES = ("torch", "diffusers", "transformers")
_SIMULATION = tuple(
    f"scripts/{name}.py" for name in ("python_device", "simulated_gpu", "simulated_model", "simulated_run")
)
DEPENDS = {  # beside the file itself
    "tests/queue/test_queue_runner.py": ("modules/queue", "tests/support/queued_run.py"),
    "tests/scripts/test_demo.py": ("resources/demo", "resources/presets/demo.yaml"),
    "tests/scripts/test_examples.py": ("scripts/examples",),
    "tests/scripts/test_memory.py": ("scripts/memory.py", *_SIMULATION),
    "tests/scripts/test_odd_folder.py": ("scripts/train_distributed.sh", "scripts/find_python.sh"),
    "tests/scripts/test_video_demo.py": ("resources/video_demo", "resources/presets/video_demo.yaml"),
    "tests/trainer/test_pretended_gpu.py": ("tests/support/pretended_gpu.py", "tests/support/pretended_gpu_runs.py"),
    "tests/trainer/test_ranks.py": ("modules/distributed",),
    "tests/trainer/test_sharded_ranks.py": ("modules/distributed",),
    "tests/trainer/test_sharding_proof.py": ("modules/distributed",),
    "tests/trainer/test_planted_mistakes.py": ("tests/support/planted_mistakes.py", "tests/support/pretended_gpu.py"),
}


class Proofs:
    """All proofs of the checkout in `root`, and the ledger of those that have run.

    An entry of the ledger has "date", "passed" and "skipped" (numbers of tests), "seconds", and hashes: "own" of the
    family's file or of the test file, "around" of what it depends on beside that.
    """

    def __init__(self, root: Path = ROOT, families: Iterable[str] | None = None):
        self.root = root
        self.families = list(load_families() if families is None else families)
        self._texts = {path: path.read_text(encoding="utf-8") for path in sorted((root / "tests").rglob("*.py"))}
        self.files = [
            path.relative_to(root).as_posix()
            for path, text in self._texts.items()
            if path.name.startswith("test_") and FILE_MARK.search(text)
        ]
        self._pins = "".join(
            line
            for line in (root / "requirements.txt").read_text(encoding="utf-8").splitlines(keepends=True)
            if line.startswith(tuple(f"{package}==" for package in PACKAGES))
        )
        self._declared = sorted((root / "modules" / "families").glob("*.py"))

    @property
    def names(self) -> list[str]:
        return [*self.families, *self.files]

    @property
    def family_files(self) -> list[Path]:
        """The tests that have proofs of families."""
        return [path for path, text in self._texts.items() if path.name.startswith("test_") and self._has_family(text)]

    def _has_family(self, text: str) -> bool:
        return FAMILY_MARK in text or "once_for_each(alike_families" in text

    def recorded(self) -> dict[str, dict[str, Any]]:
        ledger = self.root / LEDGER
        return json.loads(ledger.read_text(encoding="utf-8")) if ledger.is_file() else {}

    def unproved(self) -> list[str]:
        """The families whose own file is not the one that was proved."""
        entries = self.recorded()
        return [name for name in self.families if entries.get(name, {}).get("own") != self.own(name)]

    def out_of_date(self) -> list[str]:
        """All proofs of which anything has changed, or that never ran."""
        entries = self.recorded()
        return [name for name in self.names if self.hashes(name).items() - entries.get(name, {}).items()]

    def hashes(self, name: str) -> dict[str, str]:
        return {"own": self.own(name), "around": self._around(name)}

    def own(self, name: str) -> str:
        return _hash(self._file_of(name) if name in self.families else self.root / name)

    def _file_of(self, family: str) -> Path:
        """The file that declares a family."""
        declares = re.compile(rf'^    name="{family}",$', re.MULTILINE)
        (path,) = (path for path in self._declared if declares.search(path.read_text(encoding="utf-8")))
        return path

    def _around(self, name: str) -> str:
        if name in self.families:
            return _hash(*self.family_files, text=self._pins)
        paths = [self.root / path for path in DEPENDS.get(name, ())]
        return _hash(*(file for path in paths for file in _files_in(path)), text=self._pins)

    def run(self, names: Sequence[str]) -> int:
        """Runs these proofs and records those that passed. Returns pytest's exit code: 0 if nothing failed."""
        import pytest

        hashes = {name: self.hashes(name) for name in names}  # of what is run, also if a file changes meanwhile
        found = Findings(self.root, names)
        files = {self.root / name for name in names if name in self.files}
        if any(name in self.families for name in names):
            files |= set(self.family_files)
        code = pytest.main(["-m", "proof", "-q", "-p", "no:cacheprovider", *map(str, sorted(files))], plugins=[found])
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            return int(code)  # it has not come to its end
        entries = self.recorded()
        for name in names:
            if not found.failed[name]:
                figures = {"date": date.today().isoformat(), "passed": found.passed[name]}
                figures |= {"skipped": found.skipped[name], "seconds": round(found.seconds[name])}
                entries[name] = {**figures, **hashes[name]}
        kept = {name: entries[name] for name in self.names if name in entries}
        write_bytes(self.root / LEDGER, (json.dumps(kept, indent=1) + "\n").encode())
        return int(code == pytest.ExitCode.TESTS_FAILED)


class Findings:
    """A plugin for pytest that runs the tests of some proofs alone and counts what becomes of them, by proof."""

    def __init__(self, root: Path, names: Sequence[str]):
        self._root, self._names = root, set(names)
        self.passed: dict[str, int] = defaultdict(int)
        self.skipped: dict[str, int] = defaultdict(int)
        self.failed: dict[str, int] = defaultdict(int)
        self.seconds: dict[str, float] = defaultdict(float)
        self._name_of: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if mark := item.get_closest_marker("proof"):
                self._name_of[item.nodeid] = mark.kwargs.get("family") or item.path.relative_to(self._root).as_posix()
        items[:] = [item for item in items if self._name_of.get(item.nodeid) in self._names]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = self._name_of[report.nodeid]
        self.seconds[name] += report.duration
        self.passed[name] += report.passed and report.when == "call"
        self.skipped[name] += report.skipped
        self.failed[name] += report.failed


def _hash(*paths: Path, text: str = "") -> str:
    """Of texts, whatever their line endings, and of other files."""
    digest = hashlib.sha256(text.encode())
    for path in paths:
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:16]


def _files_in(path: Path) -> Iterator[Path]:
    files = (each for each in path.rglob("*") if each.is_file() and each.parent.name != "__pycache__")
    yield from sorted(files) if path.is_dir() else [path]


def main(argv: Sequence[str] | None = None) -> int:
    proofs = Proofs()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a family, or a test file as tests/.../test_x.py")
    parser.add_argument("--all", action="store_true", help="all proofs, also those that are up to date")
    parser.add_argument("--list", action="store_true", help="name those that are out of date")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.names) - set(proofs.names)):
        parser.error(f"no family and no file with proofs: {', '.join(unknown)}")
    if args.list:
        for name in proofs.out_of_date():
            print_line(name)
        return 0
    stale = set(proofs.out_of_date())
    names = proofs.names if args.all else args.names or [name for name in proofs.families if name in stale]
    if not names:
        print_line("All families are as they were proved.")
        return 0
    return proofs.run(names)


if __name__ == "__main__":
    sys.exit(main())
