"""MiniMax H3 as a pipeline like the others of diffusers, which has it as blocks: they lay out, denoise and unpack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers.loaders import MiniMaxH3LoraLoaderMixin
from diffusers.models import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio
from diffusers.modular_pipelines.minimax_h3 import MiniMaxH3ModularPipeline
from diffusers.modular_pipelines.minimax_h3.before_denoise import (
    MiniMaxH3PrepareLatentsStep,
    MiniMaxH3PrepareLayoutStep,
    MiniMaxH3SetTimestepsStep,
)
from diffusers.modular_pipelines.minimax_h3.decoders import MiniMaxH3AfterDenoiseStep
from diffusers.modular_pipelines.minimax_h3.denoise import MiniMaxH3DenoiseStep
from diffusers.modular_pipelines.minimax_h3.encoders import get_qwen3vl_prompt_embeds
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import audio_latent_num_frames
from diffusers.modular_pipelines.modular_pipeline import SequentialPipelineBlocks
from diffusers.modular_pipelines.modular_pipeline_utils import ComponentSpec, InputParam
from diffusers.utils import BaseOutput
from diffusers.video_processor import VideoProcessor
from torch import Tensor

from modules.families.chunked_vae import decode, latent_frames
from modules.families.frames import channel_stats
from modules.families.pipelines.BlocksPipeline import BlocksPipeline

_LAYOUT = (
    "position_ids",
    "token_tags",
    "video_indices",
    "audio_indices",
    "text_indices",
    "num_condition_video_rows",
    "num_condition_audio_rows",
)


class _Layout(MiniMaxH3PrepareLayoutStep):
    """diffusers' block for clips of any length, and for images: that takes 5 to 15 seconds alone."""

    @property
    def expected_components(self) -> list[ComponentSpec]:
        """Those of which the sizes of the latents are asked."""
        return [ComponentSpec("vae", AutoencoderKLMiniMaxH3), ComponentSpec("audio_vae", AutoencoderKLMiniMaxH3Audio)]

    @property
    def inputs(self) -> list[InputParam]:
        return [*super().inputs, InputParam("num_audio_latents", type_hint=int, required=True)]

    @torch.no_grad()
    def __call__(self, components: Any, state: Any) -> tuple[Any, Any]:
        block_state: Any = self.get_block_state(state)
        ratio = components.vae_spatial_compression_ratio
        block_state.num_latent_frames = latent_frames(block_state.num_frames)
        block_state.latent_height, block_state.latent_width = block_state.height // ratio, block_state.width // ratio
        rows = self.build_packed_sequence(
            block_state.text_token_tags,
            block_state.num_latent_frames,
            block_state.latent_height,
            block_state.latent_width,
            block_state.num_audio_latents,
            components.patch_size,
            components.audio_channels,
            components.audio_tag,
            components.video_tag,
        )
        for name, value in zip(_LAYOUT, rows, strict=True):
            setattr(block_state, name, value.to(components._execution_device) if isinstance(value, Tensor) else value)
        self.set_block_state(state, block_state)
        return components, state


class _BetweenTextAndPixels(SequentialPipelineBlocks):
    """diffusers' blocks, without those that encode prompts and keyframes and those that decode."""

    model_name = MiniMaxH3DenoiseStep.model_name
    block_classes = [
        _Layout,
        MiniMaxH3PrepareLatentsStep,
        MiniMaxH3SetTimestepsStep,
        MiniMaxH3DenoiseStep,
        MiniMaxH3AfterDenoiseStep,
    ]
    block_names = ["prepare_layout", "prepare_latents", "set_timesteps", "denoise", "after_denoise"]


@dataclass
class MiniMaxH3Output(BaseOutput):
    """frames: as `output_type` says, [B, F, 3, H, W] in [0, 1] for "pt".

    audio: float32[B, 2, samples], 32000 in a second; None of images.
    """

    frames: Any
    audio: Tensor | None = None


