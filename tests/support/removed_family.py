"""Takes a family out of a copy of the repository, and says what else would have to be edited by hand.

    python -m tests.support.removed_family             # a table of all families; half an hour on two cores
    python -m tests.support.removed_family FILE ...    # of the families in modules/families/FILE.py

Removed are the file, its presets and its tiny models, and a pipeline of its own where diffusers has none. What is made
from the families is made anew. Families that are built on others go with them. So that it takes a quarter of a minute,
the copy has no other presets than those that a page or QUICK_TESTS name: presets do not depend on each other.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from modules.families.registry import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("modules", "families")
TINY_MODELS = Path("tests", "support", "tiny_models")
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "workspace", "images", "__pycache__", ".*_cache", "build")
GENERATED = (
    "README.md",
    "docs/families.md",
    "docs/presets.md",
    "docs/settings.md",
    "resources/families.json",
    "resources/lora_layers.json",
    "resources/preset_memory.json",
    "resources/preset_sizes.yaml",
)
QUICK_TESTS = (
    "tests/config/test_reference.py",
    "tests/config/test_validation.py",
    "tests/families/test_one_file.py::test_no_text_in_the_code_names_a_family_but_the_file_that_declares_it",
    "tests/scripts/test_families_page.py",
    "tests/scripts/test_families_reference.py",
    "tests/scripts/test_lora_layers_reference.py",
    "tests/test_docs.py",
    "tests/test_layout.py",
)
_SAID = re.compile(r"^(?:FAILED|ERROR) (tests/[\w/]+\.py)", re.MULTILINE)


@dataclass(frozen=True)
class Removed:
    """What became of a copy without the families of one file.

    families, with_it: those of the file, and those of files that import it.
    lines: of the file. pipelines: files of pipelines that diffusers lacks.
    outside: what else has to be edited, each as "FILE: why".
    examples: tests and documents that name one of the families of the file as an example.
    """

    families: tuple[str, ...]
    with_it: tuple[str, ...]
    lines: int
    pipelines: tuple[str, ...]
    outside: tuple[str, ...]
    examples: tuple[str, ...]


def declaring_files() -> dict[str, tuple[str, ...]]:
    """Stem of a file in modules/families -> the families that it declares."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / FOLDER).glob("*.py"))}
    found = {stem: tuple(name for name in FAMILIES if f'\n    name="{name}"' in text) for stem, text in texts.items()}
    return {stem: names for stem, names in found.items() if names}


def remove(stem: str, tree: Path) -> Removed:
    """Removes the families of a file from a copy of the repository, which is made in `tree`."""
    shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
    _leave_out_presets(tree)
    declared = declaring_files()
    stems = _with_dependents(stem, declared)
    gone = {name for one in stems for name in declared[one]}
    lines = len((tree / FOLDER / f"{stem}.py").read_text(encoding="utf-8").splitlines())
    pipelines = _remove_files(tree, stems, gone)
    outside = {*_broken(tree), *_named_in_code(tree, gone), *_named_in_generated(tree, gone)}
    examples = {*_examples(tree, gone)}
    pages = {file for file in examples if file.endswith(".md")}
    for file in _failing(tree) - examples:
        if not (pages and file == "tests/test_docs.py"):  # which checks the examples of the pages
            outside.add(f"{file}: fails")
    return Removed(
        declared[stem],
        tuple(one for one in stems if one != stem),
        lines,
        pipelines,
        tuple(sorted(outside)),
        tuple(_examples(tree, set(declared[stem]))),
    )


def _leave_out_presets(tree: Path) -> None:
    pages = [path for path in (tree / "docs").glob("*.md") if f"docs/{path.name}" not in GENERATED]
    tests = [tree / test.partition("::")[0] for test in QUICK_TESTS]
    named = "\n".join(path.read_text(encoding="utf-8") for path in (*pages, *tests, tree / "README.md"))
    for path in (tree / "resources" / "presets").glob("*.yaml"):
        if path.stem not in named:
            path.unlink()


def _with_dependents(stem: str, declared: Mapping[str, object]) -> list[str]:
    found = [stem]
    for one in found:
        text = f"from modules.families.{one} import"
        users = (user for user in declared if text in (ROOT / FOLDER / f"{user}.py").read_text(encoding="utf-8"))
        found += [user for user in users if user not in found]
    return found


