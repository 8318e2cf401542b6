"""Tiny captioners and mask models with random weights, made offline and saved as they are published; for tests only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.tiny_models.parts import SEED, VISION_TOKENS, qwen_processor, qwen_tokenizer, tiny_qwen3_vl_config

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' if part['type'] == 'image' else part['text'] }}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
JOY_CHAT = (  # that of JoyCaption takes texts alone, and writes the image's token itself
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ '<image>' + message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_captioner(name: str, folder: Path) -> Path:
    """Saves a tiny model of a kind in `captioner_kinds` to a new folder and returns it."""
    _MAKERS[name](folder)
    return folder


def _make_qwen_vl(folder: Path) -> None:
    from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

    tokenizer = qwen_tokenizer(VISION_TOKENS)
    tokenizer.pad_token = "<|endoftext|>"
    processor = qwen_processor(tokenizer, Qwen3VLProcessor, patch_size=16, max_pixels=64**2)
    processor.chat_template = CHAT
    save_random(Qwen3VLForConditionalGeneration(tiny_qwen3_vl_config(tokenizer)), processor, folder)


def _make_llava(folder: Path) -> None:
    from transformers import (
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        SiglipImageProcessorPil,
        SiglipVisionConfig,
    )

    tokenizer = qwen_tokenizer(["<image>"])
    tokenizer.pad_token = "<|endoftext|>"
    images = SiglipImageProcessorPil(size={"height": 32, "width": 32})
    processor = LlavaProcessor(
        images, tokenizer, patch_size=16, vision_feature_select_strategy="full", chat_template=JOY_CHAT
    )
    vision = SiglipVisionConfig(image_size=32, patch_size=16, num_hidden_layers=2, **_WIDTHS)
    config = LlavaConfig(
        vision_config=vision,
        text_config={"model_type": "llama", **_text(tokenizer), "num_key_value_heads": 2},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="full",
    )
    save_random(LlavaForConditionalGeneration(config), processor, folder)


def _make_florence2(folder: Path) -> None:
    from transformers import (
        CLIPImageProcessorPil,
        Florence2Config,
        Florence2ForConditionalGeneration,
        Florence2Processor,
    )

    tokenizer = _bytes_tokenizer(extra_special_tokens={"image_token": "<image>"})
    images = CLIPImageProcessorPil(size={"height": 64, "width": 64}, do_center_crop=False)
    images.image_seq_length = 5  # 4 tokens of a 2 x 2 grid, and their mean
    vision = {
        **{"depths": (1, 1), "embed_dim": (8, 16), "num_heads": (2, 2), "num_groups": (2, 2), "window_size": 2},
        **{"patch_size": (7, 3), "patch_stride": (16, 2), "patch_padding": (3, 1), "patch_prenorm": (False, True)},
        "projection_dim": 16,
    }
    text = {
        **{"model_type": "bart", "vocab_size": len(tokenizer), "d_model": 16, "max_position_embeddings": 256},
        **{"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_beams": 3},
        **{"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id},
        **{"eos_token_id": tokenizer.eos_token_id, "decoder_start_token_id": tokenizer.eos_token_id},
        "forced_eos_token_id": tokenizer.eos_token_id,
    }
    config = Florence2Config(vision_config=vision, text_config=text, image_token_id=tokenizer.image_token_id)
    save_random(Florence2ForConditionalGeneration(config), Florence2Processor(images, tokenizer), folder)


def _make_blip2(folder: Path) -> None:
    from transformers import Blip2Config, Blip2ForConditionalGeneration, Blip2Processor, BlipImageProcessorPil

    tokenizer = _bytes_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    processor = Blip2Processor(BlipImageProcessorPil(size={"height": 32, "width": 32}), tokenizer, num_query_tokens=4)
    config = Blip2Config(
        vision_config={"image_size": 32, "patch_size": 16, "num_hidden_layers": 1, **_WIDTHS},
        qformer_config={"vocab_size": 10, "num_hidden_layers": 2, **_WIDTHS},
        text_config={
            **{"model_type": "opt", **_text(tokenizer), "ffn_dim": 16, "word_embed_proj_dim": 16},
            **{"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id},
        },
        num_query_tokens=4,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    save_random(Blip2ForConditionalGeneration(config), processor, folder)


_WIDTHS = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}


def _text(tokenizer: Any) -> dict[str, Any]:
    return {"vocab_size": len(tokenizer), "num_hidden_layers": 2, "max_position_embeddings": 2048, **_WIDTHS}


def _bytes_tokenizer(**options: Any) -> Any:
    """A tokenizer of BART's kind that knows bytes."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import BartTokenizer

    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(ByteLevel.alphabet())]
    vocab = {token: index for index, token in enumerate(tokens)}
    return BartTokenizer(vocab=vocab, merges=[], **options)


def save_random(model: Any, processor: Any, folder: Path) -> None:
    """Saves a model with weights from a fixed seed, and its processor unless that is None."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():  # as large as to give each image a text of its own
            parameter.normal_(0.0, 1.0, generator=generator)
    model.save_pretrained(folder)
    if processor is not None:
        processor.save_pretrained(folder)
    for path in folder.glob("*processor_config.json"):  # as published: by people who have torchvision
        path.write_text(
            path.read_text(encoding="utf-8").replace('ImageProcessorPil"', 'ImageProcessorFast"'), encoding="utf-8"
        )


_MAKERS: dict[str, Callable[[Path], None]] = {
    "qwen_vl": _make_qwen_vl,
    "llava": _make_llava,
    "florence2": _make_florence2,
    "blip2": _make_blip2,
}
