"""Whole runs on a GPU that is not there: nothing is left on the CPU, no dtypes clash, and no step waits for the GPU.

One run of each kind of family and method, and with `-m proof` of every family: caching of latents and text, steps, EMA
and samples. tests/support/pretended_gpu.py says what it finds; the mistakes below show that it does, most of them with
`-m proof`, as they only need to be found again when it changes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from modules.config.files import load_config
from modules.config.optimizers import OPTIMIZERS
from modules.families.conditions import FirstFrame, Inpainting, References, SourceClip
from modules.families.registry import FAMILIES
from modules.weights.safe import load_tensors
from tests.support import pretended_annotators, pretended_gpu_runs
from tests.support.gguf_file import write_gguf
from tests.support.RankPool import RankPool

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

OFFLOADED = "model.activation_offloading=true"
MIXED = ("model.mixed_precision=bf16", "model.weight_dtype=bfloat16", "model.gradient_checkpointing=true")
RUN = (
    "max_steps=2",
    "batch_size=2",
    "concepts.0.repeats=2",
    "backup.at_end=false",
    "ema.enabled=true",
    "sampling.at_end=true",
)
ROUNDED = ("optimizer.stochastic_rounding=true",)
FUSED = ("optimizer.fused_backward=true", "optimizer.max_grad_norm=0")
IN_RAM = ("optimizer.state_in_ram=true", "max_steps=4")  # the first three make the state and room for it
SWAPPED = ("model.blocks_to_swap=4",)
NF4 = ("model.denoiser_quantization=nf4",) if find_spec("bitsandbytes") else ()
VALIDATED = ("data.validation_share=0.3", "validation.every=1", "validation.unit=steps", "validation.timesteps=1")
LOSSES = (
    "loss.mse=0.5",
    "loss.mae=0.25",
    "loss.huber=0.25",
    "loss.huber_schedule=snr",
    "loss.weighting=min_snr_gamma",
    "loss.masked_training=true",
    "loss.output_preservation=true",
    "loss.blank_preservation=true",
    "concepts.0.trigger_word=number",
    "concepts.0.class_word=count",
    "diffusion.timesteps=logit_normal",
    "diffusion.offset_noise=0.1",
    "diffusion.offset_noise_random=true",
    "diffusion.input_perturbation=0.1",
    "data.caption_dropout=0.1",
    *VALIDATED,
    "model.prediction_type=v_prediction",
    "model.zero_terminal_snr=true",
    "ema.update_every=2",
)
ADAPTERS = (
    "lora.dropout=0.1",
    "lora.rank_dropout=0.1",
    "lora.module_dropout=0.1",
    "lora.train_norms=true",
    "lora.max_norm=1",
    "output.format=single_file",
)
PRIOR = ("loss.prior_by_frozen_model=true", "concepts.1.path={pictures}", "concepts.1.regularisation=true")
NOISE = (*PRIOR, "diffusion.offset_noise=0.02", "diffusion.offset_noise_by_timestep=true")
GGUF_SOURCE = "transformer/diffusion_pytorch_model.safetensors"
DIFFUSERS = "diffusers/models/transformers/transformer_"

# (family, its kind, settings)
RUNS = [
    ("sd15", "U-Net, all that has part in losses and LoRA", (*MIXED, *LOSSES, *ADAPTERS)),
    ("sd15", "float32, text encoder, another noise", ("text_encoder.train=true", "lora.adapter=oft", *NOISE)),
    ("sd15", "full, rounded by chance, state in RAM", ("method=full", *MIXED, *ROUNDED, *IN_RAM)),
    ("sd15", "VAE", ("method=vae", "model.mixed_precision=bf16")),
    ("sd15", "embedding", ("method=embedding", "embeddings.0.placeholder=number", "embeddings.0.initial_text=dog")),
    ("sdxl", "sizes, fp16", ("model.mixed_precision=fp16", "lora.adapter=lokr")),
    ("flux1", "packed, guidance, int8", (*MIXED, OFFLOADED, *SWAPPED, "model.denoiser_quantization=int8")),
    ("flux1", "a GGUF file, tensorboard", (*MIXED, *SWAPPED, "model.denoiser={gguf}", "tensorboard=true")),
    ("zimage", "texts of unequal lengths, nf4", (*MIXED, *NF4)),
    ("sana", "text mask, nested ranks", (*MIXED, "lora.nested_unit=2")),
    ("hidream", "mixture of experts", MIXED),
    ("wan22_a14b", "two experts, videos", MIXED),
    ("wan21_flf2v", "frames that are given", MIXED),
    ("qwen_image_layered", "layers, a reference", MIXED),
    ("hunyuan_dit", "full, fused", ("method=full", *MIXED, *ROUNDED, *FUSED)),
]
# A library's own code in the step; ours must not be here, but for the experts of HiDream, whose sizes depend on values.
KNOWN_WAITS = {
    "zimage": (f"{DIFFUSERS}z_image.py",),
    "qwen_image_layered": (f"{DIFFUSERS}qwenimage.py",),
    "hidream": (f"{DIFFUSERS}hidream_image.py", "modules/families/expert_routing.py"),
}
# Without a kernel that skips a step by itself, the loop reads whether the gradient is finite.
FUSED_KERNELS = ("adamw", "sgd")
WAIT_IN_TORCH = {"adafactor": ("step",)}  # optimizer -> functions of ours that call it
OF_OPTIMIZERS = {"adamw_8bit": ("bitsandbytes/",), "lion_8bit": ("bitsandbytes/",), "prodigy": ("prodigyopt/",)}
OF_DENOISERS = "diffusers/models/"
OF_PIPELINES = "diffusers/pipelines/"  # encode_prompt, where text encoders train: it copies the tokens


def runs() -> Iterator[ParameterSet]:
    """(family, settings, files that may wait) of each run; with `-m proof`, one of every family that has none above."""
    for name, kind, overrides in RUNS:
        yield pytest.param(name, overrides, KNOWN_WAITS.get(name, ()), id=f"{name}: {kind}")
    for name in sorted(FAMILIES.keys() - {name for name, *_ in RUNS}):
        yield pytest.param(name, MIXED, (OF_DENOISERS,), id=name, marks=pytest.mark.proof)


def given_images(name: str) -> bool:
    """Whether the samples of a family start from an image."""
    family = FAMILIES[name]
    starts = family.has(Inpainting) or family.fact(SourceClip, "needed")
    return bool(family.fact(FirstFrame, "needed") or family.fact(References, "needed") or starts)


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    pool = RankPool(1, tmp_path_factory.mktemp("pretended_gpu"))
    yield pool
    pool.close()


@pytest.fixture
def settings(make_config, config_file, tiny_model, family_data, tmp_path):
    """A function that writes the settings of a run, and what they need: {gguf} in them is the model in a GGUF file."""

    def make(family: str, *overrides: str) -> str:
        align = FAMILIES[family].align
        side = max(32, 2 * align)
        sizes = (f"data.resolution={side}", f"data.bucket_step={max(align, side // 4)}")
        model = (f"family={family}", f"model.base={tiny_model(family)}")
        data = [f"{path}={value}" for path, value in family_data(family).items()]
        # Without a prompt, a sample takes caption and images of the dataset.
        sample = f"sampling.samples=[{{prompt: '{'' if given_images(family) else 'a photo of a cat'}', steps: 2}}]"
        if any("{gguf}" in each for each in overrides):
            write_gguf(tmp_path / "model.gguf", load_tensors(tiny_model(family) / GGUF_SOURCE), "Q4_0")
        filled = [each.format(gguf=tmp_path / "model.gguf", pictures=tmp_path / "pictures") for each in overrides]
        config = make_config(*model, *sizes, *data, sample, *RUN, *filled)
        if config.loss.masked_training:
            for picture in list(Path(config.concepts[0].path).glob("???.png")):
                with Image.open(picture) as image:
                    mask = Image.linear_gradient("L").resize(image.size)
                mask.save(picture.with_name(f"{picture.stem}-mask.png"))
        return config_file(config)

    return make


@pytest.mark.parametrize(("family", "overrides", "known_waits"), list(runs()))
def test_a_run_uses_the_gpu_as_it_should(family, overrides, known_waits, settings, gpu):
    config = settings(family, *overrides)
    (run,) = gpu.run(pretended_gpu_runs.run, config=config)
    assert len(run["losses"]) == load_config(config).max_steps
    assert all(math.isfinite(loss) for loss in run["losses"])
    assert run["samples"] == 1
    assert not run["warnings"]
    assert not run["lost_copies"]
    assert not [file for file in run["waits"] if not file.startswith((OF_PIPELINES, *known_waits))]
    moves = {OFFLOADED, *SWAPPED, *IN_RAM} & {*overrides}
    assert bool(run["copies"]) == bool(moves)


def test_a_run_that_goes_on_uses_the_gpu_as_it_should(settings, gpu):
    gpu.run(pretended_gpu_runs.run, config=settings("sd15", "backup.at_end=true"))
    (run,) = gpu.run(pretended_gpu_runs.run, config=settings("sd15", "max_steps=4"), resumes=True)
    assert len(run["losses"]) == 2
    assert all(math.isfinite(loss) for loss in run["losses"])
    assert not run["waits"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_waits_no_more_than_is_known_and_goes_on_exactly(name, gpu):
    if package := OPTIMIZERS[name].package:
        pytest.importorskip(package.replace("-", "_"), reason="an optional package")
    may_wait = () if name in FUSED_KERNELS else ("_apply_gradients", *WAIT_IN_TORCH.get(name, ()))
    (run,) = gpu.run(pretended_gpu_runs.optimize, name=name, may_wait=may_wait)
    assert run["resumed"] == run["straight"]
    assert all(math.isfinite(loss) for loss in run["straight"])
    assert not [file for file in run["waits"] if not file.startswith(("modules/", *OF_OPTIMIZERS.get(name, ())))]


def test_captioners_and_maskers_leave_nothing_on_the_cpu_and_mix_no_dtypes(gpu, tmp_path):
    (found,) = gpu.run(pretended_annotators.annotate, folder=str(tmp_path))
    masks = {name: tuple(found.pop(name)) for name in ("clipseg", "sam", "sam2")}
    assert set(masks.values()) == {(96, 64)}
    assert [len(texts) for texts in found.values()] == [2, 2, 2, 2]


def test_it_computes_what_the_cpu_does(settings, gpu, tmp_path):
    config = settings("sd15", *MIXED[2:], OFFLOADED, *VALIDATED, "loss.masked_training=true")
    (there,) = gpu.run(pretended_gpu_runs.run, config=config)
    os.rename(tmp_path / "run", tmp_path / "there")
    (here,) = gpu.run(pretended_gpu_runs.run, config=config, on_cpu=True)
    # The wrapper takes operations apart, and other kernels compute the parts: float32 rounds them differently.
    assert there["losses"] == pytest.approx(here["losses"], rel=1e-5)
    assert there["validations"] == pytest.approx(here["validations"], rel=1e-5)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("CPU in the step", "Left on the CPU: torch.float32[2]"),
        pytest.param("CPU in the EMA", "Left on the CPU", marks=pytest.mark.proof),
        pytest.param("CPU in caching", "modules/families/latents.py:", marks=pytest.mark.proof),
        pytest.param("CPU in sampling", "Left on the CPU", marks=pytest.mark.proof),
        ("dtype", "same dtype"),
        ("item", "reads a value"),
        pytest.param("cpu", "a copy to the CPU", marks=pytest.mark.proof),
        pytest.param("bool", "reads a value", marks=pytest.mark.proof),
        pytest.param("print", "a copy to the CPU", marks=pytest.mark.proof),
        pytest.param("mask", "an index by a mask", marks=pytest.mark.proof),
        pytest.param("blocking copy", "without non_blocking", marks=pytest.mark.proof),
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
        pytest.param("activations waited for", "a copy to the CPU", marks=pytest.mark.proof),
        pytest.param(
            "activations copied at once", "does not wait for what has been launched before", marks=pytest.mark.proof
        ),
        pytest.param("activations freed too soon", "not finite", marks=pytest.mark.proof),
        ("activations read too soon", "not finite"),
    ],
)
def test_a_mistake_with_offloaded_activations_is_found(mistake, message, settings, gpu):
    (run,) = gpu.run(pretended_gpu_runs.run, config=settings("sd15", *MIXED, OFFLOADED), mistake=mistake)
    assert message in " ".join([run["error"], *run["warnings"]])
