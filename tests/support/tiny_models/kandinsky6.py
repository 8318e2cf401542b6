from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import (
    SEED,
    clip_tokenizer,
    qwen_tokenizer,
    randomize_and_save,
    tiny_clip,
    tiny_qwen_vl,
)


def make_tiny_kandinsky6(path: str | Path) -> Path:
    """Save a tiny Kandinsky 6 pipeline below `path` and return the path: with sound."""
    import diffusers
    import torch

    torch.manual_seed(SEED)
    tokenizer, clip = qwen_tokenizer(), clip_tokenizer()
    # words of the instruction as one token, or too little of a prompt would be left
    words = (
        "Describe describe how the camera moves or shakes zoom and view angle whether it follows objects video is of"
    )
    tokenizer.add_tokens([f" {word}" for word in words.split()])
    transformer = diffusers.Kandinsky6Transformer3DModel(
        in_visual_dim=4,
        out_visual_dim=4,
        in_text_dim=16,
        in_text_dim2=32,
        time_dim=16,
        model_dim=32,
        ff_dim=32,
        num_text_blocks=1,
        num_visual_blocks=1,
        axes_dims=(4, 6, 6),
        in_audio_dim=4,
        out_audio_dim=4,
        model_dim_a=16,
        ff_dim_a=16,
        ca_rope=True,
        cross_gates=True,
        fix_modulation=True,
        visual_token_type_num_embeddings=2,
    )
    pipeline = diffusers.Kandinsky6TI2VAPipeline(
        transformer=transformer,
        vae=diffusers.AutoencoderKLHunyuanVideo(
            latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4
        ),
        text_encoder=tiny_qwen_vl(tokenizer),
        tokenizer=tokenizer,
        text_encoder_2=tiny_clip(clip),
        tokenizer_2=clip,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=5.0),
        audio_vae=diffusers.MMAudioVAE(mel_bins=8, latent_channels=4, hidden_channels=16, layers_per_block=1),
        vocoder=diffusers.MMAudioVocoder(
            num_mels=8, upsample_initial_channel=64, resblock_kernel_sizes=(3,), resblock_dilation_sizes=((1,),)
        ),
    )
    return randomize_and_save(pipeline, path)
