"""The start page's choices, which presets fit, and how recent runs are described: without a window."""

import json
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from modules.config.families import load_families
from modules.config.files import config_from_values
from modules.config.presets import load_preset
from modules.machine.devices import Gpu
from modules.session.following import RunInfo
from modules.session.RunFolder import RunFolder
from modules.ui.models.base_model import examine_base
from modules.ui.models.fitting_presets import PresetChoice, choice_of, fitting_presets, suggested_preset
from modules.ui.models.QuickStart import QuickStart
from modules.ui.models.recent_runs import RecentRun, describe_age, describe_run, find_recent
from modules.ui.models.SettingsModel import SettingsModel
from tests.support.backup_files import write_backup
from tests.support.fake_nvml import GIB


def gpus(*sizes: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(number, "GPU", f"GPU-{number}", size * GIB, number) for number, size in enumerate(sizes))


def quick_start(*sizes: int) -> tuple[SettingsModel, QuickStart]:
    settings = SettingsModel()
    return settings, QuickStart(settings, SimpleNamespace(gpus=gpus(*sizes)))


def values_of(preset: str, **changes) -> dict:
    """All values of a preset, with some sections replaced or extended."""
    values = load_preset(preset)
    for name, change in changes.items():
        values[name] = {**values.get(name, {}), **change} if isinstance(change, dict) else change
    return config_from_values(values)


def test_presets_are_listed_by_memory_and_only_those_of_the_family_and_method():
    choices = fitting_presets("sdxl", "lora")
    assert {choice.preset for choice in choices} == {"sdxl-lora", "sdxl-style"}
    sizes = [choice.memory for choice in choices]
    assert sizes == sorted(sizes)
    assert 24 in sizes
    assert fitting_presets("ovis_image", "vae") == ()
    assert min(choice.memory for choice in fitting_presets("auraflow", "full")) == 32  # less is not offered


def test_every_listed_preset_can_be_loaded_for_any_number_of_gpus():
    for family in load_families():
        for choice in fitting_presets(family, "lora"):
            for count in (1, 3, 8):
                name = choice.variant(count)
                assert config_from_values(load_preset(name)).family == family
                assert choice_of(fitting_presets(family, "lora"), name) == choice


@pytest.mark.parametrize(("sizes", "memory"), [((24, 80), 24), ((12,), 12), ((6,), 8), ((), 8)])
def test_the_preset_with_the_most_memory_that_every_gpu_has_is_suggested(sizes, memory):
    choices = [PresetChoice("x", size) for size in (8, 12, 24, 48)]
    assert suggested_preset(choices, gpus(*sizes)).memory == memory
    assert suggested_preset([], gpus(*sizes)) is None


@pytest.mark.parametrize("folder_first", [True, False])
def test_own_images_replace_the_demo_by_the_suggested_preset_in_one_undo_step(folder_first):
    settings, quick = quick_start(24)
    before = settings.values
    assert quick.has_demo_images
    settings.set("family", "sdxl")
    if not folder_first:
        settings.set("model.base", "somebody/sdxl")
    quick.use_folder("/cats")
    if folder_first:
        settings.set("model.base", "somebody/sdxl")
    expected = values_of(
        "sdxl-lora-24gb", model={"base": "somebody/sdxl"}, concepts=[{"path": "/cats"}], **named_after("cats")
    )
    assert settings.config() == expected
    assert not quick.has_demo_images
    assert quick.chosen_preset == quick.suggested == PresetChoice("sdxl-lora", 24)
    while settings.values != before:
        assert settings.undo()
    assert not settings.undo()


def test_presets_are_those_of_the_model_that_the_user_chose():
    settings, quick = quick_start(12)
    settings.set("family", "wan21")
    assert {"", "wan21_1_3b"} == {choice.model for choice in quick.choices}
    assert quick.suggested.label == "wan21_1_3b-lora (Wan 2.1 1.3B), 12 GB GPU"  # the others need more memory
    settings.set("model.base", "/models/Wan2.1-T2V-14B-Diffusers")
    assert {choice.model for choice in quick.choices} == {""}
    assert quick.suggested.preset == "wan21-lora"
    settings.set("model.base", "/models/Wan2.1-T2V-1.3B-Diffusers")
    quick.use_preset(quick.suggested)
    assert quick.chosen_preset == quick.suggested
    assert settings.get("model.base") == "/models/Wan2.1-T2V-1.3B-Diffusers"
    settings.load_preset("wan21-lora-24gb", keeps_own=False)
    assert {"", "wan21_1_3b"} == {choice.model for choice in quick.choices}
    assert quick.suggested.model == ""


