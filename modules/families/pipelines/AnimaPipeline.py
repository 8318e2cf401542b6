"""Anima as a pipeline like the others of diffusers, which has it as blocks: they encode, denoise and decode.

A folder of it has a modular_model_index.json, which names for each part a place on the Hub, too. Here all parts are
read from the folder itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from diffusers.guiders import ClassifierFreeGuidance
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
from diffusers.pipelines.pipeline_utils import DiffusionPipeline, ImagePipelineOutput
from huggingface_hub import hf_hub_download, snapshot_download
from torch import Tensor

from modules.config.model_index import MODULAR_INDEX, read_model_index


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


class AnimaPipeline(DiffusionPipeline, AnimaLoraLoaderMixin):
    """text_conditioner: makes what the transformer sees of a text from Qwen's states and T5's token ids."""

    config_name = MODULAR_INDEX  # type: ignore[assignment] # declared as None
    text_encoder: Any
    text_conditioner: Any
    transformer: Any
    vae: Any
    scheduler: Any

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

    @classmethod
    def load_config(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Of a folder only."""
        return {**read_model_index(Path(pretrained_model_name_or_path)), "_class_name": cls.__name__}

    @classmethod
    def download(cls, pretrained_model_name: Any, *args: Any, **kwargs: Any) -> str:
        """Downloads the folder of a model to the Hub's cache and returns it. Takes the `revision`, too."""
        revision = kwargs.get("revision")
        index = hf_hub_download(pretrained_model_name, MODULAR_INDEX, revision=revision)
        parts = [f"{part}/*" for part in read_model_index(Path(index).parent)]
        return snapshot_download(pretrained_model_name, revision=revision, allow_patterns=[MODULAR_INDEX, *parts])

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        super().save_pretrained(save_directory, *args, **kwargs)
        folder = Path(save_directory)
        index: dict[str, Any] = {"_blocks_class_name": "AnimaAutoBlocks", "_class_name": "AnimaModularPipeline"}
        for name, value in self.config.items():
            if isinstance(value, tuple | list) and (folder / name).is_dir():
                # diffusers reads a part that lies in the folder from there
                source = {"pretrained_model_name_or_path": "", "subfolder": name, "type_hint": [*value]}
                index[name] = [*value, {**source, "revision": None, "variant": None}]
            elif name.startswith("_diffusers"):
                index[name] = value
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (folder / MODULAR_INDEX).write_text(text, encoding="utf-8")

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
        blocks = _BehindText().init_pipeline()
        guider = ClassifierFreeGuidance(guidance_scale=guidance_scale, enabled=is_guided)
        blocks.update_components(
            transformer=self.transformer,
            vae=self.vae,
            scheduler=self.scheduler,
            guider=guider,
            image_processor=self.image_processor,
        )
        blocks.set_progress_bar_config(**getattr(self, "_progress_bar_config", {}))
        images = blocks(
            prompt_embeds=prompt_embeds,
            negative_prompt_embeds=negative_prompt_embeds,
            height=height,
            width=width,
            num_inference_steps=num_inference_steps,
            generator=generator,
            latents=latents,
            output_type=output_type,
            output="images",
        )
        return ImagePipelineOutput(images=images)

    @classmethod
    def save_lora_weights(  # type: ignore[override] # as the other pipelines declare it
        cls, save_directory: Any, transformer_lora_layers: Any = None, **options: Any
    ) -> None:
        cls._save_lora_weights(save_directory, {"transformer": transformer_lora_layers}, {}, **options)
