"""The pipeline of Wan 2.1 VACE, which in diffusers takes one prompt and one generator, and no lists of them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from diffusers.pipelines.wan import pipeline_wan_vace as of_diffusers


class WanVACEPipeline(of_diffusers.WanVACEPipeline):
    """Makes the videos of a list of prompts one after the other, of the same source clip."""

    @functools.wraps(of_diffusers.WanVACEPipeline.__call__)  # Chorus and diffusers look at its arguments
    def __call__(self, prompt: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(prompt, list):
            return super().__call__(prompt, *args, **kwargs)
        listed = {name: kwargs[name] for name in ("negative_prompt", "generator") if isinstance(kwargs.get(name), list)}
        made: list[Any] = []
        for number, one in enumerate(prompt):
            own = {name: values[number] for name, values in listed.items()}
            made.append(super().__call__(one, *args, **{**kwargs, **own}).frames)
        frames: Any = [video for videos in made for video in videos]  # of PIL images
        if not isinstance(made[0], list):
            frames = torch.cat(made) if isinstance(made[0], torch.Tensor) else np.concatenate(made)
        return of_diffusers.WanPipelineOutput(frames=frames)
