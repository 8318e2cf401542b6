"""Whatever the declarations of the settings allow, a run takes its first step or is refused in sentences."""

import random
import shutil

import pytest

from modules.config.describe import walk_settings
from modules.config.errors import UserError
from modules.config.files import config_from_values
from modules.families.registry import FAMILIES
from tests.support.drawn_settings import drawn_values
from tests.support.mutations import bounded, check_text

SEEDS = range(20)
# Not drawn: where files are, the work of a step and how often other things are done, several ranks, what compiles, and
# what stays beyond the run, such as threads of TensorBoard.
FIXED_GROUPS = ("multi_gpu", "sampling", "backup", "general")
FIXED = (
    "family", "method", "model.base", "model.compile", "concepts[].path", "concepts[].enabled", "epochs", "max_steps",
    "batch_size", "batch_size_mode", "gradient_accumulation_steps", "concepts[].repeats", "concepts[].resolution",
    "concepts[].resolutions", "data.resolution", "data.resolutions", "data.width", "data.height", "data.frames",
    "data.bucket_step", "data.max_side", "data.inpainting_variants", "data.augmentation_variants",
    "data.caption_variants", "lora.rank", "lora.conv_rank", "embeddings[].vectors", "output.fallback_dir",
    "output.wait_minutes",
)  # fmt: skip


@pytest.fixture
def draw(tiny_model, family_data, picture_folder, tmp_path):
    folder = picture_folder()
    paths = ("", "", str(folder), str(folder / "000.png"), str(tmp_path / "missing"))

    def values_of(name):
        family, data = FAMILIES[name], {path: str(value) for path, value in family_data(name).items()}
        if "data.frames" in data:
            data["data.frames"] = int(data["data.frames"])
        return {
            "workspace_dir": str(tmp_path / "run"),
            "cache_dir": str(tmp_path / "cache"),
            "family": name,
            "model.base": str(tiny_model(name)),
            "concepts.0.path": str(folder),
            "data.resolution": 32,
            "data.bucket_step": max(16, family.align),
            "embeddings.0.placeholder": "number",
            "max_steps": 1,
            "tensorboard": False,
            **data,
        }

    def configs(name, seeds):
        fixed = [info.path for info in walk_settings() if info.group in FIXED_GROUPS or info.path in FIXED]
        values, methods = values_of(name), FAMILIES[name].methods
        for seed in seeds:
            rng = random.Random(f"{name} {seed}")
            drawn = drawn_values({**values, "method": rng.choice(methods)}, rng, fixed, paths)
            yield seed, drawn
            shutil.rmtree(tmp_path / "run", ignore_errors=True)

    return configs


@pytest.mark.proof
@pytest.mark.parametrize("name", FAMILIES)
def test_drawn_settings_take_a_step_or_are_refused_in_sentences(name, draw, train):
    for seed, values in draw(name, SEEDS):
        with bounded(seed):
            try:
                train(config_from_values(values))
            except UserError as error:
                check_text(str(error))
