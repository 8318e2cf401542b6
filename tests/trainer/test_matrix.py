"""Every method with every family: it trains, and the saved model behaves in diffusers as it did in training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from diffusers import DiffusionPipeline
from PIL import Image

from modules.config.model_index import MODULAR_INDEX, index_file, read_model_index
from modules.families.conditioning import expand_textual_inversion
from modules.families.registry import FAMILIES, adapt_denoisers, family_of
from modules.methods.registry import METHODS
from modules.session.RunFolder import is_word
from modules.trainer.sampling import ImageRequest
from modules.weights.embedding_files import add_embedding
from modules.weights.libraries import import_pipeline
from modules.weights.lora_files import load_lora
from modules.weights.processors import load_processors
from modules.weights.safe import load_tensors
from tests.support.short_training import our_picture, plain_picture
from tests.support.videos import write_video

WORD = "number"  # occurs in the default captions
REQUEST = ImageRequest("a photo of a cat, number 3", "the sky", seed=7, width=48, height=32, steps=2, guidance=3.0)
RUN = ("max_steps=5", "batch_size=2", "backup.at_end=false")
SETTINGS = {
    "lora": ("text_encoder.train=true", "lora.targets=linear"),
    "full": ("text_encoder.train=true", "optimizer.learning_rate=0.001"),
    "pivotal": (f"embeddings.0.placeholder={WORD}", "embeddings.0.initial_text=dog", "text_encoder.train=true"),
    "embedding": (f"embeddings.0.placeholder={WORD}", "embeddings.0.vectors=2", "embeddings.0.initial_text=dog"),
}


def load(folder: Path) -> DiffusionPipeline:
    # LongCat's pipeline wants to be told that it goes without a part that training never needs
    parts = read_model_index(folder)
    family = family_of(parts)
    lacking = {name: None for name in family.unused if parts.get(name) == [None, None]}
    kind = import_pipeline(family.pipeline) if index_file(folder).name == MODULAR_INDEX else DiffusionPipeline
    pipe = kind.from_pretrained(folder, **lacking, **load_processors(folder, parts))
    pipe.set_progress_bar_config(disable=True)
    adapt_denoisers(pipe)
    return pipe


def tensor_bytes(saved: Path) -> int:
    files = saved.rglob("*.safetensors") if saved.is_dir() else [saved]
    return sum(tensor.nbytes for path in files for tensor in load_tensors(path).values())


@pytest.mark.parametrize(("method", "family"), [(m, f) for m in METHODS for f in FAMILIES if m in FAMILIES[f].methods])
def test_five_steps_train_and_the_saved_files_make_the_same_picture(
    method, family, make_config, train, tiny_model, picture_folder, tmp_path
):
    folder = tiny_model(family)
    step = max(16, FAMILIES[family].align)
    request = replace(REQUEST, width=3 * step, height=2 * step)
    settings = (f"family={family}", f"model.base={folder}", f"method={method}", *SETTINGS.get(method, ()))
    settings += (f"data.bucket_step={step}",)
    if FAMILIES[family].needs_first_frame:
        frames = FAMILIES[family].frame_step + 1
        write_video(tmp_path / "videos" / "number.mp4", frames)
        settings += (f"concepts.0.path={tmp_path / 'videos'}", f"data.frames={frames}")
        Image.effect_noise((request.width, request.height), 80).convert("RGB").save(tmp_path / "input.png")
        request = replace(request, references=(str(tmp_path / "input.png"),))
    if FAMILIES[family].needs_last_frame:
        request = replace(request, references=2 * request.references, frames=frames)
    if FAMILIES[family].inpainting:
        request = replace(request, references=(str(tmp_path / "input.png"),), mask=str(tmp_path / "white.png"))
        Image.effect_noise((request.width, request.height), 80).convert("RGB").save(request.references[0])
        Image.new("L", (request.width, request.height), 255).save(request.mask)
    if FAMILIES[family].needs_references:
        folders = {name: picture_folder(name=name) for name in ("after", "before")}
        settings += (f"concepts.0.path={folders['after']}", f"concepts.0.reference_folder={folders['before']}")
        # of the shape of the image, for models that then see it in the same size
        request = replace(request, references=(str(folders["before"] / "002.png"),))
    trainer = train(make_config(*settings, *RUN))
    assert trainer.step == 5
    assert np.isfinite(trainer.callbacks.losses).all()
    saved, *others = trainer.callbacks.saved  # several files if each expert has a LoRA
    num_bytes = sum(tensor_bytes(path) for path in trainer.callbacks.saved)
    assert trainer.method.saved_bytes(trainer.prepared.base, trainer.config) == pytest.approx(num_bytes, rel=0.01)
    plain = load(saved if trainer.method.facts.trains_weights else folder)
    words = [file for file in (saved, *others) if is_word(file)] if trainer.method.facts.trains_words else []
    for file in words:
        assert add_embedding(plain, file) == WORD
    for file in (saved, *others) if trainer.method.facts.trains_adapters else ():
        if file not in words and not file.stem.endswith("_kohya"):
            load_lora(plain, file)
    with trainer.prepared.base.using(*trainer.prepared.base.component_names) as pipe:
        ours = our_picture(pipe, request)
    prompt = expand_textual_inversion(plain, [request.prompt])[0]
    theirs = plain_picture(plain, replace(request, prompt=prompt))
    assert np.abs(theirs - ours).max() <= 1e-5
    assert np.abs(plain_picture(load(folder), request) - ours).max() > 1e-4
