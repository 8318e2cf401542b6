"""scripts/train.py: bad input ends in one sentence, before anything is spent, and the run folder stays usable."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from modules.config.describe import settings_by_path
from modules.config.explain import generic_path
from modules.session.backups import damage
from modules.session.RunSummary import RunSummary
from modules.trainer import compiling
from scripts import train
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SIZES = ((32, 32),) * 8 + ((48, 32), (32, 48), (32, 48))


@pytest.fixture
def settings(tmp_path, tiny_sd15, picture_folder) -> dict:
    """Of a quick run on eleven pictures, as in a file."""
    return {
        "family": "sd15",
        "workspace_dir": str(tmp_path / "run"),
        "cache_dir": str(tmp_path / "cache"),
        "model": {"base": str(tiny_sd15)},
        "concepts": [{"path": str(picture_folder(SIZES))}],
        "data": {"resolution": 32, "bucket_step": 8},
        "lora": {"rank": 2},
        "output": {"format": "diffusers"},
        "max_steps": 2,
        "tensorboard": False,
    }


@pytest.fixture
def run(tmp_path, capfd):
    """A function that runs the script on settings with arguments and gives (exit code, stdout, stderr)."""

    def run(settings: dict, *arguments: str) -> tuple[int, str, str]:
        path = tmp_path / "settings.yaml"
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        code = train.main(["--config", str(path), *arguments])
        return code, *capfd.readouterr()

    return run


def message_of(error: str) -> str:
    """The one sentence of a refusal, which stands in the last line."""
    return error.strip().splitlines()[-1].removeprefix("Failed: ")


def picture(settings: dict, number: int) -> Path:
    return Path(settings["concepts"][0]["path"]) / f"{number:03d}.png"


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--local-rank=1", "--local_rank=1"])
def test_what_torch_distributed_launch_tells_each_rank_changes_nothing(option):
    with_it, without = (train.read_config(train.parse([*given, "--preset", "demo"])) for given in ([option], []))
    assert with_it == without


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_ends_with_a_model_and_a_record(settings, run, tmp_path):
    code, _, error = run(settings)
    assert code == 0, error
    folder = tmp_path / "run"
    assert json.loads((folder / "exit.json").read_text())["status"] == "finished"
    types = [json.loads(line)["type"] for line in (folder / "events" / "rank-0.jsonl").read_text().splitlines()]
    assert [types.count(kind) for kind in ("step", "backup", "saved", "finished")] == [2, 1, 1, 1]
    assert types[-1] == "finished"
    assert (folder / "models" / "model.safetensors").exists()
    assert yaml.safe_load((folder / "config.yaml").read_text())["max_steps"] == 2


def test_set_changes_what_the_file_says(settings, run, tmp_path):
    code, _, error = run(settings, "--set", "max_steps=1", "--set", "output.name=other: one")
    assert code == 0, error
    assert len(list((tmp_path / "run" / "models").iterdir())) == 1
    assert not (tmp_path / "run" / "models" / "model.safetensors").exists()


def test_a_stop_command_from_outside_ends_with_its_own_code(settings, run, tmp_path):
    commands = tmp_path / "run" / "commands"
    commands.mkdir(parents=True)
    command = commands / "1.stop.cmd"
    command.touch()
    os.utime(command, (4e9, 4e9))  # sent after the start, as far as the run can tell
    code, _, error = run({**settings, "max_steps": 500})
    assert code == 130, error
    assert json.loads((tmp_path / "run" / "exit.json").read_text())["status"] == "stopped"


# --- refusals ---------------------------------------------------------------------------------------------------------


def no_pictures(settings: dict, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    settings["concepts"][0]["path"] = str(tmp_path / "empty")


def wrong_architecture(settings: dict, tmp_path: Path) -> None:
    settings["family"] = "sd3"
    settings["data"]["bucket_step"] = 16


def latin_1_caption(settings: dict, tmp_path: Path) -> None:
    picture(settings, 3).with_suffix(".txt").write_bytes("ein schöner Tag".encode("latin-1"))


def broken_model(settings: dict, tmp_path: Path) -> None:
    copy = tmp_path / "broken"
    shutil.copytree(settings["model"]["base"], copy)
    weights = copy / "unet" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    settings["model"]["base"] = str(copy)


def model_that_predicts_pictures(settings: dict, tmp_path: Path) -> None:
    copy = tmp_path / "predicts"
    shutil.copytree(settings["model"]["base"], copy)
    path = copy / "scheduler" / "scheduler_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "prediction_type": "sample"}))
    settings["model"]["base"] = str(copy)


def put(path: str, value):
    def change(settings: dict, tmp_path: Path) -> None:
        *sections, name = path.split(".")
        place = settings
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value

    return change


def no_lora(settings: dict, tmp_path: Path) -> None:
    vae = Path(settings["model"]["base"]) / "vae" / "diffusion_pytorch_model.safetensors"
    settings["lora"]["start_from"] = str(vae)


REFUSALS = {
    "missing model": (put("model.base", "/no/such/model"), ["model.base", "/no/such/model"]),
    "no model": (put("model.base", ""), ["model.base is empty"]),
    "wrong architecture": (wrong_architecture, ["model.base", "sd3"]),
    "broken model": (broken_model, ["unet"]),
    "no pictures": (no_pictures, ["concepts.0.path", "contains no images"]),
    "no concept": (put("concepts", []), ["concepts: there is no dataset yet"]),
    "latin-1 caption": (latin_1_caption, ["003.txt is not UTF-8", "save it as UTF-8"]),
    "newer version": (put("config_version", 99), ["config_version 99 is newer", "update Chorus"]),
    "older version": (put("config_version", 0), ["config_version 0 is too old"]),
    "resolution": (put("data.resolution", 30), ["data.resolution 30", "multiple of 8", "use 24 or 32"]),
    "size of a sample": (
        put("sampling", {"samples": [{"prompt": "a", "width": 30}]}),
        ["sampling.samples.0.width 30", "multiple of 8"],
    ),
    "impossible size of a sample": (
        put("sampling", {"samples": [{"prompt": "a", "height": 100_000_000}]}),
        ["sampling.samples.0.height is 100000000", "8 to 16384"],
    ),
    "unknown setting": (put("optimizer.learning_rat", 1e-4), ["optimizer.learning_rat", "learning_rate"]),
    "wrong type": (put("batch_size", "many"), ["batch_size", "many"]),
    "workspace in a file": (put("workspace_dir", "{tmp}/settings.yaml/run"), ["workspace_dir", "is a file"]),
    "workspace with a long name": (put("workspace_dir", "{tmp}/" + "x" * 300), ["workspace_dir", "name too long"]),
    "cache in a file": (put("cache_dir", "{tmp}/settings.yaml"), ["cache_dir", "is a file"]),
    "batch and accumulation": (
        lambda settings, _: settings.update(batch_size=3, batch_size_mode="global", gradient_accumulation_steps=2),
        ["batch_size 3 (global)", "use 2 or 4"],
    ),
    "ranks": (
        lambda settings, _: settings.update(enable_multi_gpu=True, world_size=10**6, distributed_backend="gloo"),
        ["world_size 1000000", "of memory and this machine has"],
    ),
    "missing LoRA": (put("lora.start_from", "/no/lora.safetensors"), ["lora.start_from", "/no/lora.safetensors"]),
    "no LoRA": (no_lora, ["lora.start_from", "is not a LoRA"]),
    "text encoder": (
        put("text_encoder", {"train": True, "only": [2]}),
        ["text_encoder.only 2", "has 1 text encoder"],
    ),
    "word": (
        lambda settings, _: settings.update(method="embedding", embeddings=[{"placeholder": "zebra-1"}]),
        ["embeddings.0.placeholder 'zebra-1' appears in no caption"],
    ),
    "prediction": (model_that_predicts_pictures, ["model.prediction_type auto", "predicts 'sample'", "another base"]),
    "zero terminal SNR": (put("model.zero_terminal_snr", True), ["model.zero_terminal_snr", "v_prediction"]),
    "layers": (
        put("denoiser.include_layers", "down_blocks, midblock"),
        ["denoiser.include_layers 'midblock' matches no layer"],
    ),
}
# A dry run loads no weights.
NOT_SEEN_BY_A_DRY_RUN = ("broken model", "layers")


@pytest.mark.parametrize("name", REFUSALS)
def test_bad_input_is_refused_in_one_sentence_and_the_folder_stays_usable(name, settings, run, tmp_path):
    spoil, expected = REFUSALS[name]
    good = json.loads(json.dumps(settings))
    spoil(settings, tmp_path)
    settings = json.loads(json.dumps(settings).replace("{tmp}", str(tmp_path)))
    code, _, error = run(settings)
    assert code in (1, 2)
    assert "Traceback" not in error
    message = message_of(error)
    for part in expected:
        assert part in message
    assert not list((tmp_path / "cache").rglob("*.safetensors"))  # refused before anything was spent
    if name == "latin-1 caption":
        picture(good, 3).with_suffix(".txt").write_text("ein schöner Tag", encoding="utf-8")
    code, _, error = run(good, "--set", "max_steps=1")
    assert code == 0, error


@pytest.mark.parametrize("name", [name for name in REFUSALS if name not in NOT_SEEN_BY_A_DRY_RUN])
def test_a_dry_run_refuses_it_too(name, settings, run, tmp_path):
    spoil, expected = REFUSALS[name]
    spoil(settings, tmp_path)
    settings = json.loads(json.dumps(settings).replace("{tmp}", str(tmp_path)))
    code, output, error = run(settings, "--dry-run", "--json")
    assert (code, error) == (2, "")
    problems = RunSummary.from_json(output).problems
    text = "\n".join(problem.message for problem in problems)
    assert all(part in text for part in expected)
    for problem in problems:
        first = re.split("[ :]", problem.message)[0]
        assert generic_path(first) not in settings_by_path() or problem.path == first
    assert not (tmp_path / "run").exists()


def test_a_dry_run_refuses_a_folder_that_holds_a_run_unless_it_goes_on(settings, run, tmp_path):
    models = tmp_path / "run" / "models"
    models.mkdir(parents=True)
    (models / "model.safetensors").touch()
    code, _, error = run(settings, "--dry-run")
    assert code == 2
    assert "holds a run already" in error
    assert run(settings, "--dry-run", "--resume")[0] == 0


def test_a_dry_run_warns_of_what_the_devices_do_not_have(settings, run, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("modules.machine.Machine.num_cores", lambda: 2)
    code, summary, error = run(settings, "--dry-run", "--multi_gpu", "--world_size=3")
    assert code == 0, error
    for sentence in (
        "distributed_backend nccl: there is no NVIDIA GPU here, so the ranks use gloo; set it to auto or gloo.",
        "world_size 3: 3 ranks share 2 CPU cores and wait for each other; use 2.",
    ):
        assert summary.count(f"Warning:       {sentence}\n") == 1


def test_a_gpu_that_is_not_there_is_refused_with_one_device_too(settings, run, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for arguments in (["--dry-run"], []):
        code, _, error = run(settings, "--devices", "5", *arguments)
        assert (code, error) == (2, "device_indexes [5]: there is no GPU here; choose others, or none for all.\n")


def test_a_dry_run_tells_of_a_missing_package_and_compiler(settings, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "schedulefree", None)  # as if it were not installed
    assert "needs the package schedulefree" in run(settings, "--dry-run", "--set", "optimizer.name=schedule_free")[2]
    for name in ("_missing_on_cpu", "_missing_on_gpu"):
        monkeypatch.setattr(compiling, name, lambda: "torch finds no compiler")
    assert "torch finds no compiler" in run(settings, "--dry-run", "--set", "model.compile=blocks")[2]


def test_every_mistake_of_a_file_is_named_at_once(settings, run):
    settings["batch_size"] = 0
    settings["epochs"] = "ten"
    settings["optimizer"] = {"naem": "adamw"}
    code, _, error = run(settings)
    assert code == 2
    assert len(error.strip().splitlines()) == 3


def test_a_file_that_is_no_yaml_is_one_sentence(tmp_path, capfd):
    path = tmp_path / "settings.yaml"
    path.write_text("a: [1, 2\nb: {", encoding="utf-8")
    assert train.main(["--config", str(path)]) == 2
    error = capfd.readouterr().err
    assert "settings.yaml" in error
    assert "Traceback" not in error


def test_a_missing_settings_file_is_one_sentence(tmp_path, capfd):
    assert train.main(["--config", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capfd.readouterr().err


def test_an_unreadable_picture_is_a_warning(settings, run, tmp_path):
    picture(settings, 0).write_bytes(b"this is no picture")
    code, _, error = run(settings)
    assert code == 0, error
    events = [json.loads(line) for line in (tmp_path / "run" / "events" / "rank-0.jsonl").read_text().splitlines()]
    warnings = [event["text"] for event in events if event["type"] == "warning"]
    assert any("000.png is left out" in text for text in warnings)


def test_a_folder_with_a_run_is_refused_untouched_and_a_resume_takes_it(settings, run, tmp_path):
    assert run(settings)[0] == 0
    records = [tmp_path / "run" / name for name in ("exit.json", "events/rank-0.jsonl", "config.yaml")]
    before = [path.read_bytes() for path in records]
    code, _, error = run(settings)
    assert code == 2
    assert "holds a run already: resume it" in message_of(error)
    assert [path.read_bytes() for path in records] == before
    assert run(settings, "--resume", "--set", "max_steps=3")[0] == 0


# --- a full disk ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A function that gives a folder on a disk of so many KB."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a small disk")
    mounted = []

    def mount(kilobytes: int) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("no small disk can be mounted here")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # somebody may still look at a file


def test_a_full_cache_disk_is_one_sentence_and_what_is_cached_stays(settings, run, small_disk, tmp_path):
    settings["cache_dir"] = str(small_disk(40))
    code, _, error = run(settings)
    assert code == 1
    assert "Traceback" not in error
    assert "cache_dir" in message_of(error)
    assert "the disk is full" in message_of(error)
    kept = list(Path(settings["cache_dir"]).rglob("*.safetensors"))
    assert kept
    assert not list(Path(settings["cache_dir"]).rglob("*.tmp-*"))
    assert run({**settings, "cache_dir": str(tmp_path / "cache")})[0] == 0


def test_a_disk_that_fills_up_during_the_run_leaves_the_backups_before_and_the_last_elsewhere(
    settings, run, small_disk, tmp_path
):
    disk = small_disk(6000)
    settings["output"]["fallback_dir"] = str(tmp_path / "spare")
    settings["workspace_dir"] = str(disk / "run")
    settings["backup"] = {"every": 1, "unit": "steps", "keep": 100}
    settings["method"] = "full"  # a backup is of about 800 KB, a model too
    settings["max_steps"] = 60
    code, _, error = run(settings)
    assert code == 1
    assert "Traceback" not in error
    assert "could not be written" in error
    *earlier, last = sorted((disk / "run" / "backup").iterdir())
    assert earlier
    assert [damage(path) for path in (*earlier, last)] == [None] * (len(earlier) + 1)
    assert tmp_path / "spare" in last.readlink().parents
    assert f"resume from the backup of step {int(last.name[5:])}." in message_of(error)


def test_a_workspace_on_a_full_disk_is_one_sentence(settings, run, small_disk):
    disk = small_disk(64)
    (disk / "ballast").write_bytes(bytes(64 * 1024 - 8192))
    settings["workspace_dir"] = str(disk / "run")
    code, _, error = run(settings)
    assert code in (1, 2)
    assert "Traceback" not in error
    assert "No space left" in error or "full" in error or "written" in error


# --- quick answers ----------------------------------------------------------------------------------------------------

WITHOUT_TORCH = """
import sys
from scripts.train import main

