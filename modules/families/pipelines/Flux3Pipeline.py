"""FLUX.3 as a pipeline like the others of diffusers, which has it as blocks: they encode, denoise and decode.

Its prompt upsampler, a language model that rewrites prompts, is no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from diffusers.loaders import Flux3LoraLoaderMixin
from diffusers.modular_pipelines.flux3.before_denoise import Flux3SetTimestepsStep
from diffusers.modular_pipelines.flux3.decoders import Flux3DecodeStep
from diffusers.modular_pipelines.flux3.encoders import Flux3TextEncoderStep
from diffusers.modular_pipelines.flux3.image_processor import Flux3ImageProcessor
from diffusers.modular_pipelines.flux3.modular_blocks_flux3 import Flux3AutoCoreDenoiseStep, Flux3AutoVaeEncoderStep
from diffusers.modular_pipelines.modular_pipeline import SequentialPipelineBlocks
from diffusers.pipelines.pipeline_utils import ImagePipelineOutput
from diffusers.schedulers import FlowMatchEulerDiscreteScheduler
from PIL.Image import Image
from torch import Tensor

from modules.families.pipelines.BlocksPipeline import BlocksPipeline


class _BehindText(SequentialPipelineBlocks):
    """diffusers' blocks, without those that rewrite and encode prompts."""

    model_name = Flux3DecodeStep.model_name
    block_classes = [Flux3AutoVaeEncoderStep, Flux3AutoCoreDenoiseStep, Flux3DecodeStep]
    block_names = ["vae_encoder", "denoise", "decode"]


class Flux3Pipeline(BlocksPipeline, Flux3LoraLoaderMixin):
    """Makes images one at a time, because each text has a length of its own and the transformer sees no mask.

    scheduler: None, as in published folders, for the one that diffusers' blocks make by themselves.
    """

    blocks_name = "Flux3AutoBlocks"
    modular_name = "Flux3ModularPipeline"
    _optional_components = ["scheduler", "prompt_upsampler", "prompt_upsampler_processor"]
    text_encoder: Any
    tokenizer: Any

    def __init__(
        self,
        text_encoder,
        tokenizer,
        transformer,
        vae,
        scheduler=None,
        prompt_upsampler=None,
        prompt_upsampler_processor=None,
    ):
        super().__init__()
        self.register_modules(
            text_encoder=text_encoder,
            tokenizer=tokenizer,
            transformer=transformer,
            vae=vae,
            scheduler=scheduler or FlowMatchEulerDiscreteScheduler(shift=Flux3SetTimestepsStep().shift),
            prompt_upsampler=prompt_upsampler,
            prompt_upsampler_processor=prompt_upsampler_processor,
        )
        self.image_processor = Flux3ImageProcessor()

    def encode_prompt(
        self, prompt: str | list[str], device: torch.device | None = None, max_sequence_length: int = 8192
    ) -> tuple[Tensor | list[Tensor]]:
        """[B, L, width], or a list of [L, width] if the prompts differ in length."""
        device = device or self._execution_device
        texts = [
            Flux3TextEncoderStep._get_qwen3_vl_prompt_embeds(
                self.text_encoder, self.tokenizer, one, device, max_sequence_length
            )[0]
            for one in ([prompt] if isinstance(prompt, str) else prompt)
        ]
        return (torch.stack(texts) if len({text.shape for text in texts}) == 1 else texts,)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] = "",
        negative_prompt: str | list[str] = "",
        image: Image | list[Image] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int = 50,
        guidance_scale: float = 4.0,
        generator: torch.Generator | list[torch.Generator] | None = None,
        latents: Tensor | None = None,
        prompt_embeds: Tensor | list[Tensor] | None = None,
        negative_prompt_embeds: Tensor | list[Tensor] | None = None,
        output_type: str = "pil",
        max_sequence_length: int = 8192,
    ) -> ImagePipelineOutput:
        """image: the references that each image is made with.

        prompt_embeds, negative_prompt_embeds: as from `encode_prompt`, in place of the prompts.
        """
        if prompt_embeds is None:
            (prompt_embeds,) = self.encode_prompt(prompt, max_sequence_length=max_sequence_length)
        is_guided = guidance_scale != 1.0
        negatives: Sequence[Tensor | None] = [None] * len(prompt_embeds)
        if negative_prompt_embeds is not None:
            negatives = [*negative_prompt_embeds]
        elif is_guided:
            negative = [negative_prompt] * len(prompt_embeds) if isinstance(negative_prompt, str) else negative_prompt
            negatives = [*self.encode_prompt(negative, max_sequence_length=max_sequence_length)[0]]
        images: list[Any] = []
        for row, (text, negative_text) in enumerate(zip(prompt_embeds, negatives, strict=True)):
            made = self.run_blocks(
                _BehindText(),
                guidance_scale,
                prompt_embeds=text[None],
                negative_prompt_embeds=None if negative_text is None else negative_text[None],
                image=image,
                height=height,
                width=width,
                num_inference_steps=num_inference_steps,
                generator=generator[row] if isinstance(generator, list) else generator,
                latents=None if latents is None else latents[row : row + 1],
                output_type=output_type,
            )
            images.extend(made)
        together: dict[str, Callable[[list[Any]], Any]] = {"pt": torch.stack, "np": np.stack}
        return ImagePipelineOutput(images=together.get(output_type, list)(images))
