"""The rows of the list of presets for a memory and number of GPUs."""

import pytest

from modules.config.presets import list_presets
from modules.config.TrainConfig import TrainConfig
from modules.machine.devices import Gpu
from modules.machine.memory_estimate import GIB
from modules.ui.models.DeviceModel import DeviceModel
from modules.ui.models.preset_rows import _row, file_rows, preset_rows, same_preset, suggested


def cells(name: str, memory: int | None = None, num_gpus: int = 1) -> tuple[str, ...]:
    return dict(preset_rows(memory, num_gpus))[f"preset:{name}"]


def gpus(*gibibytes: float | None) -> list[Gpu]:
    sizes = [None if size is None else int(size * GIB) for size in gibibytes]
    return [Gpu(index, "GPU", f"GPU-{index}", size, index) for index, size in enumerate(sizes)]


def test_a_preset_is_shown_with_its_estimate_its_step_and_its_rate():
    name, description, memory, step, rate = cells("sdxl-lora-16gb-x4", 16, 4)
    assert (name, step, rate) == ("sdxl-lora-16gb-x4", "8 images", "2e-4")
    assert "LoRA on Stable Diffusion XL" in description
    assert "12 GB" not in description  # the size of the preset itself
    assert memory.endswith(" GiB")
    assert float(memory.removesuffix(" GiB")) < 15


def test_only_presets_of_a_family_are_listed_where_that_is_wanted():
    names = [row for row, _ in preset_rows(None, 1, "sdxl")]
    assert "preset:sdxl-lora" in names
    assert not any("anima" in name or "sd15" in name for name in names)
    assert len(names) < len(preset_rows(None, 1))


def test_the_settings_preset_is_found_whatever_size_it_is_for():
    rows = preset_rows(None, 1, "sd15")
    assert same_preset(rows, "preset:sd15-lora-8gb-x2") == "preset:sd15-lora"
    assert same_preset(rows, "preset:sd15-lora") == "preset:sd15-lora"
    assert same_preset(rows, "preset:sdxl-lora-8gb") == "preset:sdxl-lora-8gb"
    assert same_preset(rows, "file:/mine.yaml") == "file:/mine.yaml"


def test_a_preset_for_one_gpu_is_shown_for_one_of_several():
    name, description, _, step, _ = cells("qwen_image-full-80gb", 80, 4)
    assert (name, step) == ("qwen_image-full-80gb", "4 images")
    assert description.endswith(", on a single GPU")


def test_of_a_family_of_unknown_size_no_estimate_is_shown(monkeypatch):
    monkeypatch.setattr("modules.machine.memory_estimate.load_architectures", dict)
    _row.cache_clear()
    assert cells("sdxl-lora-16gb", 16)[2] == "unknown"
    assert DeviceModel().memory_text(TrainConfig()) == "unknown for this model family"
    _row.cache_clear()


def test_what_does_not_fit_says_why_in_place_of_what_it_is_for():
    _, reason, memory, *_ = cells("sd3-full-8gb-x2", 8, 2)
    assert reason.startswith("The text encoders need")
    assert memory == "too little"


@pytest.mark.parametrize(("memory", "num_gpus"), [(None, 1), (8, 1), (24, 8)])
def test_every_preset_has_one_row(memory, num_gpus):
    rows = preset_rows(memory, num_gpus)
    assert len(rows) == len(list_presets())
    assert "preset:demo" in dict(rows)


def test_files_that_are_there_are_listed_by_name_and_path(tmp_path):
    path = tmp_path / "mine.yaml"
    path.touch()
    gone = [str(tmp_path / "gone.yaml"), "/" + "x" * 300, "a\0b", str(path / "below a file"), str(tmp_path)]
    [(name, cells)] = file_rows([*gone, str(path)])
    assert (name, cells[:2]) == (f"file:{path}", ("mine.yaml", str(path)))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), (None, 1)),
        ((23.99,), (24, 1)),
        ((11.6, 24), (12, 2)),
        ((22.5,) * 3, (16, 2)),
        ((80,) * 8, (80, 8)),
        ((180,), (80, 1)),
        ((4,), (None, 1)),
        ((None,) * 4, (None, 4)),
    ],
)
def test_this_machines_gpus_decide_what_is_shown_first(sizes, expected):
    assert suggested(gpus(*sizes)) == expected
