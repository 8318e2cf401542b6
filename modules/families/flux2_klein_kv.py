"""FLUX.2 klein KV: klein for edits, whose reference images see only themselves and are always without noise.

So their keys and values are the same in each step of sampling and computed once. Black Forest Labs 2026.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from modules.families.Family import DenoiserCall
from modules.families.flux2 import flux2_inputs
from modules.families.flux2_klein import FLUX2_KLEIN


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    """Those of klein, with the references in front of the noised tokens instead of behind them."""
    inputs = flux2_inputs(call)
    if not call.given.get("references"):
        return inputs
    num_references = inputs["hidden_states"].shape[1] - call.latents.shape[1]
    return {
        **inputs,
        "hidden_states": inputs["hidden_states"].roll(num_references, dims=1),
        "img_ids": inputs["img_ids"].roll(num_references, dims=0),
        "kv_cache_mode": "extract",  # without it, references would see the noised tokens
        "num_ref_tokens": num_references,
    }


FLUX2_KLEIN_KV = replace(
    FLUX2_KLEIN,
    name="flux2_klein_kv",
    label="FLUX.2 klein KV",
    pipeline="Flux2KleinKVPipeline",
    inputs=_inputs,
    output=lambda call, output: output,  # without the references already
    read_when_built=("transformer",),  # the pipeline changes how its attention layers compute
    distilled={"FLUX.2 klein KV": "no base is published: train for few steps"},
    remarks="It asks to accept its license, which excludes commercial use, on its page first.",
)