def test_another_folder_changes_only_the_names_with_it():
    settings, quick = quick_start(24)
    quick.use_folder("/cats")
    settings.set("epochs", 3)
    before = settings.values
    quick.use_folder("/dogs")
    assert settings.get("concepts.0.path") == "/dogs"
    assert names(settings) == ("workspace/dogs", "dogs")
    assert settings.get("epochs") == 3
    settings.undo()
    assert settings.values == before


def test_a_preset_keeps_base_and_folder():
    settings, quick = quick_start(24)
    quick.use_folder("/cats")
    settings.set("model.base", "somebody/sd15")
    quick.use_preset(PresetChoice("sd15-lora", 8))
    assert settings.config() == values_of(
        "sd15-lora-8gb", model={"base": "somebody/sd15"}, concepts=[{"path": "/cats"}], **named_after("cats")
    )


def names(settings: SettingsModel) -> tuple[str, str]:
    return settings.get("workspace_dir"), settings.get("output.name")


def named_after(name: str) -> dict:
    return {"workspace_dir": f"workspace/{name}", "output": {"name": name}}


def test_run_and_model_are_named_after_the_images_unless_somebody_has_named_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings, quick = quick_start(24)
    quick.use_folder("/photos/my cats/images")
    assert names(settings) == ("workspace/my cats", "my cats")
    (tmp_path / "workspace" / "dogs").mkdir(parents=True)
    quick.use_folder("/photos/10_dogs")
    assert names(settings) == ("workspace/dogs-2", "dogs")  # there is another run of dogs
    settings.set("output.name", "rex")
    quick.use_folder("/photos/dogs")
    assert names(settings) == ("workspace/dogs-2", "rex")
    settings.set("workspace_dir", "/runs/mine")
    quick.use_folder("/photos/birds")
    assert names(settings) == ("/runs/mine", "rex")


def test_names_of_a_settings_file_are_kept_and_the_usual_ones_are_not(tmp_path):
    settings, quick = quick_start(24)
    settings.set("workspace_dir", "/runs/run-3")
    settings.set("output.name", "rex")
    settings.save(tmp_path / "mine.yaml")
    quick.use_folder("/photos/dogs")
    assert names(settings) == ("/runs/dogs", "rex")


def test_the_number_of_gpus_takes_the_variant_for_it_and_keeps_what_was_changed():
    settings, quick = quick_start(24, 24, 24, 24)
    quick.use_folder("/cats")
    assert settings.preset_name == "sd15-lora-24gb-x4"
    assert quick.uses_all_gpus is True
    settings.set("optimizer.learning_rate", 3e-4)
    settings.set("batch_size", "many")
    quick.use_gpus(False)
    assert settings.preset_name == "sd15-lora-24gb"
    assert quick.uses_all_gpus is False
    steps = [load_preset(name)["max_steps"] for name in ("sd15-lora-24gb", "sd15-lora-24gb-x4")]
    assert settings.get("max_steps") == steps[0] > steps[1]
    assert (settings.get("optimizer.learning_rate"), settings.shown("batch_size")) == (3e-4, "many")
    assert settings.get("concepts.0.path") == "/cats"
    settings.undo()
    assert settings.preset_name == "sd15-lora-24gb-x4"


def test_settings_of_a_file_only_change_their_gpus(tmp_path):
    settings, quick = quick_start(24, 24, 24)
    settings.save(tmp_path / "mine.yaml")
    assert not quick.has_demo_images
    before = settings.get("max_steps")
    quick.use_gpus(False)
    assert (settings.get("enable_multi_gpu"), settings.get("max_steps")) == (False, before)
    quick.use_gpus(True)
    settings.set("device_indexes", [0, 2])
    assert quick.uses_all_gpus is None


