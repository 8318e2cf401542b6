"""The pipeline of Cosmos-Predict2.5, which diffusers can make only with the guardrail that its license asks for.

Here the guardrail is made when the pipeline is first called, so that training needs none. Every call is checked by it.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from diffusers.pipelines.cosmos import pipeline_cosmos2_5_predict as of_diffusers
from diffusers.video_processor import VideoProcessor

from modules.families.sampling_package import SampleRefused, check_sampling_package


def _to_tensor(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image, np.float32) / 255).permute(2, 0, 1)


if not hasattr(of_diffusers, "torchvision"):  # all that the pipeline takes of it
    of_torchvision = SimpleNamespace(functional=SimpleNamespace(to_tensor=_to_tensor))
    vars(of_diffusers)["torchvision"] = SimpleNamespace(transforms=of_torchvision)


class Cosmos2_5_PredictBasePipeline(of_diffusers.Cosmos2_5_PredictBasePipeline):
    """safety_checker: the guardrail while the pipeline is called; no component. Without, diffusers refuses to run."""

    _optional_components: list[str] = []
    safety_checker: Any = None

    def __init__(self, text_encoder, tokenizer, transformer, vae, scheduler):
        self.register_modules(
            text_encoder=text_encoder, tokenizer=tokenizer, transformer=transformer, vae=vae, scheduler=scheduler
        )
        steps = vae.temperal_downsample if vae is not None else [False, True, True]
        self.vae_scale_factor_temporal, self.vae_scale_factor_spatial = 2 ** sum(steps), 2 ** len(steps)
        self.video_processor = VideoProcessor(vae_scale_factor=self.vae_scale_factor_spatial, resample="bilinear")
        if vae is not None:
            mean, std = (
                torch.tensor(values).view(1, -1, 1, 1, 1).float()
                for values in (vae.config.latents_mean, vae.config.latents_std)
            )
            self.latents_mean, self.latents_std = mean, 1.0 / std

    @functools.wraps(of_diffusers.Cosmos2_5_PredictBasePipeline.__call__)  # Chorus and diffusers look at its arguments
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        checker = self.safety_checker = guardrail()
        try:
            return super().__call__(*args, **kwargs)
        except ValueError as error:
            if "Guardrail" in str(error):
                raise SampleRefused(f"The guardrail refuses a prompt of the samples: {error}") from error
            raise
        finally:
            self.safety_checker = None
            checker.to("cpu")


@functools.cache
def guardrail() -> Any:
    """NVIDIA's CosmosSafetyChecker, whose models are downloaded when it is first made.

    Raises UserError without its package.
    """
    check_sampling_package("cosmos_guardrail", "Cosmos-Predict2.5")
    from cosmos_guardrail import CosmosSafetyChecker

    class Guardrail(CosmosSafetyChecker):
        def check_video_safety(self, frames: Any) -> Any:
            checked = super().check_video_safety(frames)
            if checked is None:
                raise SampleRefused("The guardrail refuses a video that was made: change the prompt of that sample.")
            return checked

    return Guardrail()
