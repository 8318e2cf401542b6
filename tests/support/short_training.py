"""A short training on fixed random latents, and an image of what it gives: by our sampler and by plain diffusers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
from PIL import Image

from modules.data.Batch import Batch
from modules.data.conditions.SampleLayers import SampleLayers
from modules.families.conditions import Layers, References, SourceClip
from modules.families.registry import family_of_pipeline
from modules.methods.registry import METHODS
from modules.sampling.generation import ImageRequest, call_attributes, generate_images, images_in
from modules.weights.lora_layers import ADAPTER_METADATA
from modules.weights.safe import METADATA, load_tensors, read_header

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline
    from torch import Tensor

    from modules.config.TrainConfig import TrainConfig
    from modules.weights.BaseModel import BaseModel

PROMPTS = ("a photo of a cat", "the dog")
REQUEST = ImageRequest(PROMPTS[0], "the sky", seed=11, width=48, height=32, steps=3, guidance=3.0)


def a_batch(prompts: Sequence[str] = PROMPTS) -> Batch:
    generator = torch.Generator().manual_seed(0)
    latents, noise = (torch.randn(2, 4, 16, 24, generator=generator) for _ in range(2))
    sizes = torch.tensor([[32, 48, 0, 0, 32, 48]] * 2)
    u = torch.tensor([0.2, 0.7])
    return Batch(torch.ones(2), 2, noise=noise, u=u, prompts=list(prompts), latents=latents, given={"sizes": sizes})


def train(base: BaseModel, config: TrainConfig, steps: int = 3, prompts: Sequence[str] = PROMPTS) -> list[Tensor]:
    """Trains what the method of `config` has attached; returns the losses."""
    loss = METHODS[config.method].loss(base, config)
    optimizer = torch.optim.AdamW([p for p in loss.parameters() if p.requires_grad], lr=0.02)
    losses = []
    for _ in range(steps):
        loss_sum, count, _ = loss(a_batch(prompts))
        (loss_sum / count).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss_sum.detach())
    return losses


def our_picture(pipe: DiffusionPipeline, request: ImageRequest = REQUEST) -> np.ndarray:
    """float32[H, W, 3] in [0, 1] of our own sampler, seen just before it is rounded to a PIL image.

    Of layers float32[H, W, 4], the lowest one; of a video the last frame.
    """
    seen, shown = [], -1 if request.frames > 1 else 0
    # the one of videos calls that of pictures for each of them
    processor = getattr(pipe, "video_processor", None) or pipe.image_processor
    postprocess = processor.postprocess

    def spy(image, output_type, **options):
        seen.append(postprocess(image, output_type="np", **options)[shown])
        return postprocess(image, output_type=output_type, **options)

    processor.postprocess = spy
    try:
        ((made, picture),) = generate_images(pipe, [request], 4)
    finally:
        processor.postprocess = postprocess
    assert made is request
    images = picture.images if isinstance(picture, SampleLayers) else picture
    one = images[shown] if isinstance(images, list) else images  # of layers, or of a video
    assert np.array_equal(np.asarray(one), (seen[0] * 255).round().astype(np.uint8))
    return seen[0]


def load_plainly(pipe: DiffusionPipeline, file: Path) -> None:
    """Loads a LoRA file that Chorus has written by diffusers alone; of an expert's, as its header says, into it."""
    if not hasattr(pipe, "load_lora_weights"):
        load_into_model(pipe.transformer, file)
        return
    expert = read_header(file)[METADATA].get("denoiser")
    pipe.load_lora_weights(file.parent, weight_name=file.name, **({f"load_into_{expert}": True} if expert else {}))


def load_into_model(model: Any, file: Path) -> None:
    """By what diffusers' model or, for one without such methods, PEFT offers to everybody, as docs/formats.md says."""
    if hasattr(model, "load_lora_adapter"):
        model.load_lora_adapter(file.parent, weight_name=file.name)
        return
    own = "transformer."
    settings = json.loads(read_header(file)[METADATA][ADAPTER_METADATA])
    inject_adapter_in_model(LoraConfig(**{name.removeprefix(own): value for name, value in settings.items()}), model)
    set_peft_model_state_dict(model, {name.removeprefix(own): value for name, value in load_tensors(file).items()})


def plain_picture(pipe: DiffusionPipeline, request: ImageRequest = REQUEST) -> np.ndarray:
    """float32[H, W, 3] of a plain call, as anybody would make it who wants an image of this size.

    Of a video the last frame.
    """
    family = family_of_pipeline(pipe)
    arguments = {"negative_prompt": request.negative_prompt, "max_area": request.width * request.height}
    arguments[family.frames_argument if family else "num_frames"] = request.frames
    if request.references:
        arguments["image"] = Image.open(request.references[0])
        arguments["last_image"] = Image.open(request.references[-1]) if len(request.references) > 1 else None
    if family and family.fact(References, "is_control"):
        arguments["control_image"] = arguments["image"]
    if family and family.fact(SourceClip, "needed"):
        arguments[family.fact(SourceClip, "argument")] = [arguments["image"]]
    if family and family.fact(Layers, "options"):
        size = request.width, request.height
        arguments["image"] = arguments["image"].convert("RGBA").resize(size, Image.Resampling.LANCZOS)
        arguments |= family.fact(Layers, "options")(request.layers, request.width, request.height)
    if request.mask:
        arguments["mask_image"] = Image.open(request.mask)
    arguments[family.guidance_argument if family else "guidance_scale"] = request.guidance
    arguments |= {**family.call_options, **family.step_options(request.steps)} if family else {}
    if family and "max_sequence_length" in family.text.options:  # short in tests (small_inputs.py)
        arguments["max_sequence_length"] = family.text.options["max_sequence_length"]
    arguments |= {"width": request.width, "height": request.height}
    taken = inspect.signature(pipe.__call__).parameters  # of models without guidance neither
    size = request.width, request.height
    with call_attributes(family, pipe, *size, request.guidance) if family else nullcontext():
        output = pipe(
            prompt=request.prompt,
            generator=torch.Generator().manual_seed(request.seed),
            num_inference_steps=request.steps,
            output_type="np",
            **{name: value for name, value in arguments.items() if name in taken},
        )
    images = images_in(output)
    if family and family.has(Layers):
        return images[0][0]
    return output.frames[0][-1] if images is None else images[0]
