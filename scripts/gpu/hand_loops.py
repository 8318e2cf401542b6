"""The loop that one would write by hand for a model of real size, in plain PyTorch, diffusers and peft.

Latents and texts are cached in pinned memory, AdamW is fused, and nothing waits for the GPU. `as_script`: as diffusers'
own train_*_lora_*.py do it: VAE and text encoders run in every step, AdamW is as it comes, and the loss is read.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from scripts.gpu.cases import is_cuda
from scripts.gpu.models import FLUX1, SDXL
from scripts.gpu.real_models import NUM_PICTURES, caption, model_folder, side_of

TARGETS = ["to_k", "to_q", "to_v", "to_out.0"]
PIPELINES = {SDXL: "StableDiffusionXLPipeline", FLUX1: "FluxPipeline"}


class HandLoop:
    """A LoRA on the attention of SDXL or FLUX.1; `step` makes one optimizer step."""

    def __init__(self, name: str, device: str, rank: int, batch_size: int, checkpoints: bool, as_script: bool):
        import diffusers
        import torch

        self._name, self._device, self._batch_size, self._as_script = name, device, batch_size, as_script
        torch.backends.cuda.matmul.allow_tf32 = True  # as Chorus has it by default
        torch.backends.cuda.enable_cudnn_sdp(False)  # likewise
        pipeline: Any = getattr(diffusers, PIPELINES[name])
        self._pipe = pipeline.from_pretrained(model_folder(name, device), torch_dtype=torch.bfloat16).to(device)
        self._model = self._pipe.unet if name == SDXL else self._pipe.transformer
        self._pipe.vae.to(torch.float32 if name == SDXL else torch.bfloat16)
        self._params = self._add_lora(rank, checkpoints)
        self._optimizer = torch.optim.AdamW(self._params, lr=1e-4, fused=None if as_script else True)
        self._order = torch.Generator().manual_seed(0)
        side = side_of(device)
        self._pixels = torch.rand(NUM_PICTURES, 3, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1
        betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, device=device) ** 2
        self._alphas = torch.cumprod(1 - betas, 0)
        self._sizes = torch.tensor([[side, side, 0, 0, side, side]] * batch_size, device=device, dtype=torch.bfloat16)
        self._cached = [] if as_script else self._cache()

    def step(self) -> None:
        import torch

        rows = torch.randperm(NUM_PICTURES, generator=self._order)[: self._batch_size].tolist()
        parts = self._encode(rows) if self._as_script else self._read(rows)
        with torch.autocast(torch.device(self._device).type, torch.bfloat16):
            prediction, target = (self._predict_noise if self._name == SDXL else self._predict_velocity)(*parts)
        loss = torch.nn.functional.mse_loss(prediction.float(), target.float())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._params, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._as_script:
            loss.item()

    def _add_lora(self, rank: int, checkpoints: bool) -> list[Any]:
        from peft import LoraConfig

        self._model.requires_grad_(False)
        config = LoraConfig(r=rank, lora_alpha=rank, init_lora_weights="gaussian", target_modules=TARGETS)
        self._model.add_adapter(config)
        params = [param for param in self._model.parameters() if param.requires_grad]
        for param in params:
            param.data = param.data.float()
        if checkpoints:
            self._model.enable_gradient_checkpointing()
        self._model.train()
        return params

    def _cache(self) -> list[list[Any]]:
        """The parts of each picture in system memory; VAE and text encoders are freed."""
        import torch

        on_gpu = is_cuda(self._device)
        encoded = ([part.cpu() for part in self._encode([row])] for row in range(NUM_PICTURES))
        cached = [[part.pin_memory() if on_gpu else part for part in parts] for parts in encoded]
        for part in [name for name in self._pipe.components if name.startswith(("text_encoder", "vae"))]:
            setattr(self._pipe, part, None)
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
        return cached

    def _read(self, rows: Sequence[int]) -> list[Any]:
        """As `_encode`, from the cache; the ids of FLUX.1's tokens, which come last, are the same for all pictures."""
        import torch

        columns = list(zip(*(self._cached[row] for row in rows), strict=True))
        joined = [torch.cat([each.to(self._device, non_blocking=True) for each in column]) for column in columns[:3]]
        return joined + [column[0].to(self._device, non_blocking=True) for column in columns[3:]]

    def _encode(self, rows: Sequence[int]) -> list[Any]:
        """[latents, text, pooled text], and the ids of the text's tokens for FLUX.1."""
        import torch

        vae, prompts = self._pipe.vae, [caption(row) for row in rows]
        with torch.no_grad():
            pixels = self._pixels[list(rows)].to(self._device, vae.dtype, non_blocking=True)
            latents = vae.encode(pixels).latent_dist.sample() - (vae.config.shift_factor or 0)
            latents = (latents * vae.config.scaling_factor).to(torch.bfloat16)
            if self._name == SDXL:
                options = {"num_images_per_prompt": 1, "do_classifier_free_guidance": False}
                text, _, pooled, _ = self._pipe.encode_prompt(prompts, device=self._device, **options)
                return [latents, text, pooled]
            return [latents, *self._pipe.encode_prompt(prompts, prompt_2=None, device=self._device)]

    def _predict_noise(self, latents: Any, text: Any, pooled: Any) -> tuple[Any, Any]:
        import torch

        noise = torch.randn_like(latents)
        timestep = torch.randint(1000, (len(latents),), device=self._device)
        alpha = self._alphas[timestep][:, None, None, None]
        noised = (alpha.sqrt() * latents + (1 - alpha).sqrt() * noise).to(torch.bfloat16)
        added = {"text_embeds": pooled, "time_ids": self._sizes}
        return self._model(noised, timestep, text, added_cond_kwargs=added, return_dict=False)[0], noise

    def _predict_velocity(self, latents: Any, text: Any, pooled: Any, text_ids: Any) -> tuple[Any, Any]:
        import torch

        noise, (count, channels, height, width) = torch.randn_like(latents), latents.shape
        sigma = torch.sigmoid(torch.randn(count, device=self._device))[:, None, None, None]
        noised = ((1 - sigma) * latents + sigma * noise).to(torch.bfloat16)
        packed = self._pipe._pack_latents(noised, count, channels, height, width)
        ids = self._pipe._prepare_latent_image_ids(count, height // 2, width // 2, self._device, torch.bfloat16)
        prediction = self._model(
            hidden_states=packed,
            timestep=sigma.flatten(),
            guidance=torch.ones(count, device=self._device),
            pooled_projections=pooled,
            encoder_hidden_states=text,
            txt_ids=text_ids,
            img_ids=ids,
            return_dict=False,
        )[0]
        return prediction, self._pipe._pack_latents(noise - latents, count, channels, height, width)
