"""How `pip install .` makes this repository the package `chorus`; pyproject.toml names the classes here to setuptools.

    modules/*     ->  chorus/*
    scripts/*     ->  chorus/scripts/*      (SCRIPTS)
    resources/*   ->  chorus/resources/*    (RESOURCES)
    docs/*        ->  chorus/docs/*         (DOCS)

`from modules...` becomes `from chorus...`, and `from scripts...` becomes `from chorus.scripts...`. All else that
depends on where Chorus is installed is in modules/config/installation.py. The package requires what requirements.txt
pins, but of torch, which people often have, the range in pyproject.toml. Setuptools loads this file by its path, so it
imports nothing of Chorus.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel
from setuptools.command.egg_info import egg_info
from setuptools.errors import SetupError

PACKAGE = "chorus"
SCRIPTS = (
    "__init__.py",
    "commands.py",
    *(
        "annotator_options.py",
        "concept_option.py",
        "dataset_figures.py",
        "events.py",
        "family_option.py",
        "name_option.py",
        "number_options.py",
        "terminal.py",
        "elastic_agent.py",
    ),
    "starting/*.py",
    *("train.py", "train_ui.py", "doctor.py", "sample.py", "sample_grid.py", "sample_run.py"),
    *(
        "caption.py",
        "mask.py",
        "edit_captions.py",
        "count_tokens.py",
        "check_data.py",
        "copy_dataset.py",
        "split_videos.py",
        "convert.py",
        "hub.py",
        "import_settings.py",
        "export_settings.py",
    ),
    *(
        "lora.py",
        "lora_and_strength.py",
        "multi_node.py",
        "runs.py",
        "run_queue.py",
        "slurm_job.py",
        "webhook.py",
        "page.py",
    ),
    *(
        "start_multi_gpu.py",
        "train_flow_matching.py",
        "validate_multigpu.py",
        "examples_multigpu.py",
        "examples/**/*.py",
    ),
)
RESOURCES = (
    *("accelerate_config.yaml", "families.json", "lora_layers.json", "preset_memory.json", "preset_sizes.yaml"),
    *("window_labels.yaml", "page.css", "other_programs/*", "presets/*", "demo/**/*", "video_demo/**/*", "digits/*"),
)
DOCS = (
    *("dataset.md", "families.md", "first_lora.md", "methods.md", "multi_gpu.md", "presets.md"),
    *("queue.md", "run_folder.md", "settings.md", "troubleshooting.md", "watching.md"),
)
"""The pages that messages name and *Help* opens, by `docs_page`."""
NEW_NAMES = {"modules": PACKAGE, "scripts": f"{PACKAGE}.scripts"}


class BuildPackage(build_py):
    """Copies the files of the package, with their imports renamed."""

    def run(self) -> None:
        target = Path(self.build_lib) / PACKAGE
        shutil.rmtree(target, ignore_errors=True)  # setuptools keeps the files of earlier builds
        for source, name in shipped_files(Path()):
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".py":
                path.write_text(renamed(source.read_text(encoding="utf-8")), encoding="utf-8", newline="\n")
            else:
                shutil.copyfile(source, path)

    def get_source_files(self) -> list[str]:
        """What a source distribution contains."""
        return [source.as_posix() for source, _ in shipped_files(Path())] + ["scripts/build_wheel.py"]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [str(Path(self.build_lib) / PACKAGE / name) for _, name in shipped_files(Path())]


class WidenTorch(egg_info):
    """Writes the package's metadata, with the range of torch."""

    def run(self) -> None:
        metadata = self.distribution.metadata
        metadata.install_requires = [with_torch_range(line, Path()) for line in metadata.install_requires]
        super().run()


class RefuseEditable(editable_wheel):
    """`pip install -e`: the names of the imports can't differ from those in the files."""

    def run(self) -> None:
        raise SetupError(
            "Chorus can't be installed as editable: its package is called modules in a checkout and chorus after "
            "installation. Run it from the checkout (./start-ui.sh), or install it without -e."
        )


def shipped_files(root: Path) -> Iterator[tuple[Path, str]]:
    """(file below root, its path inside the package), sorted."""
    for folder, patterns in (("modules", ("**/*.py",)), ("scripts", SCRIPTS), ("resources", RESOURCES), ("docs", DOCS)):
        prefix = "" if folder == "modules" else f"{folder}/"
        paths = {path for pattern in patterns for path in (root / folder).glob(pattern)}
        for path in sorted(path for path in paths if path.is_file()):
            yield path, prefix + path.relative_to(root / folder).as_posix()


def with_torch_range(requirement: str, root: Path) -> str:
    """A requirement; that of torch with the range in `root`/pyproject.toml, which Pythons before 3.11 can't parse."""
    if not re.match(r"torch\s*==", requirement):
        return requirement
    found = re.search(r'^torch = "(.+?)"', (root / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SetupError("pyproject.toml: [tool.chorus] has no range of versions for torch.")
    return f"torch{found[1]}"


def renamed(source: str) -> str:
    """The source with its imports renamed; every line keeps its number.

    Without the line that puts the repository on sys.path, which is needed to run a script in a checkout.
    Raises SetupError for `import modules.x`, whose name would have to change wherever it is used.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(_room(alias.name) in NEW_NAMES for alias in node.names):
            raise SetupError(f"Line {node.lineno}: write `from ... import ...`, which can be renamed for the package.")
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0 and _room(node.module) in NEW_NAMES:
            room, line = _room(node.module), lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace(f"from {room}", f"from {NEW_NAMES[room]}", 1)
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith("sys.path.insert(0, "):
            first, last = node.lineno - 1, node.end_lineno
            lines[first:last] = ["\n"] * len(lines[first:last])
    return "".join(lines)


def _room(module: str) -> str:
    return module.partition(".")[0]
