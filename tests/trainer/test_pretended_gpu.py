"""Whole runs on a GPU that is not there: nothing is left on the CPU, no dtypes clash, and no step waits for the GPU.

One run of each kind of family and method: caching of latents and text, steps, EMA and samples. tests/support/
pretended_gpu.py says what it finds; the mistakes below show that it does.
"""

from __future__ import annotations

import math
import os

import pytest

from modules.families.registry import FAMILIES
from tests.support import pretended_gpu_runs
from tests.support.RankPool import RankPool
from tests.support.videos import write_video

OFFLOADED = "model.activation_offloading=true"
MIXED = ("model.mixed_precision=bf16", "model.weight_dtype=bfloat16", "model.gradient_checkpointing=true")
SAMPLE = "[{prompt: a photo of a cat, steps: 2}]"
RUN = ("max_steps=2", "batch_size=2", "backup.at_end=false", "ema.enabled=true", "sampling.at_end=true")
DIFFUSERS = "diffusers/models/transformers/transformer_"

# (family, its kind, settings)
RUNS = [
    ("sd15", "U-Net", MIXED),
    ("sd15", "float32, text encoder", ("text_encoder.train=true", "lora.targets=linear_conv")),
    ("sd15", "full, rounded by chance", ("method=full", *MIXED, "optimizer.stochastic_rounding=true")),
    ("sd15", "VAE", ("method=vae", "model.mixed_precision=bf16")),
    ("sd15", "embedding", ("method=embedding", "embeddings.0.placeholder=number", "embeddings.0.initial_text=dog")),
    ("sdxl", "sizes, fp16", ("model.mixed_precision=fp16", "lora.adapter=lokr")),
    ("flux1", "packed, guidance, int8", (*MIXED, OFFLOADED, "model.denoiser_quantization=int8", "tensorboard=true")),
    ("zimage", "texts of unequal lengths", MIXED),
    ("sana", "text mask", MIXED),
    ("hidream", "mixture of experts", MIXED),
    ("wan22_a14b", "two experts, videos", MIXED),
    ("wan21_flf2v", "frames that are given", MIXED),
    ("qwen_image_layered", "layers, a reference", MIXED),
    ("hunyuan_dit", "full, no adapters", ("method=full", *MIXED, "optimizer.stochastic_rounding=true")),
]
# A library's own code in the step; ours must not be here, but for the experts of HiDream, whose sizes depend on values.
KNOWN_WAITS = {
    "zimage": {f"{DIFFUSERS}z_image.py"},
    "qwen_image_layered": {f"{DIFFUSERS}qwenimage.py"},
    "hidream": {f"{DIFFUSERS}hidream_image.py", "modules/families/hidream.py"},
}
OF_PIPELINES = "diffusers/pipelines/"  # encode_prompt, where text encoders train: it copies the tokens


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    pool = RankPool(1, tmp_path_factory.mktemp("pretended_gpu"))
    yield pool
    pool.close()


@pytest.fixture
def settings(make_config, config_file, tiny_model, layer_folder, tmp_path):
    def make(family: str, *overrides: str) -> str:
        side = max(32, 2 * FAMILIES[family].align)
        sizes = (f"data.resolution={side}", f"data.bucket_step={side // 2}", f"sampling.samples={SAMPLE}")
        model = (f"family={family}", f"model.base={tiny_model(family)}")
        if FAMILIES[family].needs_first_frame:
            write_video(tmp_path / "videos" / "number.mp4", 10)
            (tmp_path / "videos" / "number.txt").write_text("number 3")
            sizes += (f"concepts.0.path={tmp_path / 'videos'}", "data.frames=5", "data.clips=chunks")
            sizes += ("sampling.samples=[{steps: 2}]",)
        config = make_config(*model, *sizes, *RUN, *overrides)
        if FAMILIES[family].layered:
            config.concepts[0].layer_folder = str(layer_folder(config.concepts[0].path))
            config.sampling.samples[0].prompt = ""  # so that it decomposes an image of the dataset
        return config_file(config)

    return make


@pytest.mark.parametrize(("family", "kind", "overrides"), RUNS, ids=[f"{family}: {kind}" for family, kind, _ in RUNS])
def test_a_run_uses_the_gpu_as_it_should(family, kind, overrides, settings, gpu):
    (run,) = gpu.run(pretended_gpu_runs.run, config=settings(family, *overrides))
    assert len(run["losses"]) == 2
    assert all(math.isfinite(loss) for loss in run["losses"])
    assert run["samples"] == 1
    assert not run["warnings"]
    waits = {file for file in run["waits"] if not file.startswith(OF_PIPELINES)}
    assert waits <= KNOWN_WAITS.get(family, set())


def test_it_computes_what_the_cpu_does(settings, gpu, tmp_path):
    config = settings("sd15", *MIXED[2:], OFFLOADED, "validation.every=1", "loss.masked_training=true")
    (there,) = gpu.run(pretended_gpu_runs.run, config=config)
    os.rename(tmp_path / "run", tmp_path / "there")
    (here,) = gpu.run(pretended_gpu_runs.run, config=config, on_cpu=True)
    assert there["losses"] == here["losses"]


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("CPU in the step", "Left on the CPU: torch.float32[2]"),
        ("CPU in the EMA", "Left on the CPU"),
        ("CPU in caching", "modules/families/latents.py:"),
        ("CPU in sampling", "Left on the CPU"),
        ("dtype", "same dtype"),
        ("item", "reads a value"),
        ("cpu", "a copy to the CPU"),
        ("bool", "reads a value"),
        ("print", "a copy to the CPU"),
        ("mask", "an index by a mask"),
        ("blocking copy", "without non_blocking"),
        ("event of the step", "an event of this very step"),
    ],
)
def test_a_mistake_is_found_with_its_line(mistake, message, settings, gpu):
    (run,) = gpu.run(pretended_gpu_runs.run, config=settings("sd15"), mistake=mistake)
    assert message in run["error"]
    assert ", at modules/" in run["error"] or ", at tests/support/pretended_gpu_runs.py:" in run["error"]


def test_what_is_read_before_its_event_is_not_there_yet(settings, gpu):
    (run,) = gpu.run(pretended_gpu_runs.run, config=settings("sd15"), mistake="no event")
    assert "NaN" in run["error"]


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("activations waited for", "a copy to the CPU"),
        ("activations copied at once", "does not wait for what has been launched before"),
        ("activations freed too soon", "not finite"),
        ("activations read too soon", "not finite"),
    ],
)
def test_a_mistake_with_offloaded_activations_is_found(mistake, message, settings, gpu):
    (run,) = gpu.run(pretended_gpu_runs.run, config=settings("sd15", *MIXED, OFFLOADED), mistake=mistake)
    assert message in " ".join([run["error"], *run["warnings"]])
