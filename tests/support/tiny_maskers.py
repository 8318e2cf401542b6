"""Tiny mask models of transformers with random weights, made offline; for tests only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.tiny_captioners import save_random
from tests.support.tiny_models.parts import clip_tokenizer

SIDE = 64  # of the square that the segment-anything models see; the real ones have 1024


def make_tiny_masker(name: str, folder: Path) -> Path:
    """Saves a tiny model of a kind in `masker_kinds` to a new folder and returns it."""
    model, processor = _MAKERS[name]()
    save_random(model, processor, folder)
    return folder


def _make_clipseg() -> tuple[Any, Any]:
    from transformers import CLIPSegConfig, CLIPSegForImageSegmentation, CLIPSegProcessor, ViTImageProcessorPil

    tokenizer = clip_tokenizer()
    layers = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = CLIPSegConfig(
        text_config={"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **ends, **layers},
        vision_config={"image_size": 32, "patch_size": 8, **layers},
        **{"projection_dim": 16, "reduce_dim": 8, "extract_layers": [0, 1], "decoder_num_attention_heads": 2},
        decoder_intermediate_size=16,
    )
    images = ViTImageProcessorPil(size={"height": 32, "width": 32})
    return CLIPSegForImageSegmentation(config), CLIPSegProcessor(images, tokenizer)


_DECODER = {"hidden_size": 16, "mlp_dim": 16, "iou_head_hidden_dim": 16, "num_attention_heads": 2}
_PROMPTS = {"hidden_size": 16, "image_size": SIDE, "patch_size": 16}


def _make_sam() -> tuple[Any, Any]:
    from transformers import SamConfig, SamImageProcessorPil, SamModel, SamProcessor

    config = SamConfig(
        vision_config={
            **{"hidden_size": 16, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
            **{"image_size": SIDE, "patch_size": 16, "window_size": 2, "global_attn_indexes": [1], "mlp_dim": 16},
            "num_pos_feats": 8,
        },
        prompt_encoder_config=_PROMPTS,
        mask_decoder_config=_DECODER,
    )
    square = {"height": SIDE, "width": SIDE}
    images = SamImageProcessorPil(size={"longest_edge": SIDE}, pad_size=square, mask_size={"longest_edge": 256})
    return SamModel(config), SamProcessor(images)


def _make_sam2() -> tuple[Any, Any]:
    from transformers import Sam2Config, Sam2Model

    vision = {
        "backbone_config": {
            **{"model_type": "sam2_hiera_det_model", "hidden_size": 8, "image_size": [SIDE, SIDE]},
            **{"blocks_per_stage": [1, 1, 2, 1], "embed_dim_per_stage": [8, 16, 32, 64]},
            **{"num_attention_heads_per_stage": [1, 2, 2, 2], "window_size_per_stage": [2, 2, 2, 2]},
            **{"global_attention_blocks": [3], "window_positional_embedding_background_size": [4, 4]},
        },
        **{"backbone_channel_list": [64, 32, 16, 8], "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]},
        **{"fpn_hidden_size": 16, "fpn_top_down_levels": [2, 3]},
    }
    return Sam2Model(
        Sam2Config(vision_config=vision, prompt_encoder_config=_PROMPTS, mask_decoder_config=_DECODER)
    ), None


_MAKERS: dict[str, Callable[[], tuple[Any, Any]]] = {"clipseg": _make_clipseg, "sam": _make_sam, "sam2": _make_sam2}