def test_three_gpus_all_train_though_the_variant_is_for_two():
    settings, quick = quick_start(24, 24, 24)
    quick.use_folder("/cats")
    assert settings.preset_name == "sd15-lora-24gb-x2"
    assert settings.get("world_size") is None
    assert quick.uses_all_gpus is True


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (RunInfo(Path("a"), "running", 990, 1320, 5000), "running, step 1,320 of 5,000"),
        (RunInfo(Path("a"), "finished", 1000 - 86400, 500, 500, 0.0812), "finished yesterday, loss 0.0812"),
        (RunInfo(Path("a"), "finished", 1000 - 3 * 86400, 500), "finished 3 days ago"),
        (RunInfo(Path("a"), "stopped", 1000 - 600, 640, 800, 0.1), "stopped at step 640, 10 minutes ago"),
    ],
)
def test_a_recent_run_in_a_line(info, text):
    assert describe_run(info, now=1000.0) == text


def test_ages_in_words():
    ages = [describe_age(seconds) for seconds in (-5, 89, 90, 3600, 5400, 7200, 23.4 * 3600, 24 * 3600, 40 * 3600)]
    assert ages == [
        "just now", "just now", "2 minutes ago", "1 hour ago", "2 hours ago", "2 hours ago", "23 hours ago",
        "yesterday", "2 days ago",
    ]  # fmt: skip


def make_run(path: Path, status: str, step: int = 9) -> RunFolder:
    folder = RunFolder(path)
    folder.create()
    event = {"type": "step", "rank": 0, "time": 1.0, "epoch": 1, "step": step, "steps_total": 9, "lr": 1e-4}
    event |= {"samples": 4, "seconds": 1.0, "loss": 0.5, "smooth_loss": 0.25}
    folder.event_path(0).write_text(json.dumps(event) + "\n")
    folder.write_exit(status, rank=0)
    return folder


def test_recent_runs_are_those_beside_the_folder_and_those_remembered(tmp_path):
    done = make_run(tmp_path / "here" / "done", "finished")
    elsewhere = make_run(tmp_path / "there" / "stopped", "stopped", step=4)
    write_backup(elsewhere.backup_dir, 4)
    remembered = [str(folder) for folder in (done.path, elsewhere.path, tmp_path / "gone")]
    file = tmp_path / "mine.yaml"
    file.touch()
    recent = find_recent(str(tmp_path / "here" / "next"), remembered, [str(tmp_path / "gone.yaml"), str(file)])
    expected = {
        RecentRun(done.path, "finished just now, loss 0.2500", "Show"),
        RecentRun(elsewhere.path, "stopped at step 4, just now", "Resume"),
    }
    assert set(recent.runs) == expected
    assert recent.files == (str(file),)
    assert recent.gone == (str(tmp_path / "gone"),)


def test_a_recent_run_has_a_thumbnail_of_its_newest_sample(tmp_path):
    run = make_run(tmp_path / "cats", "finished")
    (row,) = find_recent(str(tmp_path / "next"), [], []).runs
    assert (row.sample, row.thumbnail) == (None, None)
    for name, size in (("step-00000100", (8, 8)), ("step-00000200", (640, 320)), ("generated", (4, 4))):
        (run.samples_dir / name).mkdir()
        Image.new("RGB", size).save(run.samples_dir / name / "000_a-cat.png")
    (row,) = find_recent(str(tmp_path / "next"), [], []).runs
    assert (row.sample.parent.name, row.thumbnail.size) == ("step-00000200", (128, 64))
    row.sample.write_bytes(b"half a fi")
    (row,) = find_recent(str(tmp_path / "next"), [], []).runs
    assert row.sample is not None
    assert row.thumbnail is None


def test_the_precision_and_size_of_a_base_model_are_read_from_its_header(tmp_path):
    file = tmp_path / "model.safetensors"
    entries = {"a": ("F16", 0, 4000), "b": ("F32", 4000, 4400)}
    header = {name: {"dtype": kind, "data_offsets": [at, end]} for name, (kind, at, end) in entries.items()}
    text = json.dumps({**header, "__metadata__": {"format": "pt"}}).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4_400))
    assert examine_base(str(file)) == ("A file of 4.54 KB in float16.", False)
    file.write_bytes(struct.pack("<Q", 5) + b"nojson")
    assert examine_base(str(file)) == ("A file of 14 B.", False)
    (tmp_path / "model_index.json").write_text('{"_class_name": "FluxPipeline"}')
    assert examine_base(str(tmp_path)) == ("A diffusers folder: FluxPipeline, 14 B.", False)
