"""`pip install .` installs the package `chorus`, which works without the repository and writes nothing into itself."""

from __future__ import annotations

import ast
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from setuptools.errors import SetupError

from scripts.build_wheel import DOCS, RESOURCES, SCRIPTS, renamed, shipped_files
from tests.support.small_demo import shrink_demo

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-build-isolation")
# What their texts say is for a checkout, or is changed for the installed package.
ONLY_IN_CHECKOUTS = {"examples_multigpu.py", "installation.py", "packages.py"}
PROGRAM = """
from chorus.trainer import TrainingEngine, distributed_train_worker, launch_distributed_training
import torch

if __name__ == "__main__":
    inputs = torch.rand(64, 4)
    history = launch_distributed_training(
        distributed_train_worker,
        world_size=2,
        model_fn=lambda: torch.nn.Linear(4, 1),
        train_dataset=torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)),
        optimizer_fn=torch.optim.AdamW,
        criterion_fn=torch.nn.MSELoss,
        train_kwargs={"num_epochs": 1},
    )
    print(type(history).__module__, len(history["train_loss"]))
"""


class Installed:
    """An environment with Chorus installed and all other packages of the environment of these tests.

    folder: what is run starts here, with a home folder of its own.
    """

    def __init__(self, folder: Path):
        self.folder, self.environment = folder / "work", folder / "environment"
        self.folder.mkdir()
        venv.create(self.environment, with_pip=False)
        places = {"base": str(self.environment), "platbase": str(self.environment)}
        self.packages = Path(sysconfig.get_path("purelib", "venv", places))
        self.programs = Path(sysconfig.get_path("scripts", "venv", places))
        borrowed = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
        (self.packages / "borrowed.pth").write_text("\n".join(borrowed), encoding="utf-8")
        self.source = folder / "source"
        for name in ("modules", "scripts", "resources", "docs"):
            shutil.copytree(ROOT / name, self.source / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, self.source / name)
        shrink_demo(self.source)

    def run(self, program: str, *arguments: str, code: int = 0, **variables: str) -> str:
        """The output of a program of the environment, which ends with the exit code `code`."""
        home = {name: str(self.folder) for name in ("HOME", "USERPROFILE")}
        env = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PYTHON"))}
        done = subprocess.run(
            [self.programs / program, *arguments],
            cwd=self.folder,
            env={**env, **home, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            encoding="utf-8",
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def files(self) -> set[Path]:
        return {path for path in self.packages.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    installed = Installed(tmp_path_factory.mktemp("installed"))
    installed.run("python", *PIP, str(installed.source))
    return installed


@pytest.fixture(autouse=True)
def nothing_is_written_to_the_package(request):
    if "installed" not in request.fixturenames:
        yield
        return
    installed = request.getfixturevalue("installed")
    before = installed.files()
    yield
    assert installed.files() == before


def test_only_the_package_is_installed(installed):
    names = {path.name for path in installed.packages.iterdir()} - {"borrowed.pth"}
    assert {name for name in names if not name.endswith(".dist-info")} == {"chorus"}


def test_a_program_trains_on_two_spawned_ranks(installed):
    (installed.folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    output = installed.run("python", "program.py")
    assert output.splitlines()[-1] == "chorus.engine.History 1"
    assert (installed.folder / "runs" / "experiment" / "history.json").exists()


def test_the_demo_trains_with_files_in_the_current_folder(installed):
    changes = ("max_steps=1", "sampling.samples=[]", "workspace_dir=demo", "enable_multi_gpu=false")
    installed.run("chorus-train", "--preset=demo", *(f"--set={change}" for change in changes))
    assert list((installed.folder / "demo" / "models").iterdir())


def test_the_presets_that_bring_their_data_find_it(installed):
    for preset in ("demo", "video_demo"):
        said = installed.run("chorus-train", f"--preset={preset}", "--dry-run")
        assert str(installed.packages / "chorus" / "resources" / preset / "model") in said
        assert "Steps:" in said


def test_a_message_names_a_page_that_is_there(installed):
    said = installed.run("chorus-train", "--preset=nosuch", code=2)
    (page,) = re.findall(r"unknown preset 'nosuch': (\S+) lists them", said)
    assert Path(page).is_file()
    for page in re.findall(r"\S+\.md", installed.run("chorus-train", "--help", COLUMNS="1000").replace("(", " ")):
        assert Path(page).is_file()


def test_the_examples_find_their_data_and_the_ways_to_start_name_what_is_installed(installed):
    example = ("-m", "chorus.scripts.examples.distributed_training_example", "--epochs=0")
    assert "num_epochs 0: it must be at least 1" in installed.run("python", *example, code=2)
    ways = installed.run("chorus-examples-multigpu", "--list")
    named = re.findall(r"(/\S+/(?:scripts|resources)/\S+)", ways)
    assert len(named) > 10
    assert [path for path in named if not Path(path.partition("=")[2] or path).is_file()] == []
    assert "chorus-start-multi-gpu --demo" in ways


def test_the_doctor_reads_the_requirements_of_the_package(installed):
    checks = json.loads(installed.run("chorus-doctor", "--quick", "--json"))["checks"]
    texts = {check["name"]: check["text"] for check in checks}
    assert re.match(r"all \d\d as pinned in requirements.txt(;|$)", texts["packages"])
    assert "Chorus 0." in texts["machine"]


def test_the_package_asks_for_the_range_of_torch_and_for_the_pins_of_all_else(installed):
    (metadata,) = installed.packages.glob("chorus-*.dist-info/METADATA")
    required = re.findall(r"^Requires-Dist: (?!.*extra ==)(.+)", metadata.read_text(encoding="utf-8"), re.MULTILINE)
    assert [each for each in required if "==" not in each] == ["torch<2.14,>=2.11"]


def test_every_command_names_itself_in_its_help(installed):
    for path in installed.programs.glob("chorus*"):
        assert f"usage: {path.stem} " in installed.run(path.name, "--help")


def test_the_window_keeps_its_files_in_the_users_folders(installed):
    code = "from chorus.config.installation import *; print(window_folder(), window_state_folder(), sep='\\n')"
    folders = [Path(line) for line in installed.run("python", "-c", code).splitlines()]
    assert all(installed.folder in folder.parents for folder in folders)


def test_an_editable_installation_is_refused(installed):
    output = installed.run("python", *PIP, "--editable", str(installed.source), code=1)
    assert "Chorus can't be installed as editable" in output


def test_all_files_that_are_named_are_shipped():
    names = [name for _, name in shipped_files(ROOT)]
    for folder, patterns in (("scripts", SCRIPTS), ("resources", RESOURCES), ("docs", DOCS)):
        assert [pattern for pattern in patterns if not fnmatch.filter(names, f"{folder}/{pattern}")] == []
    assert len(names) == len(set(names))


def test_all_imports_and_only_they_are_renamed():
    source = """\
import sys
sys.path.insert(0, str(
    Path(__file__)))
from modules.config import errors  # from modules
def f():
    from scripts import train
    from scripts.terminal import show
    from modulesque import x
    from . import modules
    return modules.items(), "from modules.config import errors"
"""
    lines = source.splitlines()
    lines[1:3] = ["", ""]
    lines[3] = "from chorus.config import errors  # from modules"
    lines[5:7] = ["    from chorus.scripts import train", "    from chorus.scripts.terminal import show"]
    assert renamed(source).splitlines() == lines


def test_an_import_that_would_keep_its_old_name_in_expressions_is_refused():
    with pytest.raises(SetupError, match="Line 2"):
        renamed("import sys\nimport modules.families\n")


def test_texts_that_are_used_name_files_where_they_are_installed():
    """By `docs_page`, `shipped_file` and `command_name`, which know where. Docstrings may name those of a checkout."""
    name = re.compile(r"\bdocs/\w+\.md|\bresources/\w+\.yaml|python scripts/")
    found, pages = [], set()
    for path, _ in shipped_files(ROOT):
        source = path.read_text(encoding="utf-8") if path.suffix == ".py" else ""
        pages |= set(re.findall(r"docs_page\([\"'](\w+)", source))
        if name.search(source):
            tree = ast.parse(source)
            unused = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in unused)
            found += [f"{path}:{text.lineno}" for text in texts if name.search(str(text.value))]
    assert [place for place in found if place.rpartition("/")[2].partition(":")[0] not in ONLY_IN_CHECKOUTS] == []
    assert {f"{page}.md" for page in pages} == set(DOCS)


def test_no_text_that_is_used_names_a_module_by_its_name_in_a_checkout():
    """Only imports are renamed; texts take the name from modules/config/installation.py. Docstrings may keep it."""
    found = []
    for path, _ in shipped_files(ROOT):
        source = path.read_text(encoding="utf-8") if path.suffix == ".py" else ""
        if not re.search(r"[\"'].*\bmodules\.[a-z]", source):
            continue
        tree = ast.parse(source)
        unused = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in unused)
        found += [f"{path}:{text.lineno}" for text in texts if re.search(r"\bmodules\.[a-z]", str(text.value))]
    assert found == []


def _extras() -> dict[str, list[str]]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return {
        name: re.findall(r'"(.+?)"', packages) for name, packages in re.findall(r"^(\w+) = \[(.*?)\]", section, re.M)
    }


@pytest.mark.proof
@pytest.mark.parametrize("extra", _extras())
def test_the_packages_of_an_extra_can_be_installed_beside_our_pins(extra):
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--quiet")
    done = subprocess.run(
        [*command, "--requirement", str(ROOT / "requirements.txt"), *_extras()[extra]],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, encoding="utf-8",
    )  # fmt: skip
    if "No matching distribution" in done.stdout:
        pytest.skip("needs a package index")
    assert done.returncode == 0, done.stdout