try:
    code = main(sys.argv[1:])
except SystemExit as error:
    code = error.code
heavy = sorted({"torch", "diffusers", "transformers", "peft"} & set(sys.modules))
sys.exit(code or (f"imported: {heavy}" if heavy else 0))
"""


def answer(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)


def test_help_does_not_import_torch():
    done = answer("--help")
    assert done.returncode == 0, done.stderr
    assert "--resume" in done.stdout


def test_a_dry_run_does_not_import_torch_and_writes_nothing(settings, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    done = answer("--config", str(path), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "11" in done.stdout
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "cache").exists()


def test_without_settings_the_usage_is_shown():
    with pytest.raises(SystemExit) as end:
        train.main([])
    assert end.value.code == 2


def test_a_resumed_run_keeps_the_timesteps_and_rate_it_began_with_where_a_preset_has_new_ones(tmp_path):
    begun = {"config_version": 1, "family": "zimage", "diffusion": {"timesteps": "family"}}
    begun["optimizer"] = {"learning_rate": 0.0003}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(begun))
    command = ["--preset", "zimage-lora", "--set", f"workspace_dir={tmp_path}"]

    def chosen(*more: str) -> tuple:
        config = train.read_config(train.parse([*command, *more]))
        return config.diffusion.timesteps, config.diffusion.expert_share, config.optimizer.learning_rate

    assert chosen() == ("trained", 0.5, 0.0001)
    assert chosen("--resume") == ("family", None, 0.0003)
    assert chosen("--resume", "--set", "diffusion.timesteps=uniform") == ("uniform", None, 0.0003)
    (tmp_path / "config.yaml").unlink()
    assert chosen("--resume") == ("trained", 0.5, 0.0001)