class MiniMaxH3Pipeline(BlocksPipeline, MiniMaxH3LoraLoaderMixin):
    """Makes clips with their sound one at a time, because the transformer sees no mask.

    transformer_ref: the second transformer of a published folder, which makes clips from references; not used here.
    """

    blocks_name = "MiniMaxH3Blocks"
    modular_name = "MiniMaxH3ModularPipeline"
    _optional_components = ["transformer_ref"]
    text_encoder: Any
    tokenizer: Any
    processor: Any
    audio_vae: Any
    audio_scheduler: Any

    def __init__(
        self,
        text_encoder,
        tokenizer,
        processor,
        transformer,
        vae,
        audio_vae,
        scheduler,
        audio_scheduler,
        transformer_ref=None,
    ):
        super().__init__()
        self.register_modules(
            text_encoder=text_encoder,
            tokenizer=tokenizer,
            processor=processor,
            transformer=transformer,
            vae=vae,
            audio_vae=audio_vae,
            scheduler=scheduler,
            audio_scheduler=audio_scheduler,
            transformer_ref=transformer_ref,
        )
        self.video_processor = VideoProcessor(vae.spatial_compression_ratio if vae else 16, do_normalize=False)

    def encode_prompt(
        self, prompt: str | list[str], device: torch.device | None = None
    ) -> tuple[Tensor | list[Tensor]]:
        """[B, L, width], or a list of [L, width] if the prompts differ in length."""
        device = device or self._execution_device
        texts: list[Tensor] = []
        for one in [prompt] if isinstance(prompt, str) else prompt:
            ids = self.tokenizer(one, add_special_tokens=False)["input_ids"]
            layer = MiniMaxH3ModularPipeline.text_encoder_layer.fget(self)
            dtype = self.text_encoder.dtype
            texts += get_qwen3vl_prompt_embeds(
                self.text_encoder, self.processor, ids, text_encoder_layer=layer, device=device, dtype=dtype
            )
        return (torch.stack(texts) if len({text.shape for text in texts}) == 1 else texts,)

    def sound_length(self, num_frames: int) -> int:
        """How many latents each channel of a clip's sound has."""
        return audio_latent_num_frames(num_frames)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] = "",
        height: int = 768,
        width: int = 1344,
        num_frames: int = 124,
        num_inference_steps: int = 49,
        generator: torch.Generator | list[torch.Generator] | None = None,
        prompt_embeds: Tensor | list[Tensor] | None = None,
        output_type: str = "pil",
    ) -> MiniMaxH3Output:
        """num_frames: 1, or 17n + 5. prompt_embeds: as from `encode_prompt`, in place of the prompts.

        num_inference_steps: of the transformer; diffusers' blocks count one more, the end of the last.
        """
        if prompt_embeds is None:
            (prompt_embeds,) = self.encode_prompt(prompt)
        videos, sounds = [], []
        for row, text in enumerate(prompt_embeds):
            latents, of_sound = self._denoised(
                prompt_embeds=text[None],
                text_token_tags=torch.ones(len(text), dtype=torch.long),
                height=height,
                width=width,
                num_frames=num_frames,
                num_audio_latents=self.sound_length(num_frames),
                num_inference_steps=num_inference_steps + 1,
                generator=generator[row] if isinstance(generator, list) else generator,
            )
            mean, scale = (value.to(latents) for value in channel_stats(self.vae))
            pixels = decode(self.vae, latents / scale + mean).unflatten(1, (3, -1))
            videos.append((pixels / 2 + 0.5).clamp(0, 1).reshape(1, 3, -1, height, width))
            if num_frames > 1 and of_sound.shape[2]:
                sounds.append(self._waveform(of_sound))
        return MiniMaxH3Output(
            frames=self.video_processor.postprocess_video(torch.cat(videos), output_type=output_type),
            audio=torch.stack(sounds) if sounds else None,
        )

    def _waveform(self, latents: Tensor) -> Tensor:
        """float32[2, samples], of each channel as a sample. latents: [2, C, L], normalized."""
        mean, scale = (value.to(latents).view(1, -1, 1) for value in channel_stats(self.audio_vae))
        return self.audio_vae.decode(latents / scale + mean, return_dict=False)[0].float()[:, 0]

    def _denoised(self, **inputs: Any) -> tuple[Tensor, Tensor]:
        """Latents of the video and of its sound."""
        pipeline: Any = MiniMaxH3ModularPipeline(blocks=_BetweenTextAndPixels())
        pipeline.update_components(
            transformer=self.transformer,
            vae=self.vae,
            audio_vae=self.audio_vae,
            scheduler=self.scheduler,
            audio_scheduler=self.audio_scheduler,
        )
        pipeline.set_progress_bar_config(**getattr(self, "_progress_bar_config", {}))
        made = pipeline(**inputs, output=["latents", "audio_latents"])
        return made["latents"], made["audio_latents"]
