"""LECO's files mean here what they mean there, or a line says what differs: its examples, and those of the sliders."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from modules.config.other_programs import load_program
from modules.importers.import_files import import_files, is_foreign
from modules.importers.ImportResult import ImportResult

# The fields of both programs' config_util.py and prompt_util.py, and what their examples have besides.
FIELDS = {
    "pretrained_model": {"name_or_path", "v2", "v_pred", "clip_skip"},
    "network": {"type", "rank", "alpha", "training_method"},
    "train": {
        "precision", "noise_scheduler", "iterations", "lr", "optimizer", "optimizer_args", "lr_scheduler",
        "max_denoising_steps", "batch_size",
    },
    "save": {"name", "path", "per_steps", "precision"},
    "logging": {"use_wandb", "verbose"},
    "other": {"use_xformers"},
    "prompts[]": {
        "target", "positive", "unconditional", "neutral", "action", "guidance_scale", "resolution", "batch_size",
        "dynamic_resolution", "dynamic_crops", "guidance", "rank",
    },
}  # fmt: skip
# examples/config.yaml and examples/prompts.yaml of LECO
VAN_GOGH: dict[str, Any] = {
    "pretrained_model": {"name_or_path": "stabilityai/stable-diffusion-2-1", "v2": True, "v_pred": True},
    "network": {"type": "lierla", "rank": 4, "alpha": 1.0, "training_method": "full"},
    "train": {
        "precision": "bfloat16", "noise_scheduler": "ddim", "iterations": 500, "lr": "1e-4", "optimizer": "AdamW",
        "lr_scheduler": "constant", "max_denoising_steps": 50,
    },
    "save": {"name": "van_gogh", "path": "./output", "per_steps": 200, "precision": "bfloat16"},
    "logging": {"use_wandb": False, "verbose": False},
    "other": {"use_xformers": True},
}  # fmt: skip
ERASED = {"target": "van gogh", "positive": "van gogh", "unconditional": "", "neutral": "", "action": "erase",
    "guidance_scale": 1.0, "resolution": 512, "dynamic_resolution": False, "batch_size": 2}  # fmt: skip
CAT_EARS = {"target": "1girl", "positive": "1girl, cat ears", "unconditional": "", "neutral": "", "action": "enhance",
    "guidance_scale": 1.0, "resolution": 512, "batch_size": 2}  # fmt: skip
UNREAL = [{"target": target, "resolution": 512, "batch_size": 3} for target in ("realistic", "real life")]


def aged(who: str, **more: Any) -> dict[str, Any]:
    """An entry of the authors' prompts.yaml for age, or of one of those that GPT wrote for them."""
    return {"target": f"{who} person", "positive": f"{who} person, very old", "neutral": f"{who} person",
        "unconditional": f"{who} person, very young", "action": "enhance", **more}  # fmt: skip


def imported(folder: Path, prompts: object, changes: dict[str, Any] | None = None) -> ImportResult:
    """The import of a file of settings, with changes by path, that names its prompts as from LECO's own folder."""
    values = {name: dict(section) for name, section in VAN_GOGH.items()}
    for path, value in (changes or {}).items():
        section, _, name = path.rpartition(".")
        values.setdefault(section, {})[name] = value
    text = yaml.safe_dump({"prompts_file": "./trainscripts/textsliders/examples/prompts.yaml", **values})
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    (folder / "prompts.yaml").write_text(yaml.safe_dump(prompts), encoding="utf-8")
    return import_files([folder / "config.yaml"])


def why(result: ImportResult, path: str) -> str:
    return next((line.why for line in result.changed if line.path == path), "")


def left(result: ImportResult, name: str) -> str:
    return next((line.why for line in result.left if name in line.theirs), "")


def test_every_field_of_both_programs_has_a_row():
    fields = {f"{section}.{name}" for section, names in FIELDS.items() for name in names} | {"prompts_file"}
    assert fields == set(load_program("leco").settings)


def test_the_example_is_a_slider_with_its_settings(tmp_path):
    config = imported(tmp_path, [ERASED]).config()
    assert (config.method, config.family, config.model.base) == ("slider", "sd15", "stabilityai/stable-diffusion-2-1")
    assert (config.model.prediction_type, config.model.weight_dtype) == ("v_prediction", "bfloat16")
    assert (config.lora.rank, config.lora.alpha, config.lora.targets) == (4, 1.0, "linear_conv")
    assert (config.denoiser.include_layers, config.max_steps, config.batch_size) == ("*.attentions", 500, 2)
    assert (config.optimizer.name, config.optimizer.learning_rate, config.schedule.name) == ("adamw", 1e-4, "constant")
    assert (config.output.name, config.workspace_dir, config.output.every) == ("van_gogh", "./output", 200.0)
    assert (config.data.resolution, config.slider.source, config.concepts) == (512, "prompts", [])


