"""Parts of tiny models that several families have: tokenizers, text encoders, VAEs."""

from __future__ import annotations

import string
from collections.abc import Iterable
from pathlib import Path

SEED = 20240501
WIDER = 48  # of the second CLIP, where there are two
WORDS = ("a", "photo", "of", "cat", "dog", "the", "red", "blue", "sky", "moving")
WAN_22_VAE = {
    "z_dim": 48,
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 16,
}
SD_BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
# Where Qwen's tokenizers have images -> name of the token in the config of its text encoder.
VISION_TOKENS = {
    "<|vision_start|>": "vision_start_token_id",
    "<|vision_end|>": "vision_end_token_id",
    "<|image_pad|>": "image_token_id",
    "<|video_pad|>": "video_token_id",
}


def instructed_gemma(family) -> tuple:
    """A tiny Gemma 2 and its tokenizer, which has each word of the family's long instruction as one token."""
    from transformers import Gemma2Config, Gemma2Model

    tokenizer = gemma_tokenizer()
    instruction = " ".join(family.text.options["complex_human_instruction"])
    tokenizer.add_tokens(sorted({word for word in instruction.split() if len(word) > 3}))
    config = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=64,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="eager",
    )
    return Gemma2Model(config), tokenizer


def tiny_wan_vae(channels: int) -> dict:
    return {
        "base_dim": 4,
        "dim_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        # unlike each other: mixed up channels would show
        "latents_mean": [0.1 * channel for channel in range(channels)],
        "latents_std": [1.0 + 0.1 * channel for channel in range(channels)],
    }


def tiny_flux2_parts(guidance_embeds: bool) -> dict:
    from diffusers import FlowMatchEulerDiscreteScheduler, Flux2Transformer2DModel

    transformer = Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        timestep_guidance_channels=16,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=guidance_embeds,
    )
    return {
        "transformer": transformer,
        "vae": tiny_flux2_vae(),
        "scheduler": FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
    }


def tiny_flux2_vae():
    import torch
    from diffusers import AutoencoderKLFlux2

    vae = AutoencoderKLFlux2(
        block_out_channels=(8, 8),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=2,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        sample_size=32,
    )
    # unlike each other: mixed up channels would show
    vae.bn.running_mean.copy_(torch.linspace(-0.5, 0.5, 16))
    vae.bn.running_var.copy_(torch.linspace(0.5, 2.0, 16))
    return vae


def tiny_qwen3_vl_config(tokenizer, num_layers: int = 3):
    from transformers import Qwen3VLConfig

    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    seen = tokenizer.get_added_vocab()
    return Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": num_layers,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 4096,
            "rope_parameters": rope,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": 16,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 64,
        },
        **{name: tokenizer.convert_tokens_to_ids(token) for token, name in VISION_TOKENS.items() if token in seen},
    )


def save_tiny_qwen_edit(path: str | Path, pipeline_class: str, vae=None, **config) -> Path:
    import diffusers
    import torch
    from transformers import Qwen2VLProcessor

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer(VISION_TOKENS)
    transformer = diffusers.QwenImageTransformer2DModel(
        **{"in_channels": 16, "out_channels": 4, **config},
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )
    pipeline = getattr(diffusers, pipeline_class)(
        transformer=transformer,
        vae=vae or tiny_qwen_vae(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=tiny_qwen_vl(tokenizer),
        tokenizer=tokenizer,
        processor=qwen_processor(tokenizer, Qwen2VLProcessor, patch_size=14, max_pixels=56 * 84),
    )
    return randomize_and_save(pipeline, path)


def qwen_processor(tokenizer, kind, patch_size: int, max_pixels: int):
    """A processor of that class, with a template for chats whose messages are lists or texts."""
    from transformers import Qwen2VLImageProcessorPil

    from modules.weights.processors import without_videos

    images = Qwen2VLImageProcessorPil(min_pixels=(2 * patch_size) ** 2, max_pixels=max_pixels, patch_size=patch_size)
    template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% set content = message['content'] %}{{ content if content is string else content[0]['text'] }}"
        "<|im_end|>\n{% endfor %}"
    )
    return without_videos(kind)(images, tokenizer, chat_template=template)


