"""ChronoEdit: edits of images as videos of five frames, of which the first is the image and the last the edited one.

Wu et al. 2025, arXiv 2510.04290. The denoiser is that of Wan 2.1 I2V, which takes two latent frames for the ends of a
longer clip. Clips of more frames are its "temporal reasoning", where the pipeline decodes the last latent frame as if
it followed the first one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from modules.families.conditions import FirstFrame
from modules.families.frames import decode_frames
from modules.families.PublishedModel import Component
from modules.families.wan21_i2v import FIRST_FRAME, I2V_CONFIG, WAN_21_I2V

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor

_PIPELINE = "ChronoEditPipeline"
_MORE_THAN_ALL = 1_000_000  # steps


def _decode(vae: ModelMixin, raw_BCFHW: Tensor) -> Tensor:
    import torch

    if raw_BCFHW.shape[2] <= 2:
        return decode_frames(vae, raw_BCFHW)
    way, edit = decode_frames(vae, raw_BCFHW[:, :, :-1]), decode_frames(vae, raw_BCFHW[:, :, [0, -1]])
    return torch.cat([way, edit[:, :, 1:]], 2)


_PUBLISHED = WAN_21_I2V.published
assert _PUBLISHED is not None
_FIRST_FRAME: FirstFrame = replace(FIRST_FRAME, pipeline=_PIPELINE)

CHRONOEDIT = replace(
    WAN_21_I2V,
    name="chronoedit",
    label="ChronoEdit",
    pipeline=_PIPELINE,
    accepts=lambda index: True,
    codec=replace(WAN_21_I2V.codec, decode=_decode),
    conditions=(_FIRST_FRAME,),
    # without them, the pipeline makes five frames, whatever it is asked for
    call_options={"enable_temporal_reasoning": True, "num_temporal_reasoning_steps": _MORE_THAN_ALL},
    published=replace(_PUBLISHED, denoiser=Component("diffusers.ChronoEditTransformer3DModel", I2V_CONFIG), side=960),
    remarks="""An edit is a clip of five frames: the image, and four times the edited one, which fill a latent frame.
    Put these five files into a folder of their own, and set `concepts.N.frame_folders_fps` and `data.fps` to 16 and
    `data.frames` to 5. Samples are videos whose last frame is the edited image; ask for five frames. More of them, 29
    for example, are the model's temporal reasoning, in all steps, and train as clips of that length do.""",
)