def _remove_files(tree: Path, stems: list[str], gone: set[str]) -> tuple[str, ...]:
    """Returns the pipelines among the removed files."""
    for stem in stems:
        (tree / FOLDER / f"{stem}.py").unlink()
        (tree / TINY_MODELS / f"{stem}.py").unlink()
    for path in (tree / "resources" / "presets").glob("*.yaml"):
        if yaml.safe_load(path.read_text(encoding="utf-8")).get("family") in gone:
            path.unlink()
    own = [tree / FOLDER / "pipelines" / f"{FAMILIES[name].pipeline}.py" for name in sorted(gone)]
    found = [path for path in own if path.is_file()]
    for path in found:
        path.unlink()
    return tuple(path.relative_to(tree).as_posix() for path in found)


def _broken(tree: Path) -> Iterator[str]:
    """What of the code does not find its names, or can't generate, without the families."""
    rules = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,E9", "--output-format", "json"]
    done = subprocess.run([*rules, "."], cwd=tree, capture_output=True, text=True, check=False)
    for found in json.loads(done.stdout):
        yield f"{Path(found['filename']).relative_to(tree.resolve()).as_posix()}: {found['message']}"
    done = _run(tree, "scripts/generate.py", "--write")
    if done.returncode:
        yield f"scripts/generate.py: {done.stderr.strip().splitlines()[-1]}"


def _named_in_code(tree: Path, gone: set[str]) -> Iterator[str]:
    """Where the code, other than in prose and as an attribute of something else, names what is no longer there."""
    for path in sorted([*(tree / "modules").rglob("*.py"), *(tree / "scripts").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("modules.families"):
                names = {str(node.module).rpartition(".")[2], *(alias.name for alias in node.names)}
            if found := sorted(names & gone):
                yield f"{path.relative_to(tree).as_posix()}: {found[0]}"


def _named_in_generated(tree: Path, gone: set[str]) -> Iterator[str]:
    """Lines that were made and name a family, but for examples in the text of the scripts that make them."""
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in (tree / "scripts").glob("*.py"))
    hand_written = {line.strip() for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()}
    for name in GENERATED:
        for line in (tree / name).read_text(encoding="utf-8").splitlines():
            is_example = line[:40] in scripts or (name == "README.md" and line.strip() in hand_written)
            if _pattern(gone).search(line) and not is_example:
                yield f"{name}: {line[:60]}"


def _failing(tree: Path) -> set[str]:
    """The files of QUICK_TESTS of which a test fails."""
    done = _run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *QUICK_TESTS)
    assert done.returncode in (0, 1, 2, 4), done.stdout + done.stderr
    return set(_SAID.findall(done.stdout))


def _run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=tree, capture_output=True, text=True, check=False)


def _examples(tree: Path, names: set[str]) -> Iterator[str]:
    """The tests that name a family, and the pages that do so by name or label."""
    labels = re.compile("|".join(rf"(?<!\w){re.escape(FAMILIES[name].label)}(?!\w)" for name in names))
    for path in sorted([*(tree / "tests").rglob("*.py"), *(tree / "docs").glob("*.md"), tree / "README.md"]):
        file = path.relative_to(tree).as_posix()
        if file in GENERATED[1:] or path.is_relative_to(tree / TINY_MODELS):
            continue
        text = path.read_text(encoding="utf-8")
        if _pattern(names).search(text) or (path.suffix == ".md" and labels.search(text)):
            yield file


def _pattern(names: set[str]) -> re.Pattern[str]:
    """Of names by themselves, of presets and of tiny models: not as a part of another family's name."""
    longer = {name for name in FAMILIES if name not in names}
    several = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    others = "|".join(re.escape(name[len(one) :]) for one in names for name in longer if name.startswith(one))
    return re.compile(rf"(?<![a-zA-Z0-9])(?:{several})(?!{others or '$^'})(?![a-z0-9])")


def main() -> None:
    declared = declaring_files()
    print("| file | families | lines | with it | edited outside | example in |\n|---|---|---|---|---|---|")
    for stem in sys.argv[1:] or declared:
        with tempfile.TemporaryDirectory() as folder:
            found = remove(stem, Path(folder) / "tree")
        outside = "; ".join([*found.pipelines, *found.outside]) or "0"
        cells = (stem, ", ".join(found.families), str(found.lines), ", ".join(found.with_it), outside)
        print(f"| {' | '.join((*cells, str(len(found.examples))))} |", flush=True)


if __name__ == "__main__":
    main()
