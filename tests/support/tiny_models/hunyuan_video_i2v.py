from __future__ import annotations

import re
from pathlib import Path

from tests.support.tiny_models.hunyuan_video import save_tiny_hunyuan_video
from tests.support.tiny_models.parts import SEED, qwen_tokenizer


def make_tiny_hunyuan_video_i2v(path: str | Path) -> Path:
    """Save a tiny HunyuanVideo I2V pipeline below `path` and return the path: of 24 x 24 patches, as it counts on."""
    import torch
    from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video_image2video import DEFAULT_PROMPT_TEMPLATE
    from transformers import CLIPImageProcessorPil, LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer(("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<image>"))
    tokenizer.padding_side = "right"
    # words of the instruction as one token: it has to be of 103 tokens or a few more, the sixth of which is the image
    words = {word for word in re.findall("[A-Za-z]+", DEFAULT_PROMPT_TEMPLATE["template"]) if word != "image"}
    tokenizer.add_tokens(sorted({*(f" {word}" for word in words), "system", "Describe", "user", "assistant"}))
    small = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    text_encoder = LlavaConfig(
        text_config={"model_type": "llama", "vocab_size": len(tokenizer), "num_hidden_layers": 4, **small},
        vision_config={
            "model_type": "clip_vision_model", "image_size": 48, "patch_size": 2, "num_hidden_layers": 2, **small,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return save_tiny_hunyuan_video(
        path,
        "HunyuanVideoImageToVideoPipeline",
        LlavaForConditionalGeneration(text_encoder),
        tokenizer,
        image_condition_type="token_replace",
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 48}, crop_size={"height": 48, "width": 48}),
    )
