from __future__ import annotations

import string
from pathlib import Path

from tests.support.tiny_models.parts import SD_BETAS, SEED, WORDS, randomize_and_save, tiny_vae


def make_tiny_kolors(path: str | Path) -> Path:
    """Save a tiny Kolors pipeline below `path` and return the path. Its noise schedule has more than 1,000 steps."""
    import torch
    from diffusers import EulerDiscreteScheduler, KolorsPipeline, UNet2DConditionModel
    from diffusers.pipelines.kolors.text_encoder import ChatGLMConfig, ChatGLMModel

    torch.manual_seed(SEED)
    tokenizer = _chatglm_tokenizer(Path(path))
    text_encoder = ChatGLMModel(
        ChatGLMConfig(
            num_layers=3,
            padded_vocab_size=tokenizer.vocab_size,
            hidden_size=16,
            ffn_hidden_size=16,
            kv_channels=8,
            num_attention_heads=2,
            multi_query_attention=True,
            multi_query_group_num=1,
            add_qkv_bias=True,
            original_rope=True,
        )
    )
    for parameter in text_encoder.parameters():  # it leaves them as they were in memory
        torch.nn.init.normal_(parameter, std=0.3)
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        encoder_hid_dim=16,
        encoder_hid_dim_type="text_proj",
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + 16,
    )
    pipeline = KolorsPipeline(
        unet=unet,
        vae=tiny_vae(scaling_factor=0.13025),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        scheduler=EulerDiscreteScheduler(
            **{**SD_BETAS, "beta_end": 0.014}, num_train_timesteps=1100, timestep_spacing="leading", steps_offset=1
        ),
    )
    return randomize_and_save(pipeline, path)


def _chatglm_tokenizer(folder: Path):
    """A tokenizer of ChatGLM3 for a few words and single letters, whose vocabulary is a file in `folder`."""
    import sentencepiece
    from diffusers.pipelines.kolors.tokenizer import ChatGLMTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    texts = [" ".join(WORDS), string.ascii_lowercase, string.punctuation]
    options = {"model_prefix": str(folder / "words"), "vocab_size": 90, "character_coverage": 1.0, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_type="bpe", **options)
    return ChatGLMTokenizer(str(folder / "words.model"))
