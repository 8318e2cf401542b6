"""FLUX.3: a flow transformer whose text, image and references first pass through blocks of their own.

It has FLUX.2's latents and sees layers of Qwen 3 VL with the padding of the text. Black Forest Labs 2026.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modules.families.conditions import References
from modules.families.Family import DenoiserCall, Family
from modules.families.LayerNames import LayerNames
from modules.families.packing import token_positions
from modules.families.patched_vae import pack_cells, patch_2x2, patched_codec, unpack_cells, unpatch_2x2
from modules.families.PublishedModel import QWEN_3_VL_4B, Component, PublishedModel
from modules.families.TextEncoding import TextEncoding

if TYPE_CHECKING:
    from torch import Tensor

_NUM_TOKENS = 240  # of a caption of a hundred words or two; texts are padded to multiples of 80
_CELL = 0.5  # between neighbouring latent cells, in positions
_BLOCKS = {  # path of a block in diffusers -> in Black Forest Labs' files
    "mode_blocks.image.{}": "content_mode_blocks.image.{}",
    "mode_blocks.image_cond.{}": "content_mode_blocks.image_cond.{}",
    "txt_mode_blocks.{}": "txt_mode_blocks.{}",
    "single_transformer_blocks.{}": "single_blocks.{}",
}
_LAYERS = {
    "attn.to_q": "q_proj",
    "attn.to_k": "k_proj",
    "attn.to_v": "v_proj",
    "attn.to_out.0": "attn_out",
    "ff.linear_in": "mlp_in",
    "ff.linear_out": "mlp_out",
}
_NAMES = LayerNames(
    "diffusion_model.",
    names={f"{a}.{b}": f"{x}.{y}" for a, x in _BLOCKS.items() for b, y in _LAYERS.items()},
    folds_alpha=True,  # diffusers reads no other
)


def _inputs(call: DenoiserCall) -> dict[str, Any]:
    import torch

    text = call.text_tensor("prompt_embeds")
    text_positions = torch.nn.functional.pad(torch.arange(text.shape[1], device=text.device)[:, None], (3, 0))
    inputs = {
        "hidden_states": call.latents,
        "timestep": (call.timestep / 1000).to(call.latents.dtype),
        "encoder_hidden_states": text,
        "txt_ids": text_positions.float(),
        "img_ids": _positions(call.shape, 0, like=text_positions),
    }
    if references := call.given.get("references"):
        shapes = [reference.shape for reference in references]
        ids = [_positions(shape, -number, like=text_positions) for number, shape in enumerate(shapes, start=1)]
        inputs["image_cond_hidden_states"] = torch.cat([pack_cells(own) for own in references], dim=1)
        inputs["image_cond_ids"] = torch.cat(ids)
    return inputs


def _positions(shape: tuple[int, ...], image: int, like: Tensor) -> Tensor:
    """float32[N, 4]: 0, row, column and number of the image, 0 for the noised one and negative for references."""
    import torch

    height, width = shape[-2:]
    cells = token_positions(height, width, like=like).float() * _CELL
    return torch.nn.functional.pad(cells, (0, 1), value=float(image))


FLUX3 = Family(
    name="flux3",
    label="FLUX.3",
    pipeline="Flux3Pipeline",
    other_pipelines=("Flux3ModularPipeline", "Flux3DistilledModularPipeline"),
    denoisers=("transformer",),
    text=TextEncoding(
        outputs=("prompt_embeds",),
        encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        collate="group",  # seen with its padding and without a mask
    ),
    objective="flow",
    align=16,
    codec=patched_codec(patch_2x2, unpatch_2x2),
    inputs=_inputs,
    pack=pack_cells,
    unpack=unpack_cells,
    patch_size=1,
    conditions=(References(10),),
    unused=("prompt_upsampler", "prompt_upsampler_processor"),
    # predicts from one timestep to another
    unsupported=lambda config: "a distilled FLUX.3" if config.get("flow_map") else "",
    can_train_vae=True,
    lora_targets={"transformer": tuple(f"attn.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0"))},
    lora_mlp={"transformer": ("ff.linear_in", "ff.linear_out")},
    lora_blocks={"transformer": ("mode_blocks", "txt_mode_blocks", "single_transformer_blocks")},
    layer_names={"transformer": _NAMES},
    latent_bytes_per_pixel=128 * 4 / 16**2,
    caption_bytes=_NUM_TOKENS * 20480 * 4,
    typical_bytes=40e9,
    # the blocks of references; the vision tower and the layers above those that the denoiser reads
    partly_unused=("transformer", "text_encoder"),
    published=PublishedModel(  # FLUX.3 klein, of which the code's defaults have the architecture
        denoiser=Component("diffusers.Flux3Transformer2DModel"),
        vae=Component("diffusers.AutoencoderKLFlux2"),
        text_encoders=((QWEN_3_VL_4B, _NUM_TOKENS),),
        text={"prompt_embeds": (_NUM_TOKENS, 20480)},
        side=1024,
    ),
    distilled={"FLUX.3 klein": "FLUX.3 klein base; the distilled one can't be trained"},
    remarks="""Trained on captions of a hundred words and more; in diffusers, a language model writes them from each
    prompt. Chorus does not use that model, so write captions and prompts of this length. The trained model is saved
    without it: to load that in diffusers, remove the block that needs it (`blocks.sub_blocks.pop("prompt_upsampler")`),
    or load it from the original repository. A caption takes 41 KB per token in the cache, in bfloat16.""",
)
