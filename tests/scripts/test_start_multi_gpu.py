"""What start-multi-gpu asks and what it makes of the answers; the demo itself is in test_demo.py."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from PIL import Image

from modules.config.presets import ROOT
from modules.machine.devices import Gpu
from modules.machine.Machine import Machine
from modules.session.RunFolder import RunFolder
from scripts import start_multi_gpu, train
from scripts.starting.what_to_train import preset_lines
from tests.support.backup_files import write_backup
from tests.support.waiting import PATIENCE_SECONDS

SCRIPT = Path(start_multi_gpu.__file__)
FOUR = Machine(tuple(Gpu(index, "NVIDIA Test", f"GPU-{index}", 24 << 30, index) for index in range(4)), cores=16)
ONE = Machine(FOUR.gpus[:1], cores=16)
NONE = Machine(cores=8, no_gpu_reason="no NVIDIA driver is installed")
MAC = Machine(cores=8, system="darwin")
WINDOWS = Machine(FOUR.gpus, cores=16, system="win32")


@pytest.fixture
def settings(tmp_path) -> Path:
    """A settings file that lacks nothing."""
    (tmp_path / "pictures").mkdir()
    return write_settings(tmp_path / "run.yaml", tmp_path, concepts=[{"path": str(tmp_path / "pictures")}])


def write_settings(path: Path, folder: Path, **values) -> Path:
    base = {"workspace_dir": str(folder / "run"), "cache_dir": str(folder / "cache"), "model": {"base": "some/model"}}
    path.write_text(yaml.safe_dump({**base, **values}), encoding="utf-8")
    return path


@pytest.fixture
def start(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, list[str], str]]:
    """A function that starts with options on a machine and gives (exit code, options of train.py, what was printed).

    answers: what a person types; without them nobody is at the terminal.
    """
    monkeypatch.chdir(tmp_path)

    def start(*options: str, machine: Machine = FOUR, answers: list[str] | None = None) -> tuple[int, list[str], str]:
        trained: list[list[str]] = []
        monkeypatch.setattr(start_multi_gpu, "read_machine", lambda: machine)
        monkeypatch.setattr(train, "main", lambda arguments: trained.append(arguments) or 0)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: answers is not None, raising=False)
        left = list(answers or [])

        def answer(prompt: str) -> str:
            print(prompt)
            if prompt.startswith("Start it now?") and answers is not None and not left:
                return ""
            if not left:
                raise EOFError
            return left.pop(0)

        monkeypatch.setattr("builtins.input", answer)
        code = start_multi_gpu.main([*options, "--state", str(tmp_path / "state")])
        assert not left, "not all answers were asked for"
        output = capsys.readouterr()
        return code, trained[0] if trained else [], output.out + output.err

    return start


# --- without questions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "machine", "arguments"),
    [
        ([], FOUR, ["--multi_gpu"]),
        (["--gpus", "all"], FOUR, ["--multi_gpu"]),
        (["--gpus", "2"], FOUR, ["--multi_gpu", "--world_size=2"]),
        (["--devices", "1, 3"], FOUR, ["--multi_gpu", "--devices=1,3"]),
        (["--devices", "3"], FOUR, ["--devices=3", "--set=enable_multi_gpu=false"]),
        (["--gpus", "1"], FOUR, ["--set=enable_multi_gpu=false"]),
        ([], ONE, ["--set=enable_multi_gpu=false"]),
        ([], MAC, ["--set=enable_multi_gpu=false"]),
        (["--backend", "gloo"], NONE, ["--multi_gpu", "--backend=gloo"]),
        (["--gpus", "3", "--backend", "auto"], NONE, ["--multi_gpu", "--world_size=3", "--backend=auto"]),
        (
            ["--no-torchrun", "--single-gpu-data-loading", "--resume"],
            FOUR,
            ["--resume", "--multi_gpu", "--single_gpu_data_loading", "--no_torchrun"],
        ),
        (
            ["--torchrun", "--no-single-gpu-data-loading", "--no-resume"],
            FOUR,
            ["--multi_gpu"],
        ),
        ([], WINDOWS, ["--multi_gpu"]),
    ],
)
def test_yes_asks_nothing_and_options_say_what_differs_from_the_settings(options, machine, arguments, start, settings):
    code, trained, _ = start("--yes", "--config", str(settings), *options, machine=machine)
    assert (code, trained) == (0, [f"--config={settings}", *arguments])


def test_what_the_settings_say_of_gpus_holds_until_an_option_says_otherwise(start, tmp_path):
    path = write_settings(tmp_path / "two.yaml", tmp_path, device_indexes=[1, 2])
    assert start("--yes", "--config", str(path))[1][1:] == ["--multi_gpu", "--devices=1,2"]
    all_of_them = start("--yes", "--config", str(path), "--gpus", "all")[1][1:]
    assert all_of_them == ["--multi_gpu", "--set=device_indexes=[]"]


def test_a_preset_lies_under_the_settings_and_changes_lie_over_them(start, settings, tmp_path):
    options = ["--preset", "sd15-lora", "--run-folder", str(tmp_path / "other"), "--set", "epochs=3"]
    _, trained, _ = start("--yes", "--config", str(settings), *options)
    config = train.read_config(train.parse(trained))
    assert (config.model.base, config.epochs, config.workspace_dir) == ("some/model", 3, str(tmp_path / "other"))
    assert trained[0] == "--preset=sd15-lora"


@pytest.mark.parametrize("option", ["--images", "--pictures"])  # the second is what it was called before
def test_a_folder_of_images_makes_a_preset_trainable(option, start, tmp_path):
    _, trained, _ = start("--yes", "--config", "sd15-lora", option, str(tmp_path))
    assert trained[:2] == ["--preset=sd15-lora", f"--set=concepts.0.path={tmp_path}"]


@pytest.mark.parametrize(
    ("options", "machine", "sentence"),
    [
        (["--yes"], FOUR, "--yes asks nothing: name the settings with --config."),
        (["--yes", "--config", "none.yaml"], FOUR, "none.yaml can't be read"),
        (["--yes", "--config", "sd15-lara"], FOUR, "unknown preset 'sd15-lara': did you mean sd15-lora?"),
        (["--yes", "--config", "demo", "--preset", "sd15-lora"], FOUR, "'demo' is a preset too; name one of them"),
        (["--yes", "--config", "run.yaml", "--gpus", "0"], FOUR, "'0': write how many"),
        (["--yes", "--config", "run.yaml", "--gpus", "5"], FOUR, "this machine has 4; use 4 or less"),
        (["--yes", "--config", "run.yaml", "--devices", "0,7"], FOUR, "device_indexes [0, 7]: only 0 to 3 exist"),
        (["--yes", "--config", "run.yaml", "--gpus", "2"], MAC, "on macOS there is one device"),
        (["--yes", "--config", "run.yaml", "--torchrun"], WINDOWS, "--torchrun: it does not work on Windows"),
        (["--yes", "--config", "run.yaml", "--backend", "mpi"], FOUR, "'mpi' is none of the answers"),
        (["--yes", "--config", "run.yaml", "--images", "."], FOUR, "the settings already contain a dataset"),
        (["--yes", "--config", "run.yaml", "--set", "epoch=3"], FOUR, "epoch"),
        (["--demo", "--resume", "--config", "run.yaml"], FOUR, "leave out --config and --resume"),
        (["--config", "run.yaml"], FOUR, "The questions need a terminal"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence_before_anything_starts(options, machine, sentence, start, settings):
    code, trained, said = start(*options, machine=machine)
    assert (code, trained) == (2, [])
    assert sentence in said
    assert len(said.strip().splitlines()) == 1


def test_one_device_is_said_to_train_alone(start, settings):
    assert "There is one GPU (NVIDIA Test): it trains alone." in start("--yes", "--config", "run.yaml", machine=ONE)[2]
    assert "On macOS, training uses a single device" in start("--yes", "--config", "run.yaml", machine=MAC)[2]


def test_the_line_that_is_printed_starts_the_same_run_from_anywhere(start, tmp_path):
    folder = tmp_path / "a b'cd&e%f!ü"
    folder.mkdir()
    path = write_settings(folder / "run.yaml", tmp_path, epochs=7)
    _, trained, said = start("--yes", "--config", str(path), "--gpus", "2")
    line = said.split("Equivalent command:\n")[1].splitlines()[0]
    script = str(SCRIPT.parent / "train.py")
    assert shlex.split(line) == ["cd", "--", str(tmp_path), "&&", sys.executable, script, *trained]


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps the folder that a process works in")
@pytest.mark.parametrize("given", [["--yes", "--config={}"], []], ids=["without questions", "with questions"])
def test_a_start_in_a_folder_that_is_gone_is_refused_in_one_sentence(given, start, settings, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, trained, said = start(*(option.format(settings) for option in given), answers=[])
    assert (code, trained) == (2, [])
    assert said.splitlines()[-1].endswith("no longer exists: start it again from another one.")


# --- with questions ---------------------------------------------------------------------------------------------------


def test_each_question_becomes_an_option(start, settings, tmp_path):
    code, trained, said = start(answers=["1", "0, 2", "gloo", "no", "spawn"])
    assert code == 0
    assert "   1  " + str(settings) in said
    assert "GPU 3: NVIDIA Test, 24 GiB" in said
    assert "Batch:         4 per device x 2 devices x 1 accumulation = 8 images a step" in said
    assert trained == [
        f"--config={settings}",
        *("--multi_gpu", "--devices=0,2", "--backend=gloo", "--single_gpu_data_loading", "--no_torchrun"),
    ]


def test_the_last_answer_may_be_that_nothing_is_started(start, settings):
    code, trained, said = start(answers=["1", "0, 2", "gloo", "no", "spawn", "no"])
    assert (code, trained) == (0, [])
    assert said.index("Equivalent command:") < said.index("Start it now? [yes]: ") < said.index("Nothing was started.")


def test_files_of_other_programs_are_not_listed(start, settings, tmp_path):
    (tmp_path / "package.json").write_text('{"name": "other", "version": 3}')
    (tmp_path / "notes.yaml").write_text("no mapping")
    _, _, said = start(answers=["run.yaml", "", "", "", ""])
    assert str(settings) in said
    assert not any(name in said for name in ("package.json", "notes.yaml"))


def test_answers_are_the_defaults_of_the_next_time_for_the_same_settings(start, settings, tmp_path):
    _, first, _ = start(answers=[str(settings), "3", "gloo", "no", "spawn"])
    _, second, said = start(answers=[""] * 5)
    assert second == first
    assert "GPUs: how many, all, or which ones as 0,2 [3]" in said
    other = write_settings(tmp_path / "other.yaml", tmp_path, concepts=[{"path": str(tmp_path / "pictures")}])
    _, third, _ = start(answers=[str(other), *[""] * 4])
    assert third[1:] == ["--multi_gpu", "--backend=nccl"]


def test_what_was_answered_for_other_hardware_is_no_default(start, settings):
    start(answers=["run.yaml", "4", "nccl", "", ""])
    _, trained, said = start(answers=["", "", "", "", ""], machine=NONE)
    assert "Processes: how many [4]" in said  # any number of processes can share the cores
    assert "Backend: nccl, gloo or auto [auto]" in said
    assert trained[1:4] == ["--multi_gpu", "--world_size=4", "--backend=auto"]


@pytest.mark.parametrize("kept", ["", "[1]", '{"settings": 3}', '{"settings": "gone.yaml", "gpus": "9"}'])
def test_a_damaged_memory_is_no_memory(kept, start, settings, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "answers.json").write_text(kept)
    assert start(answers=["run.yaml", "", "", "", ""])[0] == 0
    assert json.loads((tmp_path / "state" / "answers.json").read_text())["gpus"] == "all"


def test_options_are_not_asked_for(start, settings):
    options = ["--config", "run.yaml", "--gpus", "2", "--backend", "nccl", "--no-torchrun", "--single-gpu-data-loading"]
    code, trained, said = start(*options, answers=[])
    assert (code, "[" in said) == (0, False)
    assert trained[1:] == [
        "--multi_gpu", "--world_size=2", "--backend=nccl", "--single_gpu_data_loading", "--no_torchrun"
    ]  # fmt: skip


@pytest.mark.parametrize("machine", [ONE, MAC])
def test_one_device_needs_no_questions_about_several(machine, start, settings):
    code, trained, _ = start(answers=["run.yaml"], machine=machine)
    assert (code, trained[1:]) == (0, ["--set=enable_multi_gpu=false"])


def test_ones_own_files_stand_right_above_the_question_and_presets_are_shown_when_asked_for(start, settings):
    code, _, said = start(answers=["sdxl-l", "1"], machine=ONE)
    assert code == 0
    before, shown = said.split("Settings: ", 1)
    assert before.splitlines()[0].split() == ["1", str(settings)]
    assert len(before.splitlines()) < 15
    listed = [line for line in shown.splitlines() if line.startswith("  sdxl-l")]
    assert [line.split()[0] for line in listed] == ["sdxl-lora"]
    presets = {"a": "one", "longer": "two"}
    assert preset_lines("?", presets) == "  a       one\n  longer  two"


def test_a_wrong_answer_is_asked_again_with_the_reason(start, settings, tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text("batch_size: many\n")
    shared = write_settings(
        tmp_path / "global.yaml", tmp_path, batch_size=6, batch_size_mode="global",
        concepts=[{"path": str(tmp_path / "pictures")}],
    )  # fmt: skip
    answers = ["", "999", "nothing", "none.yaml", str(broken), str(shared)]
    answers += ["two", "1 2", "010", "9", "0,9", "4", "2"]
    answers += ["", "maybe", "yes", "x", "t"]
    code, trained, said = start(answers=answers)
    for reason in (
        "Answer with the number or path of a settings file",
        "999 is not in the list",
        "unknown preset 'nothing'",
        "none.yaml can't be read",
        "batch_size",
        "'two': write how many",
        "'1 2': write how many",
        "'010': write how many",
        "this machine has 4; use 4 or less",
        "device_indexes [0, 9]: only 0 to 3 exist",
        "batch_size 6 (global) on 4 GPUs: 6 is not a multiple of 4; use 4 or 8.",
        "'maybe' is none of the answers: write yes or no.",
        "'x' is none of the answers: write spawn or torchrun.",
    ):
        assert reason in said
    assert (code, trained[1:3]) == (0, ["--multi_gpu", "--world_size=2"])


def test_settings_without_images_ask_for_them(start, tmp_path):
    (tmp_path / "cats").mkdir()
    answers = ["sd15-lora", "dogs", "cats", "2", "", "", "", "no"]
    _, trained, said = start(answers=answers)
    assert "'dogs' is not a folder" in said
    assert f"--set=concepts.0.path={tmp_path / 'cats'}" in trained


def test_a_slider_from_prompts_asks_for_no_images(start):
    _, trained, said = start(answers=["sd15-slider", "2", "", "", "", "no"])
    assert "Folder with your images" not in said
    assert trained[0] == "--preset=sd15-slider"


def test_on_windows_nobody_is_asked_for_a_launcher(start, settings):
    _, trained, said = start(machine=WINDOWS, answers=[str(settings), "2", "gloo", "yes"])
    assert trained[1:] == ["--multi_gpu", "--world_size=2", "--backend=gloo"]
    assert "Launcher" not in said


@pytest.mark.parametrize(
    ("gpus", "num_gpus", "gib", "preset"),
    [("2", 2, 24, "sdxl-lora-24gb-x2"), ("3", 3, 16, "sdxl-lora-16gb"), ("0,1,2,3", 4, 80, "sdxl-lora-80gb-x4")],
)
def test_a_preset_made_for_the_chosen_gpus_is_offered(gpus, num_gpus, gib, preset, start, tmp_path):
    (tmp_path / "cats").mkdir()
    machine = Machine(tuple(replace(gpu, memory_bytes=gib << 30) for gpu in FOUR.gpus), cores=16)
    _, trained, said = start(machine=machine, answers=["sdxl-lora", "cats", gpus, "", "", "", ""])
    assert f"{preset} matches these GPUs" in said
    assert trained[0] == f"--preset={preset}"
    config = train.read_config(train.parse(trained))
    assert (config.world_size or len(config.device_indexes)) == num_gpus
    _, again, said = start(machine=machine, answers=[""] * 6)
    assert (again, "matches these" in said) == (trained, False)


def test_a_preset_that_does_not_fit_the_gpus_says_why(start, tmp_path):
    small = Machine(tuple(replace(gpu, memory_bytes=8 << 30) for gpu in FOUR.gpus[:1]), cores=16)
    _, trained, said = start(machine=small, answers=["sdxl-full", str(tmp_path)])
    assert "sdxl-full for a GPU with 8 GB: Weights and gradients" in said
    assert trained[0] == "--preset=sdxl-full"


def earlier_run(folder: Path, with_backup: bool) -> None:
    RunFolder(folder).create()
    (folder / "models" / "model.safetensors").touch()
    if with_backup:
        write_backup(folder / "backup", 120)


def test_options_take_back_what_the_settings_say_of_the_way(start, tmp_path):
    path = write_settings(tmp_path / "own.yaml", tmp_path, use_torchrun=False, distributed_data_loading=False)
    _, trained, _ = start("--yes", "--config", str(path), "--torchrun", "--no-single-gpu-data-loading")
    assert trained[1:] == ["--multi_gpu", "--set=distributed_data_loading=true", "--set=use_torchrun=true"]


def test_a_number_of_gpus_without_a_preset_is_told_what_becomes_of_the_steps(start, tmp_path):
    steps = train.read_config(train.parse(["--preset=sdxl-lora"])).max_steps
    told = f"max_steps {steps} is meant for one GPU: --set max_steps={-(-steps // 3)} is the same number of images"
    for gpus, is_told in (("3", True), ("4", False)):
        answers = ["sdxl-lora", str(tmp_path), gpus, "auto", "", "", "no"]
        assert (told in start(answers=answers)[2]) is is_told


def test_who_does_not_want_to_go_on_is_not_asked_for_it(start, settings, tmp_path):
    earlier_run(tmp_path / "run", with_backup=True)
    _, trained, said = start("--no-resume", answers=["run.yaml", "", "", "", "", ""])
    assert "has a backup" not in said
    assert trained[1] == f"--set=workspace_dir={tmp_path / 'run-2'}"


def test_a_run_with_a_backup_is_offered_to_go_on(start, settings, tmp_path):
    earlier_run(tmp_path / "run", with_backup=True)
    _, trained, said = start(answers=["run.yaml", "", "", "", "", ""])
    assert "has a backup of step 120" in said
    assert trained[1] == "--resume"


def test_a_run_that_has_finished_is_trained_on_only_if_somebody_says_so(start, settings, tmp_path):
    earlier_run(tmp_path / "run", with_backup=True)
    RunFolder(tmp_path / "run").write_exit("finished")
    _, trained, said = start(answers=["run.yaml", "", "", "", "", "", ""])
    assert "holds a run that has finished" in said
    assert trained[1] == f"--set=workspace_dir={tmp_path / 'run-2'}"
    _, trained, _ = start(answers=["run.yaml", "yes", "", "", "", ""])
    assert trained[1] == "--resume"


def test_a_run_with_damaged_backups_only_is_not_offered_to_go_on(start, settings, tmp_path):
    earlier_run(tmp_path / "run", with_backup=True)
    (tmp_path / "run" / "backup" / "step-000000120" / "state.json").unlink()
    _, trained, said = start(answers=["run.yaml", "", "", "", "", ""])
    assert "already contains a run whose backups are damaged: folder for the new one" in said
    assert trained[1] == f"--set=workspace_dir={tmp_path / 'run-2'}"


def test_who_does_not_go_on_gets_a_folder_that_holds_no_run(start, settings, tmp_path):
    earlier_run(tmp_path / "run", with_backup=True)
    earlier_run(tmp_path / "run-2", with_backup=False)
    _, trained, _ = start(answers=["run.yaml", "no", "", "", "", "", ""])
    assert trained[1] == f"--set=workspace_dir={tmp_path / 'run-3'}"
    _, trained, said = start(answers=["run.yaml", "no", str(tmp_path / "run-2"), "new", "", "", "", ""])
    assert "holds a run already" in said
    assert trained[1] == f"--set=workspace_dir={tmp_path / 'new'}"


def test_nobody_who_answers_any_more_ends_it_in_a_sentence(start, settings):
    code, trained, said = start(answers=["run.yaml"])
    assert (code, trained) == (2, [])
    assert said.strip().splitlines()[-1].startswith("The questions got no answer: answer them in a terminal, or by")


# --- from another program ---------------------------------------------------------------------------------------------


# Python runs it before the script, so that the driver has eight GPUs for it: four A100, two RTX 4090, two RTX 3090.
EIGHT_GPUS = """
import sys
from tests.support.fake_nvml import eight_gpus
sys.modules["pynvml"] = eight_gpus()
"""


@pytest.fixture
def terminal(tmp_path, settings):
    """A function that starts the script in a terminal, which another program answers.

    terminal(*options, eight_gpus=False): on this machine without its GPUs, or on one with eight.
    """
    pexpect = pytest.importorskip("pexpect", reason="pexpect answers in a terminal")
    if os.name == "nt":
        pytest.skip("Windows has no pseudo-terminals for pexpect")
    (tmp_path / "stand-ins").mkdir()
    (tmp_path / "stand-ins" / "sitecustomize.py").write_text(EIGHT_GPUS, encoding="utf-8")
    with_gpus = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    with_gpus["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "stand-ins"), str(ROOT)])
    without_gpus = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    started = []

    def spawn(*options: str, eight_gpus: bool = False):
        arguments = [str(SCRIPT), "--state", str(tmp_path / "state"), "--dry-run", *options]
        child = pexpect.spawn(
            sys.executable,
            arguments,
            cwd=str(tmp_path),
            env=with_gpus if eight_gpus else without_gpus,
            encoding="utf-8",
            timeout=PATIENCE_SECONDS,
        )
        started.append(child)
        return child

    yield spawn
    for child in started:
        child.close(force=True)


def answer(child, *dialogue: tuple[str, str]) -> tuple[int, str, list[str]]:
    """(Exit code, what was said after the last answer, options of train.py) when each prompt, a pattern, has had its
    answer."""
    for prompt, text in dialogue:
        child.expect(prompt)
        child.sendline(text)
    code, said = end_of(child)
    line = said.replace("\r\n", "\n").split("Equivalent command:\n")[1].splitlines()[0]
    return code, said, shlex.split(line)[6:]


def end_of(child, seconds: float = PATIENCE_SECONDS) -> tuple[int, str]:
    import pexpect

    child.expect(pexpect.EOF, timeout=seconds)
    child.close()
    return child.exitstatus, child.before


def test_another_program_can_answer_every_question_and_wrong_answers_are_asked_again(terminal, tmp_path):
    earlier_run(tmp_path / "first", with_backup=True)
    (tmp_path / "cats & dögs").mkdir()
    Image.new("RGB", (64, 64)).save(tmp_path / "cats & dögs" / "cat.png")
    base = f"model.base={ROOT / 'resources' / 'demo' / 'model'}"  # the preset's own one is on the Hub
    code, said, trained = answer(
        terminal("--run-folder", str(tmp_path / "first"), "--set", base, eight_gpus=True),
        ("Settings: .*: ", "999"),
        ("999 is not in the list.*Settings: .*: ", "no such preset"),
        ("unknown preset .*Settings: .*: ", "sd15-lora"),
        ("Folder with your images: ", "dogs"),
        ("'dogs' is not a folder.*Folder with your images: ", "cats & dögs"),
        ("first has a backup of step 120.*resume from it.*: ", "later"),
        ("write yes or no.*resume from it.*: ", "no"),
        ("folder for the new one.*: ", str(tmp_path / "first")),
        ("holds a run already.*folder for the new one.*: ", ""),
        ("GPU 7: NVIDIA GeForce RTX 3090, 24 GiB.*GPUs: .*: ", "two"),
        ("'two': write how many.*GPUs: .*: ", "9"),
        ("this machine has 8.*GPUs: .*: ", "3,9"),
        ("only 0 to 7 exist.*GPUs: .*: ", "4, 5"),
        ("Backend: .*: ", "mpi"),
        ("write nccl, gloo or auto.*Backend: .*: ", "auto"),
        ("share of the images.*: ", "perhaps"),
        ("write yes or no.*share of the images.*: ", "no"),
        ("Launcher: .*: ", "mpirun"),
        ("write spawn or torchrun.*Launcher: .*: ", "spawn"),
        ("sd15-lora-24gb-x2 matches these GPUs: use it.*: ", "perhaps"),
        ("write yes or no.*use it.*: ", "yes"),
    )
    assert trained == [
        "--preset=sd15-lora-24gb-x2",
        f"--set=workspace_dir={tmp_path / 'first'}",
        f"--set={base}",
        f"--set=concepts.0.path={tmp_path / 'cats & dögs'}",
        f"--set=workspace_dir={tmp_path / 'first-2'}",
        *("--multi_gpu", "--devices=4,5", "--set=world_size=null", "--backend=auto", "--single_gpu_data_loading"),
        "--no_torchrun",
    ]
    assert (code, "Traceback" in said) == (0, False), said
    assert "x 2 devices x" in said  # of the dry run, which the options end in


def test_the_next_start_offers_the_answers_again_and_goes_on_where_that_is_wanted(terminal, tmp_path):
    (tmp_path / "cats").mkdir()
    folder = ["--run-folder", str(tmp_path / "first")]
    _, _, first = answer(
        terminal(*folder, eight_gpus=True),
        ("Settings: .*: ", "sd15-lora"),
        ("Folder with your images: ", "cats"),
        ("GPUs: .*: ", "all"),
        ("Backend: .*: ", "gloo"),
        ("share of the images.*: ", "no"),
        ("Launcher: .*: ", "torchrun"),
        ("sd15-lora-24gb-x8 matches these GPUs: use it.*: ", "no"),
    )
    chosen = [f"--set=workspace_dir={tmp_path / 'first'}", f"--set=concepts.0.path={tmp_path / 'cats'}"]
    devices = ["--multi_gpu", "--backend=gloo", "--single_gpu_data_loading"]
    assert first == ["--preset=sd15-lora", *chosen, *devices]

    earlier_run(tmp_path / "first", with_backup=True)
    _, _, second = answer(  # a run that goes on keeps its settings: no other preset is offered
        terminal(*folder, eight_gpus=True),
        (r"Settings: .*\[sd15-lora\]: ", ""),
        (r"Folder with your images \[.*cats\]: ", ""),
        (r"first has a backup of step 120.*resume from it\? \[yes\]: ", "y"),
        (r"GPUs: .*\[all\]: ", ""),
        (r"Backend: .*\[gloo\]: ", ""),
        (r"share of the images\? \[no\]: ", ""),
        (r"Launcher: .*\[torchrun\]: ", ""),
    )
    assert second == ["--preset=sd15-lora", *chosen, "--resume", *devices]


def test_processes_are_asked_for_in_a_terminal_without_gpus(terminal, settings):
    _, _, trained = answer(
        terminal(),
        ("Settings: .*: ", settings.name),
        ("There is no GPU .*Processes: .*: ", "-1"),
        ("write how many.*Processes: .*: ", "2"),
        (r"Backend: .*\[auto\]: ", "nccl"),
        ("share of the images.*: ", "yes"),
        ("Launcher: .*: ", "torchrun"),
    )
    assert trained == [f"--config={settings}", "--multi_gpu", "--world_size=2", "--backend=nccl"]


@pytest.mark.parametrize(
    ("give_up", "code", "sentence"),
    [
        ("sendintr", 130, "Stopped before the training began."),
        ("sendeof", 2, "The questions got no answer: answer them in a terminal, or by options with --yes"),
    ],
)
def test_ctrl_c_and_ctrl_d_at_a_question_end_it_without_a_traceback(give_up, code, sentence, terminal):
    import pexpect

    child = terminal()
    child.expect("Settings: .*: ")
    press = getattr(child, give_up)
    press()
    try:
        ended, said = end_of(child, seconds=15)
    except pexpect.TIMEOUT:  # CPython notices a signal that falls between prompt and read only at the next key
        press()
        ended, said = end_of(child)
    assert (ended, "Traceback" in said) == (code, False)
    assert sentence in said


def test_without_a_terminal_it_says_how_to_answer_and_never_waits(tmp_path):
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, SCRIPT], timeout=PATIENCE_SECONDS, **pipes)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "The questions need a terminal: answer them by options, with --yes (--help lists them).\n"


def test_a_dry_run_of_the_demo_starts_nothing(start):
    code, arguments, _ = start("--demo", "--dry-run")
    assert code == 0
    assert "--preset=demo" in arguments
    assert arguments[-1] == "--dry-run"
