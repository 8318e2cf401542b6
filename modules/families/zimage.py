"""Z-Image: a single-stream flow transformer over text and image, and Qwen 3.

Its time runs from 0 (noise) to 1 and its output is negated. Latents and texts are passed as lists, without padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modules.config.TrainingTimesteps import TrainingTimesteps
from modules.families.Family import DenoiserCall, Family
from modules.families.LayerNames import DIFFUSERS_NAMES, LayerNames
from modules.families.PublishedModel import KL_VAE_16, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from torch import Tensor

_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
_BLOCKS = ("layers", "noise_refiner", "context_refiner")
_ORIGINAL_NAMES = LayerNames(  # of its makers' and ComfyUI's models, which have fused projections
    "diffusion_model.",
    names={f"{block}.{{}}.attention.to_out.0": f"{block}.{{}}.attention.out" for block in _BLOCKS},
    fused={
        tuple(f"{block}.{{}}.attention.to_{name}" for name in "qkv"): f"{block}.{{}}.attention.qkv" for block in _BLOCKS
    },
)


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    return {
        "x": list(call.latents.unsqueeze(2).unbind(0)),  # each [C, F, H, W], with one frame
        "t": (1000 - call.timestep) / 1000,
        "cap_feats": call.text["prompt_embeds"],
    }


def _output(call: DenoiserCall, output: list[Tensor]) -> Tensor:
    import torch

    return -torch.stack(output).squeeze(2)


Z_IMAGE = Family(
    name="zimage",
    label="Z-Image",
    pipeline="ZImagePipeline",
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds", None),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        options={"max_sequence_length": 512},
        collate="list",
    ),
    objective="flow",
    align=16,
    inputs=_inputs,
    output=_output,
    can_train_vae=True,
    lora_targets={"transformer": _ATTENTION},
    lora_mlp={"transformer": ("feed_forward.w1", "feed_forward.w2", "feed_forward.w3")},
    lora_blocks={"transformer": _BLOCKS},
    layer_names={"transformer": DIFFUSERS_NAMES},
    original_names=_ORIGINAL_NAMES,
    latent_bytes_per_pixel=16 * 4 / 8**2,
    caption_bytes=128 * 2560 * 4,  # for a caption of about 128 tokens
    typical_bytes=41e9,
    # Its makers have published no training code, and its sampling shift is 6, Turbo's 3. Without a shift as in Nerogar/
    # OneTrainer: training_presets/Z-Image and ostris/ai-toolkit, and found better in kohya-ss/musubi-tuner issue 908.
    training_timesteps=TrainingTimesteps(),
    partly_unused=("text_encoder",),  # the denoiser uses the input of its last layer
    further_classes={"tokenizer": ("transformers.AutoTokenizer",)},
    published=PublishedModel(
        denoiser=Component("diffusers.ZImageTransformer2DModel"),
        vae=KL_VAE_16,
        text_encoders=(
            (
                Component(
                    "transformers.Qwen3Model",
                    {
                        "hidden_size": 2560,
                        "intermediate_size": 9728,
                        "num_hidden_layers": 36,
                        "num_attention_heads": 32,
                        "num_key_value_heads": 8,
                    },
                    "Qwen3Config",
                ),
                512,
            ),
        ),
        text={"prompt_embeds": (128, 2560)},
        side=1024,
    ),
    distilled={
        "Z-Image Turbo": "Z-Image; or Turbo with the adapter `ostris/zimage_turbo_training_adapter`, "
        "or with the transformer of `ostris/Z-Image-De-Turbo`"
    },
    remarks="""Z-Image Omni is not a family: diffusers has its pipeline, but no weights have been published that could
    be trained or tested with.""",
)
