"""Anima as a pipeline like the others of diffusers, which has it as blocks: they encode, denoise and decode."""

from __future__ import annotations

from typing import Any, cast

import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.loaders import AnimaLoraLoaderMixin
from diffusers.modular_pipelines.anima.before_denoise import (
    AnimaPrepareLatentsStep,
    AnimaSetTimestepsStep,
    AnimaTextConditioningStep,
    AnimaTextInputStep,
)
from diffusers.modular_pipelines.anima.decoders import AnimaProcessImagesOutputStep, AnimaVaeDecoderStep
from diffusers.modular_pipelines.anima.denoise import AnimaDenoiseStep
from diffusers.modular_pipelines.anima.encoders import AnimaTextEncoderStep
from diffusers.modular_pipelines.modular_pipeline import SequentialPipelineBlocks
from diffusers.pipelines.pipeline_utils import ImagePipelineOutput
from torch import Tensor

from modules.families.pipelines.BlocksPipeline import BlocksPipeline


class _BehindText(SequentialPipelineBlocks):
    """diffusers' blocks for text to image, without those that `encode_prompt` runs."""

    model_name = AnimaDenoiseStep.model_name
    block_classes = [
        AnimaTextInputStep,
        AnimaPrepareLatentsStep,
        AnimaSetTimestepsStep,
        AnimaDenoiseStep,
        AnimaVaeDecoderStep,
        AnimaProcessImagesOutputStep,
    ]
    block_names = ["input", "prepare_latents", "set_timesteps", "denoise", "decode", "postprocess"]


class AnimaPipeline(BlocksPipeline, AnimaLoraLoaderMixin):
    """text_conditioner: makes what the transformer sees of a text from Qwen's states and T5's token ids."""

    blocks_name = "AnimaAutoBlocks"
    modular_name = "AnimaModularPipeline"
    text_encoder: Any
    text_conditioner: Any

    def __init__(self, text_encoder, tokenizer, t5_tokenizer, text_conditioner, transformer, vae, scheduler):
        super().__init__()
        self.register_modules(
            text_encoder=text_encoder,
            tokenizer=tokenizer,
            t5_tokenizer=t5_tokenizer,
            text_conditioner=text_conditioner,
            transformer=transformer,
            vae=vae,
            scheduler=scheduler,
        )
        self.image_processor = VaeImageProcessor()

    def encode_prompt(
        self, prompt: str | list[str], device: torch.device | None = None, max_sequence_length: int = 512
    ) -> tuple[Tensor]:
        device = device or self._execution_device
        prompts = [prompt] if isinstance(prompt, str) else prompt
        own = cast("Any", self)  # it has the parts that the blocks use
        states, mask = AnimaTextEncoderStep._get_qwen_prompt_embeds(
            own, prompts, max_sequence_length, device, self.text_encoder.dtype
        )
        ids, ids_mask = AnimaTextEncoderStep._get_t5_prompt_ids(own, prompts, max_sequence_length, device)
        embeds = AnimaTextConditioningStep._condition_prompt_embeds(
            own,
            qwen_prompt_embeds=states,
            qwen_attention_mask=mask,
            t5_input_ids=ids,
            t5_attention_mask=ids_mask,
            device=device,
            conditioning_dtype=self.text_conditioner.dtype,
            output_dtype=self.text_conditioner.dtype,
        )
        return (embeds,)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] = "",
        negative_prompt: str | list[str] = "",
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int = 50,
        guidance_scale: float = 4.0,
        generator: torch.Generator | list[torch.Generator] | None = None,
        latents: Tensor | None = None,
        prompt_embeds: Tensor | None = None,
        negative_prompt_embeds: Tensor | None = None,
        output_type: str = "pil",
        max_sequence_length: int = 512,
    ) -> ImagePipelineOutput:
        """prompt_embeds, negative_prompt_embeds: as from `encode_prompt`, in place of the prompts."""
        if prompt_embeds is None:
            (prompt_embeds,) = self.encode_prompt(prompt, max_sequence_length=max_sequence_length)
        is_guided = guidance_scale != 1.0
        if negative_prompt_embeds is None and is_guided:
            negative = [negative_prompt] * len(prompt_embeds) if isinstance(negative_prompt, str) else negative_prompt
            (negative_prompt_embeds,) = self.encode_prompt(negative, max_sequence_length=max_sequence_length)
        images = self.run_blocks(
            _BehindText(),
            guidance_scale,
            prompt_embeds=prompt_embeds,
            negative_prompt_embeds=negative_prompt_embeds,
            height=height,
            width=width,
            num_inference_steps=num_inference_steps,
            generator=generator,
            latents=latents,
            output_type=output_type,
        )
        return ImagePipelineOutput(images=images)

    @classmethod
    def save_lora_weights(  # type: ignore[override] # as the other pipelines declare it
        cls, save_directory: Any, transformer_lora_layers: Any = None, **options: Any
    ) -> None:
        cls._save_lora_weights(save_directory, {"transformer": transformer_lora_layers}, {}, **options)
