"""Methods with families: they train, and the saved model behaves in diffusers as it did in training.

Every family has a cell here for each of its methods. One that would show little new only runs with `-m proof`, see
`cells`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from diffusers import DiffusionPipeline
from PIL import Image

from modules.config.model_index import MODULAR_INDEX, index_file, read_model_index
from modules.families.conditioning import expand_textual_inversion
from modules.families.conditions import FirstFrame, Inpainting, Layers, References, SectionHistory, SourceClip
from modules.families.Family import Family
from modules.families.registry import FAMILIES, adapt_denoisers, family_of
from modules.methods.registry import METHODS
from modules.sampling.generation import ImageRequest
from modules.session.RunFolder import is_word
from modules.weights.embedding_files import add_embedding
from modules.weights.libraries import import_pipeline
from modules.weights.lora_files import load_lora
from modules.weights.processors import load_processors
from modules.weights.safe import load_tensors
from tests.support.alike_families import text
from tests.support.pictures import write_negatives
from tests.support.short_training import our_picture, plain_picture

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

WORD = "number"  # occurs in the default captions
REQUEST = ImageRequest("a photo of a cat, number 3", "the sky", seed=7, width=48, height=32, steps=2, guidance=3.0)
RUN = ("max_steps=5", "batch_size=2", "backup.at_end=false")
SETTINGS = {
    "lora": ("text_encoder.train=true", "lora.targets=linear"),
    "slider": ("slider.positive=old", "slider.negative=young"),
    "full": ("text_encoder.train=true", "optimizer.learning_rate=0.001"),
    "pivotal": (f"embeddings.0.placeholder={WORD}", "embeddings.0.initial_text=dog", "text_encoder.train=true"),
    "embedding": (f"embeddings.0.placeholder={WORD}", "embeddings.0.vectors=2", "embeddings.0.initial_text=dog"),
}


def cells() -> Iterator[ParameterSet]:
    """(method, family) of each run that shows something new; all others only run with `-m proof`.

    Adapters are trained once for each kind of latents with each set of conditions, words once for each way to encode
    texts, both together once, and VAEs once for each class. Full fine-tunes are of families without a LoRA, whose cell
    compares samples, too. test_conformance.py compares what is saved of the others, gradients and adapters of each
    class of denoisers, and what families differ in; test_presets.py trains some by their presets.
    """
    seen: list[tuple[str, Any]] = []
    for method in METHODS:
        for name, family in FAMILIES.items():
            of_clips = family.fact(FirstFrame, "needed") or family.fact(SourceClip, "needed")
            trains_clips = of_clips or family.has(SectionHistory)
            needs_clips = METHODS[method].facts.lists_pairs and trains_clips  # and pairs are images
            if method in family.methods and not needs_clips:
                part = (method, read_of(method, family))
                is_held = part in seen or (method == "full" and "lora" in family.methods)
                seen.append(part)
                yield pytest.param(method, name, marks=[pytest.mark.proof(family=name)] if is_held else [])


def read_of(method: str, family: Family) -> Any:
    """What a training by this method reads of a family: of those alike in it, the first stands for all."""
    facts = METHODS[method].facts
    if method == "vae":
        return family.published.vae.class_name, family.fact(References, "needed")
    if facts.compares:  # the LoRA of the family, with another loss
        return None
    if facts.trains_words:
        return None if facts.trains_adapters else text(family)
    return latents(family) if facts.trains_adapters else family.name


def latents(family: Family) -> Any:
    """What is drawn, noised and given in a step, whatever denoiser sees it, and however it is packed for that."""
    is_video = bool(family.frame_step)
    return family.conditions, family.objective, is_video, len(family.denoisers)


def load(folder: Path) -> DiffusionPipeline:
    # LongCat's pipeline wants to be told that it goes without a part that training never needs
    parts = read_model_index(folder)
    family = family_of(parts)
    lacking = {name: None for name in family.unused if parts.get(name) == [None, None]}
    is_ours = index_file(folder).name == MODULAR_INDEX or family.sampling_package  # without which diffusers makes none
    kind = import_pipeline(family.pipeline) if is_ours else DiffusionPipeline
    pipe = kind.from_pretrained(folder, **lacking, **load_processors(folder, parts))
    pipe.set_progress_bar_config(disable=True)
    adapt_denoisers(pipe)
    return pipe


def tensor_bytes(saved: Path) -> int:
    files = saved.rglob("*.safetensors") if saved.is_dir() else [saved]
    return sum(tensor.nbytes for path in files for tensor in load_tensors(path).values())


@pytest.fixture(scope="module")
def untrained() -> dict[str, np.ndarray]:
    """The plain picture of each family's model, which is the same for every method."""
    return {}