@pytest.mark.parametrize(
    ("prompt", "slider", "is_changed"),
    [  # target, positive, negative, eta
        (ERASED, ("van gogh", "", "van gogh", 2.0), True),  # e("") - (e(vg) - e("")) = e(vg) + 2 (e("") - e(vg))
        (CAT_EARS, ("1girl", "1girl, cat ears", "1girl", 1.0), True),
        (UNREAL[0], ("realistic", "", "realistic", 2.0), True),
        (aged("old", guidance_scale=4), ("old person", "old person, very old", "old person, very young", 4.0), False),
        (aged("old", guidance_scale=-4), ("old person", "old person, very young", "old person, very old", 4.0), True),
        (aged("old") | {"action": "erase", "neutral": "a man"},
         ("old person", "old person, very young", "old person, very old", 1.0), True),
    ],
)  # fmt: skip
def test_prompts_move_the_prediction_to_where_they_did(prompt, slider, is_changed, tmp_path):
    result = imported(tmp_path, [prompt])
    taken = result.config().slider
    assert (taken.target, taken.positive, taken.negative, taken.eta) == slider
    assert bool(why(result, "slider.positive")) is is_changed


def test_prompts_that_only_differ_in_attributes_are_one_slider_that_keeps_them(tmp_path):
    result = imported(tmp_path, [aged("male  white", guidance=4, rank=4), aged("female", guidance=4, rank=4)])
    slider = result.config().slider
    assert (slider.target, slider.positive, slider.preserve) == ("person", "person, very old", "male white, female")
    assert why(result, "slider.preserve")
    assert "guidance_scale" in left(result, "guidance 4")
    assert sum("guidance 4" in line.theirs for line in result.left) == 1
    others = imported(tmp_path, [*UNREAL, aged("male")])
    assert (others.config().slider.preserve, others.config().slider.target) == ("", "realistic")
    assert left(others, "real life")


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        ({"network.type": "c3lier", "network.training_method": "noxattn"}, "denoiser.include_layers",
         "*.attn1, *.resnets, *.downsamplers, *.upsamplers"),
        ({"network.alpha": 0}, "lora.alpha", 4.0),
        ({"save.precision": "float32"}, "output.dtype", "bfloat16"),
        ({"train.lr_scheduler": "cosine_with_restarts"}, "schedule.restarts", 4),
        ({"train.lr_scheduler": "cosine"}, "schedule.final_share", 0.01),
        ({"train.optimizer": "lion"}, "optimizer.beta2", 0.99),
        ({"train.optimizer": "DAdaptAdam"}, "optimizer.other_name", "DAdaptAdam"),
        ({"train.optimizer_args": "weight_decay=0.1 betas=(0.8,0.9)"}, "optimizer.beta1", 0.8),
        ({"pretrained_model.name_or_path": "a/xl.safetensors", "pretrained_model.v_pred": False}, "family", "sdxl"),
        ({"logging.use_wandb": True}, "wandb.project", "LECO_van_gogh"),
    ],
)  # fmt: skip
def test_a_setting_is_taken(changes, path, value, tmp_path):
    result = imported(tmp_path, [ERASED], changes)
    assert result.values[path] == value
    result.config()


@pytest.mark.parametrize(
    "changes",
    [
        {"train.noise_scheduler": "euler_a"},
        {"train.max_denoising_steps": 30},
        {"train.lr_scheduler": "linear"},
        {"train.optimizer": "adagrad"},
        {"train.optimizer_args": "weight_decay"},
        {"train.batch_size": 2},
        {"train.a_setting_of_the_future": 1},
        {"network.training_method": "xlayer"},
        {"pretrained_model.clip_skip": 2},
        {"pretrained_model.name_or_path": "old.ckpt"},
        {"pretrained_model.name_or_path": "some-xl", "pretrained_model.v_pred": True},
    ],
)
def test_what_is_not_taken_has_a_line(changes, tmp_path):
    result = imported(tmp_path, [ERASED], changes)
    assert left(result, list(changes)[-1].rpartition(".")[2])
    result.config()


def test_a_prompts_file_comes_in_alone_and_behind_one_that_does_not_find_it(tmp_path):
    result = imported(tmp_path, "no prompts")
    assert left(result, "prompts_file")
    (tmp_path / "ears.yaml").write_text(yaml.safe_dump([CAT_EARS | {"dynamic_crops": True, "new": 1}]), "utf-8")
    alone = import_files([tmp_path / "ears.yaml"])
    assert alone.config().slider.positive == "1girl, cat ears"
    assert left(alone, "dynamic_crops")
    assert left(alone, "new")
    both = import_files([tmp_path / "config.yaml", tmp_path / "ears.yaml"]).config()
    assert (both.slider.target, both.output.name) == ("1girl", "van_gogh")
    assert is_foreign(tmp_path / "ears.yaml")


def test_empty_prompts_are_a_slider_from_pairs(tmp_path):
    empty = {"target": "", "positive": "", "unconditional": "", "neutral": "", "action": "enhance", "guidance_scale": 4}
    result = imported(tmp_path, [empty])
    assert result.values["slider.source"] == "pairs"
    assert "pair_folder" in why(result, "slider.source")