def tiny_qwen_vae(**config):
    from diffusers import AutoencoderKLQwenImage

    own = {
        "base_dim": 4,
        "z_dim": 4,
        "dim_mult": [1, 1, 1],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True],
        # unlike each other: mixed up channels would show
        "latents_mean": [0.1, -0.2, 0.3, 0.0],
        "latents_std": [1.5, 2.0, 0.5, 1.0],
    }
    return AutoencoderKLQwenImage(**{**own, **config})


def tiny_qwen3(tokenizer, num_layers: int = 2):
    from transformers import Qwen3Config, Qwen3Model

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
    )
    return Qwen3Model(config)


def tiny_qwen_vl(tokenizer, num_layers: int = 2):
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    seen = tokenizer.get_added_vocab()
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": num_layers,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]},
        },
        vision_config={"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16},
        **{name: tokenizer.convert_tokens_to_ids(token) for token, name in VISION_TOKENS.items() if token in seen},
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def clip_tokenizer(max_length: int = 77):
    """A CLIP tokenizer that knows bytes only, so any text becomes ids without a merges file."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())  # sorted: the same ids in every process
    # CLIP's pooling may look for the largest id, so the end token has to be the last one.
    tokens = letters + [f"{letter}</w>" for letter in letters] + ["<|startoftext|>", "<|endoftext|>"]
    vocab = {token: index for index, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=vocab, merges=[], model_max_length=max_length)


def t5_tokenizer(max_length: int = 512):
    """A T5 tokenizer of ten words and the printable characters."""
    from transformers import T5Tokenizer

    letters = sorted(set(string.printable) - set(string.whitespace))
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0)]
    vocab += [(f"\u2581{word}", -3.0) for word in WORDS] + [(letter, -8.0) for letter in letters]
    return T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=max_length)


def qwen_tokenizer(further_tokens: Iterable[str] = (), max_length: int = 2048):
    """A Qwen tokenizer that knows bytes only, with the template of its chats."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    tokens = [*sorted(ByteLevel.alphabet()), "<|endoftext|>"]
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)}, merges=[], model_max_length=max_length
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", *further_tokens]})
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return tokenizer


def gemma_tokenizer(max_length: int = 512):
    """A Gemma tokenizer of the printable characters and single bytes."""
    from transformers import GemmaTokenizer

    letters = [*sorted(set(string.printable) - set(string.whitespace)), "\u2581", "\n"]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    vocab = {token: index for index, token in enumerate(tokens)}
    return GemmaTokenizer(vocab=vocab, merges=[], model_max_length=max_length)


def tiny_clip(
    tokenizer, hidden_act: str = "quick_gelu", projected: bool = False, width: int = 32, num_tokens: int = 77
):
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=num_tokens,
        projection_dim=width,
        hidden_act=hidden_act,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config)


def tiny_t5(tokenizer, width: int):
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=len(tokenizer), d_model=width, d_ff=40, d_kv=8, num_heads=4, num_layers=2,
        relative_attention_num_buckets=8,
    )  # fmt: skip
    return T5EncoderModel(config)


def tiny_vae(levels: int = 2, latent_channels: int = 4, **config):
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(*[8] * (levels - 1), 16),
        layers_per_block=1,
        latent_channels=latent_channels,
        norm_num_groups=2,
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        sample_size=32,
        **config,
    )


def tiny_umt5(tokenizer, width: int):
    from transformers import UMT5Config, UMT5EncoderModel

    config = UMT5Config(
        vocab_size=len(tokenizer), d_model=width, d_ff=40, d_kv=8, num_heads=4, num_layers=2,
        relative_attention_num_buckets=8,
    )  # fmt: skip
    return UMT5EncoderModel(config)


def randomize_and_save(pipeline, path: str | Path) -> Path:
    import torch

    models = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    with torch.no_grad():
        for model in models:
            for parameter in model.parameters():
                if not parameter.any():
                    parameter.normal_(0.0, 0.05)
    pipeline.save_pretrained(str(path))  # that of a modular one takes no Path
    return Path(path)