def write_noise(path: str | Path, size: tuple[int, int]) -> None:
    """A grey image, the same in every run."""
    Image.fromarray(np.random.default_rng(4).integers(0, 255, size[::-1], np.uint8)).convert("RGB").save(path)


@pytest.mark.parametrize(("method", "family"), list(cells()))
def test_a_short_run_trains_and_the_saved_files_make_the_same_picture(
    method, family, make_config, train, tiny_model, family_data, untrained, tmp_path
):
    folder = tiny_model(family)
    step = max(16, FAMILIES[family].align)
    request = replace(REQUEST, width=3 * step, height=2 * step)
    settings = (f"family={family}", f"model.base={folder}", f"method={method}", *SETTINGS.get(method, ()))
    settings += (f"data.bucket_step={step}",)
    data = family_data(family)
    if METHODS[method].facts.lists_pairs:
        chosen = data.get("concepts.0.path") or make_config().concepts[0].path
        data["concepts.0.pair_folder"] = write_negatives(tmp_path / "rejected", Path(chosen))
    settings += tuple(f"{path}={value}" for path, value in data.items())
    if FAMILIES[family].fact(FirstFrame, "needed") or FAMILIES[family].has(Inpainting):
        write_noise(tmp_path / "input.png", (request.width, request.height))
        request = replace(request, references=(str(tmp_path / "input.png"),))
    if FAMILIES[family].fact(FirstFrame, "last") == "needed":
        request = replace(request, references=2 * request.references, frames=data["data.frames"])
    if FAMILIES[family].fact(FirstFrame, "clean"):  # which is the same, whatever has been trained
        request = replace(request, frames=data["data.frames"])
    if FAMILIES[family].has(SectionHistory):
        request = replace(request, frames=data["data.frames"])
    if FAMILIES[family].has(Inpainting):
        request = replace(request, mask=str(tmp_path / "white.png"))
        Image.new("L", (request.width, request.height), 255).save(request.mask)
    if FAMILIES[family].fact(SourceClip, "needed"):
        write_noise(tmp_path / "input.png", (request.width, request.height))
        request = replace(request, references=(str(tmp_path / "input.png"),))
    if FAMILIES[family].has(Layers):
        request = replace(request, references=(str(data["concepts.0.path"] / "002.png"),), layers=2)
    elif FAMILIES[family].fact(References, "needed"):
        # of the shape of the image, for models that then see it in the same size
        request = replace(request, references=(str(data["concepts.0.reference_folder"] / "002.png"),))
    trainer = train(make_config(*settings, *RUN))
    assert trainer.step == 5
    assert np.isfinite(trainer.callbacks.losses).all()
    saved, *others = trainer.callbacks.saved  # several files if each expert has a LoRA
    num_bytes = sum(tensor_bytes(path) for path in trainer.callbacks.saved)
    assert trainer.method.saved_bytes(trainer.prepared.base, trainer.config) == pytest.approx(num_bytes, rel=0.01)
    facts = trainer.method.facts
    if family not in untrained or not facts.trains_weights:
        plain = load(folder)
    if family not in untrained:
        untrained[family] = plain_picture(plain, request)
    if facts.trains_weights:
        plain = load(saved)
    words = [file for file in (saved, *others) if is_word(file)] if facts.trains_words else []
    for file in words:
        assert add_embedding(plain, file) == WORD
    for file in (saved, *others) if facts.trains_adapters else ():
        if file not in words and not file.stem.endswith("_kohya"):
            load_lora(plain, file)
    with trainer.prepared.base.using(*trainer.prepared.base.component_names) as pipe:
        ours = our_picture(pipe, request)
    prompt = expand_textual_inversion(plain, [request.prompt])[0]
    theirs = plain_picture(plain, replace(request, prompt=prompt))
    assert np.abs(theirs - ours).max() <= (2e-5 if FAMILIES[family].has(Layers) else 1e-5)  # of one layer of several
    assert np.abs(untrained[family] - ours).max() > 1e-4
