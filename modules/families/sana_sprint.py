"""SANA-Sprint: Sana distilled to one to four steps, with a guidance scale as input and norms of queries and keys.

Chen et al. 2025, arXiv 2503.09641. Its pipeline and scheduler work on arcs (TrigFlow), but its transformer sees and
predicts what that of a flow does, so it is trained as one.
"""

from dataclasses import replace
from typing import Any

from modules.families.Family import DenoiserCall
from modules.families.PublishedModel import Component
from modules.families.sana import SANA

assert SANA.published is not None


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    assert call.guidance is not None
    return {
        "hidden_states": call.latents,
        "timestep": call.timestep / 1000,
        "guidance": call.guidance * call.denoiser.config.guidance_embeds_scale,
        "encoder_hidden_states": call.text["prompt_embeds"],
        "encoder_attention_mask": call.text["prompt_attention_mask"],
    }


SANA_SPRINT = replace(
    SANA,
    name="sana_sprint",
    label="SANA-Sprint",
    pipeline="SanaSprintPipeline",
    text=replace(SANA.text, outputs=("prompt_embeds", "prompt_attention_mask")),
    inputs=_inputs,
    takes_guidance=True,
    # where two steps meet, as its authors found best; more are evenly spaced
    step_options=lambda steps: {"intermediate_timesteps": 1.3 if steps == 2 else None},
    has_own_sampler=True,
    published=replace(
        SANA.published,
        denoiser=Component(
            "diffusers.SanaTransformer2DModel", {"guidance_embeds": True, "qk_norm": "rms_norm_across_heads"}
        ),
    ),
    distilled={"SANA-Sprint": "Sana"},
    remarks="""Distilled from Sana to sample in one to four steps, which [training it](methods.md#distilled-models)
    unlearns. A LoRA of Sana loads in `SanaSprintPipeline`, too. Samples come from its own scheduler, which takes
    `intermediate_timesteps=None` for other than two steps.""",
)
