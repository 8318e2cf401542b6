"""Tiny diffusers pipelines with random weights, made offline and saved to a folder; for tests only.

They have the parts, the names and the file layout of the real models, in about 1 MB or less, and cost a fraction
of a second. Weights come from a fixed seed and no parameter is left at zero: with zero-initialised layers, half of a
model could be wired up wrongly and no output would show it.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable
from pathlib import Path

SEED = 20240501
PIXELS_PER_LATENT = 2  # the VAEs have two levels, so one halving; the real ones have 8
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


# Further models of some families: name -> (the family's, arguments of the function that makes it).
VARIANTS = {
    "sd15 v": ("sd15", {"prediction_type": "v_prediction", "sd2": True}),
    "sdxl v": ("sdxl", {"prediction_type": "v_prediction"}),
    "flux1 schnell": ("flux1", {"guidance_embeds": False}),
    "cogvideox 5b": ("cogvideox", {"is_5b": True}),
    "sd35 without T5": ("sd3", {"with_t5": False, "qk_norm": "rms_norm", "dual_attention_layers": (0,)}),
}


def make_tiny(name: str, path: str | Path) -> Path:
    """Save the tiny model of a family, or one of VARIANTS, below `path` and return the path."""
    family, options = VARIANTS.get(name, (name, {}))
    return globals()[f"make_tiny_{family}"](path, **options)


def make_tiny_sd15(
    path: str | Path,
    prediction_type: str = "epsilon",
    sd2: bool = False,
    in_channels: int = 4,
    pipeline: str = "StableDiffusionPipeline",
) -> Path:
    """Save a tiny Stable Diffusion pipeline below `path` and return the path.

    prediction_type: "epsilon" or "v_prediction", written to the scheduler's config.
    sd2: the 2.x build: linear projections around attention, heads per level, a text encoder with gelu.
    in_channels: of the U-Net; 9 for inpainting.
    """
    import diffusers
    import torch
    from diffusers import DDIMScheduler, UNet2DConditionModel

    torch.manual_seed(SEED)
    tokenizer = clip_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=in_channels,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=2,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=(2, 4) if sd2 else 4,
        use_linear_projection=sd2,
    )
    made = getattr(diffusers, pipeline)(
        unet=unet,
        vae=tiny_vae(scaling_factor=0.18215),
        text_encoder=tiny_clip(tokenizer, hidden_act="gelu" if sd2 else "quick_gelu"),
        tokenizer=tokenizer,
        scheduler=DDIMScheduler(
            **SD_BETAS, prediction_type=prediction_type, clip_sample=False, set_alpha_to_one=False, steps_offset=1
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return randomize_and_save(made, path)


def make_tiny_sd15_inpaint(path: str | Path) -> Path:
    """Save a tiny Stable Diffusion pipeline for inpainting below `path` and return the path."""
    return make_tiny_sd15(path, in_channels=9, pipeline="StableDiffusionInpaintPipeline")


def make_tiny_sdxl(
    path: str | Path,
    prediction_type: str = "epsilon",
    in_channels: int = 4,
    pipeline: str = "StableDiffusionXLPipeline",
) -> Path:
    """Save a tiny Stable Diffusion XL pipeline below `path` and return the path.

    Its U-Net has the levels and layers of the real one, because kohya's format numbers the blocks of that one. The
    second text encoder is wider than the first: diffusers tells those of a single file apart by it.
    prediction_type: "epsilon" or "v_prediction", written to the scheduler's config.
    in_channels: of the U-Net; 9 for inpainting.
    """
    import diffusers
    import torch
    from diffusers import EulerDiscreteScheduler, UNet2DConditionModel

    torch.manual_seed(SEED)
    clip_1, clip_2 = clip_tokenizer(), clip_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=in_channels,
        out_channels=4,
        block_out_channels=(8, 8, 16),
        layers_per_block=2,
        norm_num_groups=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 1, 2),
        cross_attention_dim=32 + WIDER,
        attention_head_dim=(2, 2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + WIDER,
    )
    made = getattr(diffusers, pipeline)(
        unet=unet,
        vae=tiny_vae(scaling_factor=0.13025),
        text_encoder=tiny_clip(clip_1),
        tokenizer=clip_1,
        text_encoder_2=tiny_clip(clip_2, hidden_act="gelu", projected=True, width=WIDER),
        tokenizer_2=clip_2,
        scheduler=EulerDiscreteScheduler(
            **SD_BETAS, prediction_type=prediction_type, timestep_spacing="leading", steps_offset=1
        ),
        add_watermarker=False,
    )
    return randomize_and_save(made, path)


def make_tiny_sdxl_inpaint(path: str | Path) -> Path:
    """Save a tiny Stable Diffusion XL pipeline for inpainting below `path` and return the path."""
    return make_tiny_sdxl(path, in_channels=9, pipeline="StableDiffusionXLInpaintPipeline")


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


def make_tiny_sd3(path: str | Path, with_t5: bool = True, **transformer_config) -> Path:
    """Save a tiny Stable Diffusion 3 pipeline (two CLIPs and, if wanted, a T5) below `path` and return the path.

    transformer_config: what differs from 3.0, such as `qk_norm` and `dual_attention_layers` of 3.5.
    """
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline

    torch.manual_seed(SEED)
    clip_1, clip_2, t5 = clip_tokenizer(), clip_tokenizer(), t5_tokenizer()
    transformer = SD3Transformer2DModel(
        sample_size=32,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=32 + WIDER,  # both CLIPs side by side, and the width of the T5
        pooled_projection_dim=32 + WIDER,
        pos_embed_max_size=32,
        **transformer_config,
    )
    text_encoder = tiny_clip(clip_1, projected=True)
    text_encoder.text_projection.weight.data = torch.eye(32)  # as in the released model
    pipeline = StableDiffusion3Pipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=1.5305, shift_factor=0.0609, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=text_encoder,
        tokenizer=clip_1,
        text_encoder_2=tiny_clip(clip_2, hidden_act="gelu", projected=True, width=WIDER),
        tokenizer_2=clip_2,
        text_encoder_3=tiny_t5(t5, width=32 + WIDER) if with_t5 else None,
        tokenizer_3=t5 if with_t5 else None,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_flux1(
    path: str | Path, guidance_embeds: bool = True, pipeline: str = "FluxPipeline", in_channels: int = 16
) -> Path:
    """Save a tiny FLUX.1 pipeline below `path` and return the path. guidance_embeds: as dev has; schnell has none.

    in_channels: of the transformer, for each token.
    """
    import diffusers
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel

    torch.manual_seed(SEED)
    clip, t5 = clip_tokenizer(), t5_tokenizer()
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=in_channels,
        out_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        guidance_embeds=guidance_embeds,
        axes_dims_rope=(4, 4, 8),
    )
    made = getattr(diffusers, pipeline)(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=guidance_embeds),
        text_encoder=tiny_clip(clip),
        tokenizer=clip,
        text_encoder_2=tiny_t5(t5, width=32),
        tokenizer_2=t5,
    )
    return randomize_and_save(made, path)


def make_tiny_flux1_kontext(path: str | Path) -> Path:
    """Save a tiny FLUX.1 Kontext pipeline below `path` and return the path."""
    return make_tiny_flux1(path, pipeline="FluxKontextPipeline")


def make_tiny_flux1_fill(path: str | Path) -> Path:
    """Save a tiny FLUX.1 Fill pipeline below `path` and return the path."""
    of_mask = 4 * PIXELS_PER_LATENT**2
    return make_tiny_flux1(path, pipeline="FluxFillPipeline", in_channels=16 + 16 + of_mask)


def make_tiny_flux1_control(path: str | Path) -> Path:
    """Save a tiny FLUX.1 Canny pipeline below `path` and return the path: the control image in 16 more channels."""
    return make_tiny_flux1(path, pipeline="FluxControlPipeline", in_channels=16 + 16)


def make_tiny_sana(path: str | Path) -> Path:
    """Save a tiny Sana pipeline below `path` and return the path."""
    from diffusers import DPMSolverMultistepScheduler

    flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    return _save_tiny_sana(path, "SanaPipeline", DPMSolverMultistepScheduler(**flow))


def make_tiny_sana_sprint(path: str | Path) -> Path:
    """Save a tiny SANA-Sprint pipeline below `path` and return the path."""
    from diffusers import SCMScheduler

    norms = {"guidance_embeds": True, "qk_norm": "rms_norm_across_heads"}
    return _save_tiny_sana(path, "SanaSprintPipeline", SCMScheduler(), **norms)


def _save_tiny_sana(path: str | Path, pipeline_class: str, scheduler, **config) -> Path:
    import diffusers
    import torch
    from diffusers import AutoencoderDC, SanaTransformer2DModel

    from modules.families.sana import SANA

    torch.manual_seed(SEED)
    text_encoder, tokenizer = _instructed_gemma(SANA)
    transformer = SanaTransformer2DModel(
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_attention_heads=2,
        attention_head_dim=4,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=8,
        sample_size=32,
        **config,
    )
    blocks = {
        f"{half}_{name}": value
        for half in ("encoder", "decoder")
        for name, value in {
            "block_types": ("ResBlock", "EfficientViTBlock"),
            "block_out_channels": (8, 8),
            "qkv_multiscales": ((), (5,)),
            "layers_per_block": (1, 1),
        }.items()
    }
    pipeline = getattr(diffusers, pipeline_class)(
        transformer=transformer,
        vae=AutoencoderDC(
            latent_channels=4,
            attention_head_dim=2,
            downsample_block_type="conv",
            upsample_block_type="interpolate",
            scaling_factor=0.41407,
            **blocks,
        ),
        scheduler=scheduler,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_sana_video(path: str | Path) -> Path:
    """Save a tiny SANA-Video pipeline below `path` and return the path."""
    import torch
    from diffusers import (
        AutoencoderKLWan,
        FlowMatchEulerDiscreteScheduler,
        SanaVideoPipeline,
        SanaVideoTransformer3DModel,
    )

    from modules.families.sana_video import SANA_VIDEO

    torch.manual_seed(SEED)
    text_encoder, tokenizer = _instructed_gemma(SANA_VIDEO)
    transformer = SanaVideoTransformer3DModel(
        in_channels=16,
        out_channels=16,
        num_attention_heads=2,
        attention_head_dim=12,
        num_layers=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=12,
        cross_attention_dim=24,
        caption_channels=8,
        sample_size=8,
        rope_max_seq_len=32,
    )
    pipeline = SanaVideoPipeline(
        transformer=transformer,
        vae=AutoencoderKLWan(**_tiny_wan_vae(16)),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=8.0),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)


def _instructed_gemma(family) -> tuple:
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


def make_tiny_pixart_sigma(path: str | Path) -> Path:
    """Save a tiny PixArt-Sigma pipeline below `path` and return the path. Half of its output is the variance."""
    import torch
    from diffusers import DPMSolverMultistepScheduler, PixArtSigmaPipeline, PixArtTransformer2DModel

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformer = PixArtTransformer2DModel(
        sample_size=32,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        num_attention_heads=4,
        attention_head_dim=8,
        cross_attention_dim=32,
        caption_channels=32,
    )
    pipeline = PixArtSigmaPipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=0.13025),
        scheduler=DPMSolverMultistepScheduler(beta_start=0.0001, beta_end=0.02, beta_schedule="linear"),
        text_encoder=tiny_t5(tokenizer, width=32),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_pixart_alpha(path: str | Path) -> Path:
    """Save a tiny PixArt-alpha pipeline below `path` and return the path. It takes sizes, as that for 1024 pixels."""
    import torch
    from diffusers import DPMSolverMultistepScheduler, PixArtAlphaPipeline, PixArtTransformer2DModel

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformer = PixArtTransformer2DModel(
        sample_size=128,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        num_attention_heads=4,
        attention_head_dim=12,  # the size takes thirds of the width
        cross_attention_dim=48,
        caption_channels=32,
    )
    pipeline = PixArtAlphaPipeline(
        transformer=transformer,
        vae=tiny_vae(4, scaling_factor=0.18215),  # the sizes are of 8 pixels a cell
        scheduler=DPMSolverMultistepScheduler(beta_start=0.0001, beta_end=0.02, beta_schedule="linear"),
        text_encoder=tiny_t5(tokenizer, width=32),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_zimage(path: str | Path) -> Path:
    """Save a tiny Z-Image pipeline below `path` and return the path."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
    from transformers import Qwen3Config, Qwen3Model

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    text_encoder = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
    )
    transformer = ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=16,
        axes_dims=[8, 4, 4],
        axes_lens=[1024, 64, 64],
    )
    with torch.no_grad():  # made without values, and so with any
        transformer.x_pad_token.fill_(1.0)
        transformer.cap_pad_token.fill_(1.0)
    pipeline = ZImagePipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=Qwen3Model(text_encoder),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_wan21(path: str | Path) -> Path:
    """Save a tiny Wan 2.1 pipeline below `path` and return the path."""
    return _save_tiny_wan(path)


def make_tiny_skyreels_v2(path: str | Path) -> Path:
    """Save a tiny SkyReels-V2 pipeline below `path` and return the path."""
    return _save_tiny_wan(path, pipeline="SkyReelsV2Pipeline", transformer="SkyReelsV2Transformer3DModel")


def make_tiny_skyreels_v2_i2v(path: str | Path) -> Path:
    """Save a tiny SkyReels-V2 I2V pipeline below `path` and return the path: as Wan 2.1 I2V."""
    return _save_tiny_wan(
        path,
        further_channels=20,
        pipeline="SkyReelsV2ImageToVideoPipeline",
        transformer="SkyReelsV2Transformer3DModel",
        seen={"image_dim": 16, "added_kv_proj_dim": 24},
    )


def make_tiny_wan22_5b(path: str | Path) -> Path:
    """Save a tiny Wan 2.2 TI2V-5B pipeline below `path` and return the path: 16 pixels a cell, timesteps by token."""
    return _save_tiny_wan(path, channels=48, vae=WAN_22_VAE, expand_timesteps=True)


def make_tiny_lucy_edit(path: str | Path) -> Path:
    """Save a tiny Lucy-Edit pipeline below `path` and return the path: the source clip in as many further channels."""
    return _save_tiny_wan(
        path, channels=48, vae=WAN_22_VAE, further_channels=48, pipeline="LucyEditPipeline", expand_timesteps=True
    )


def make_tiny_wan21_vace(path: str | Path) -> Path:
    """Save a tiny Wan 2.1 VACE pipeline below `path` and return the path: one block beside the first of two."""
    return _save_tiny_wan(
        path,
        pipeline="WanVACEPipeline",
        transformer="WanVACETransformer3DModel",
        seen={"vace_layers": [0], "vace_in_channels": 96},
    )


def make_tiny_wan22_a14b(path: str | Path, heads: int = 2) -> Path:
    """Save a tiny Wan 2.2 A14B pipeline below `path` and return the path: two experts, each with half of the steps."""
    return _save_tiny_wan(path, experts=2, heads=heads, boundary_ratio=0.5)


def make_tiny_wan22_i2v_a14b(path: str | Path) -> Path:
    """Save a tiny Wan 2.2 I2V A14B pipeline below `path` and return the path: the first frame in 20 more channels."""
    return _save_tiny_wan(path, experts=2, further_channels=20, pipeline="WanImageToVideoPipeline", boundary_ratio=0.5)


def make_tiny_wan21_i2v(path: str | Path) -> Path:
    """Save a tiny Wan 2.1 I2V pipeline below `path` and return the path: an image encoder sees the first frame, too."""
    return _save_tiny_wan(
        path, further_channels=20, pipeline="WanImageToVideoPipeline", seen={"image_dim": 16, "added_kv_proj_dim": 24}
    )


def make_tiny_wan21_flf2v(path: str | Path) -> Path:
    """Save a tiny Wan 2.1 FLF2V pipeline below `path` and return the path: the image encoder sees two frames."""
    seen = {"image_dim": 16, "added_kv_proj_dim": 24, "pos_embed_seq_len": 10}  # 4 patches and one more of each
    return _save_tiny_wan(path, further_channels=20, pipeline="WanImageToVideoPipeline", seen=seen)


def make_tiny_chronoedit(path: str | Path) -> Path:
    """Save a tiny ChronoEdit pipeline below `path` and return the path."""
    return _save_tiny_wan(
        path,
        further_channels=20,
        pipeline="ChronoEditPipeline",
        transformer="ChronoEditTransformer3DModel",
        seen={"image_dim": 16, "added_kv_proj_dim": 24},
    )


def _save_tiny_wan(
    path: str | Path,
    channels: int = 16,
    experts: int = 1,
    vae: dict | None = None,
    further_channels: int = 0,
    pipeline: str = "WanPipeline",
    transformer: str = "WanTransformer3DModel",
    heads: int = 2,
    seen: dict | None = None,
    **options,
) -> Path:
    """seen: how the transformer takes what it sees beside the latents, such as the 16 features of an image encoder."""
    import diffusers
    import torch
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformers = [
        getattr(diffusers, transformer)(
            num_attention_heads=heads,
            attention_head_dim=12,
            in_channels=channels + further_channels,
            out_channels=channels,
            text_dim=32,
            freq_dim=32,
            ffn_dim=32,
            num_layers=2,
            rope_max_seq_len=32,
            **(seen or {}),
        )
        for _ in range(experts)
    ]
    if experts > 1:
        options["transformer_2"] = transformers[1]
    if seen and "image_dim" in seen:
        options |= {"image_encoder": tiny_clip_vision(), "image_processor": tiny_clip_processor()}
    made = getattr(diffusers, pipeline)(
        transformer=transformers[0],
        vae=AutoencoderKLWan(**_tiny_wan_vae(channels), **(vae or {})),
        scheduler=UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
        text_encoder=tiny_umt5(tokenizer, width=32),
        tokenizer=tokenizer,
        **options,
    )
    return randomize_and_save(made, path)


def _tiny_wan_vae(channels: int) -> dict:
    return {
        "base_dim": 4,
        "dim_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        # unlike each other: mixed up channels would show
        "latents_mean": [0.1 * channel for channel in range(channels)],
        "latents_std": [1.0 + 0.1 * channel for channel in range(channels)],
    }


def make_tiny_cogvideox(path: str | Path, is_5b: bool = False) -> Path:
    """Save a tiny CogVideoX pipeline below `path` and return the path.

    is_5b: embed positions and noise latents as 5B does, not 2B.
    """
    return _save_tiny_cogvideox(path, is_5b)


def make_tiny_cogvideox_fun(path: str | Path) -> Path:
    """Save a tiny CogVideoX-Fun pipeline below `path` and return the path: 2B, the control clip in 4 more channels."""
    return _save_tiny_cogvideox(path, is_5b=False, pipeline="CogVideoXFunControlPipeline", in_channels=8)


def make_tiny_cogvideox15(path: str | Path) -> Path:
    """Save a tiny CogVideoX 1.5 pipeline below `path` and return the path: two latent frames a token."""
    return _save_tiny_cogvideox(path, patch_size_t=2, patch_bias=False)


def make_tiny_cogvideox15_i2v(path: str | Path) -> Path:
    """Save a tiny CogVideoX 1.5 I2V pipeline below `path` and return the path: the first frame in 4 more channels."""
    return _save_tiny_cogvideox(
        path,
        pipeline="CogVideoXImageToVideoPipeline",
        vae={"invert_scale_latents": True},
        in_channels=8,
        patch_size_t=2,
        patch_bias=False,
        ofs_embed_dim=16,
    )


def _save_tiny_cogvideox(
    path: str | Path, is_5b: bool = True, pipeline: str = "CogVideoXPipeline", vae: dict | None = None, **config
) -> Path:
    import diffusers
    import torch
    from diffusers import (
        AutoencoderKLCogVideoX,
        CogVideoXDDIMScheduler,
        CogVideoXDPMScheduler,
        CogVideoXTransformer3DModel,
        DDIMScheduler,
    )

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformer = CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        out_channels=4,
        time_embed_dim=16,
        text_embed_dim=32,
        num_layers=2,
        sample_width=8,
        sample_height=8 if "patch_size_t" in config else 6,  # 1.5 has no positions beyond
        use_rotary_positional_embeddings=is_5b,
        **{"in_channels": 4, **config},
    )
    autoencoder = AutoencoderKLCogVideoX(
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        **(vae or {}),
    )
    kind: type = CogVideoXDPMScheduler if is_5b else CogVideoXDDIMScheduler
    schedule: dict = {"snr_shift_scale": 1.0 if is_5b else 3.0}
    if pipeline == "CogVideoXFunControlPipeline":  # as Chorus saves it
        kind, schedule = DDIMScheduler, {**SD_BETAS, "clip_sample": False}
    made = getattr(diffusers, pipeline)(
        transformer=transformer,
        vae=autoencoder,
        scheduler=kind(
            prediction_type="v_prediction", timestep_spacing="trailing", rescale_betas_zero_snr=True, **schedule
        ),
        text_encoder=tiny_t5(tokenizer, width=32),
        tokenizer=tokenizer,
    )
    return randomize_and_save(made, path)


def make_tiny_mochi(path: str | Path) -> Path:
    """Save a tiny Mochi pipeline below `path` and return the path. Its VAE has groups of 32 channels for norms."""
    import torch
    from diffusers import AutoencoderKLMochi, FlowMatchEulerDiscreteScheduler, MochiPipeline, MochiTransformer3DModel

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer(max_length=256)
    transformer = MochiTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        pooled_projection_dim=16,
        text_embed_dim=32,
        time_embed_dim=16,
    )
    pipeline = MochiPipeline(
        transformer=transformer,
        vae=AutoencoderKLMochi(
            encoder_block_out_channels=(32,) * 4,
            decoder_block_out_channels=(32,) * 4,
            layers_per_block=(1,) * 5,
            scaling_factor=1.5,
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(invert_sigmas=True),
        text_encoder=tiny_t5(tokenizer, width=32),
        tokenizer=tokenizer,
        force_zeros_for_empty_prompt=True,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_hunyuan_video(path: str | Path) -> Path:
    """Save a tiny HunyuanVideo pipeline below `path` and return the path."""
    import torch
    from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import DEFAULT_PROMPT_TEMPLATE
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    tokenizer.padding_side = "right"
    # longer words of the instruction as one token: it has to be of 95 tokens or a few more
    instruction = DEFAULT_PROMPT_TEMPLATE["template"].split()
    tokenizer.add_tokens(sorted({f" {word}" for word in instruction if len(word) > 2}))
    text_encoder = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        pad_token_id=tokenizer.pad_token_id,
    )
    return _save_tiny_hunyuan_video(path, "HunyuanVideoPipeline", LlamaModel(text_encoder), tokenizer)


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
    return _save_tiny_hunyuan_video(
        path,
        "HunyuanVideoImageToVideoPipeline",
        LlavaForConditionalGeneration(text_encoder),
        tokenizer,
        image_condition_type="token_replace",
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 48}, crop_size={"height": 48, "width": 48}),
    )


def _save_tiny_hunyuan_video(
    path: str | Path, pipeline: str, text_encoder, tokenizer, image_condition_type: str | None = None, **parts
) -> Path:
    import diffusers
    from diffusers import AutoencoderKLHunyuanVideo, FlowMatchEulerDiscreteScheduler, HunyuanVideoTransformer3DModel

    clip = clip_tokenizer()
    transformer = HunyuanVideoTransformer3DModel(
        image_condition_type=image_condition_type,
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=10,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        text_embed_dim=16,
        pooled_projection_dim=32,
        rope_axes_dim=(2, 4, 4),
    )
    vae = AutoencoderKLHunyuanVideo(
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        norm_num_groups=4,
    )
    made = getattr(diffusers, pipeline)(
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        transformer=transformer,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder_2=tiny_clip(clip),
        tokenizer_2=clip,
        **parts,
    )
    return randomize_and_save(made, path)


def make_tiny_hunyuan_video15(path: str | Path) -> Path:
    """Save a tiny HunyuanVideo 1.5 pipeline below `path` and return the path."""
    return _save_tiny_hunyuan_video15(path, "HunyuanVideo15Pipeline")


def make_tiny_hunyuan_video15_i2v(path: str | Path) -> Path:
    """Save a tiny HunyuanVideo 1.5 I2V pipeline below `path` and return the path."""
    from transformers import SiglipImageProcessorPil, SiglipVisionConfig, SiglipVisionModel

    vision = SiglipVisionConfig(
        hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8
    )
    return _save_tiny_hunyuan_video15(
        path,
        "HunyuanVideo15ImageToVideoPipeline",
        image_encoder=SiglipVisionModel(vision),
        feature_extractor=SiglipImageProcessorPil(size={"height": 16, "width": 16}),
    )


def _save_tiny_hunyuan_video15(path: str | Path, pipeline: str, **further_parts) -> Path:
    import diffusers
    import torch
    from diffusers import (
        AutoencoderKLHunyuanVideo15,
        ClassifierFreeGuidance,
        FlowMatchEulerDiscreteScheduler,
        HunyuanVideo15Transformer3DModel,
    )
    from transformers import ByT5Tokenizer

    torch.manual_seed(SEED)
    tokenizer, letters = qwen_tokenizer(), ByT5Tokenizer()
    transformer = HunyuanVideo15Transformer3DModel(
        in_channels=9,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=10,
        num_layers=1,
        num_refiner_layers=1,
        text_embed_dim=16,
        text_embed_2_dim=32,
        image_embed_dim=8,
        rope_axes_dim=(2, 4, 4),
    )
    vae = AutoencoderKLHunyuanVideo15(latent_channels=4, block_out_channels=(32, 32, 32, 32, 32), layers_per_block=1)
    made = getattr(diffusers, pipeline)(
        text_encoder=tiny_qwen_text(tokenizer),
        tokenizer=tokenizer,
        transformer=transformer,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder_2=tiny_t5(letters, width=32),
        tokenizer_2=letters,
        guider=ClassifierFreeGuidance(),
        **further_parts,
    )
    return randomize_and_save(made, path)


def make_tiny_ltx_video095(path: str | Path) -> Path:
    """Save a tiny LTX-Video 0.9.5 pipeline below `path` and return the path."""
    return make_tiny_ltx_video(path, "LTXConditionPipeline")


def make_tiny_ltx_video(path: str | Path, pipeline: str = "LTXPipeline") -> Path:
    """Save a tiny LTX-Video pipeline below `path` and return the path: 32 pixels and 8 frames a cell."""
    import diffusers
    import torch
    from diffusers import AutoencoderKLLTXVideo, FlowMatchEulerDiscreteScheduler, LTXVideoTransformer3DModel

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformer = LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=4,
        attention_head_dim=8,
        cross_attention_dim=32,
        num_layers=2,
        caption_channels=32,
    )
    widths, ones = (8, 8, 8, 8), (1, 1, 1, 1, 1)
    vae = AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=widths,
        decoder_block_out_channels=widths,
        layers_per_block=ones,
        decoder_layers_per_block=ones,
    )
    vae.latents_mean.normal_()
    vae.latents_std.uniform_(0.5, 2.0)
    shifts = {"use_dynamic_shifting": True, "shift_terminal": 0.1} if pipeline == "LTXPipeline" else {}
    made = getattr(diffusers, pipeline)(
        transformer=transformer,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(**shifts),
        text_encoder=tiny_t5(tokenizer, width=32),
        tokenizer=tokenizer,
    )
    return randomize_and_save(made, path)


def make_tiny_ltx2(path: str | Path) -> Path:
    """Save a tiny LTX-2 pipeline below `path` and return the path: 32 pixels and 8 frames a cell; sound as it needs."""
    return _save_tiny_ltx2(path, _tiny_gemma_3, {"caption_channels": 8})


def make_tiny_ltx25(path: str | Path) -> Path:
    """Save a tiny LTX-2.5 pipeline below `path` and return the path: as LTX-2, with gates and a text for sound."""
    import torch
    from diffusers.pipelines.ltx2 import LTX2DurationHead

    torch.manual_seed(SEED)
    head = LTX2DurationHead(
        video_cross_attention_dim=24, audio_cross_attention_dim=16, pooler_hidden_dim=8, mlp_hidden_dim=8
    )
    gates = {"gated_attn": True, "audio_gated_attn": True, "cross_attn_mod": True, "audio_cross_attn_mod": True}
    later = {"use_prompt_embeddings": False, "perturbed_attn": True, "ff_bias": False}
    connectors = {
        "video_connector_attention_head_dim": 6,
        "audio_connector_attention_head_dim": 4,
        "per_modality_projections": True,
        "video_hidden_dim": 24,
        "audio_hidden_dim": 16,
        "proj_bias": True,
        "video_gated_attn": True,
        "audio_gated_attn": True,
    }
    transformer = {**gates, **later, "use_keyframes_abs_pos_embedding": True}
    return _save_tiny_ltx2(path, _tiny_gemma_4, transformer, connectors, duration_head=head)


def _save_tiny_ltx2(
    path: str | Path, encoder: Callable[[], tuple], transformer: dict, connectors: dict | None = None, **further
) -> Path:
    import torch
    from diffusers import (
        AutoencoderKLLTX2Audio,
        AutoencoderKLLTX2Video,
        FlowMatchEulerDiscreteScheduler,
        LTX2Pipeline,
        LTX2VideoTransformer3DModel,
    )
    from diffusers.pipelines.ltx2 import LTX2TextConnectors, LTX2Vocoder

    torch.manual_seed(SEED)
    text_encoder, tokenizer = encoder()
    rope = {"rope_double_precision": False, "rope_type": "split"}
    denoiser = LTX2VideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        num_attention_heads=2,
        attention_head_dim=12,
        cross_attention_dim=24,
        audio_in_channels=4,
        audio_out_channels=4,
        audio_num_attention_heads=2,
        audio_attention_head_dim=8,
        audio_cross_attention_dim=16,
        num_layers=2,
        **rope,
        **transformer,
    )
    connector = {
        "num_attention_heads": 4,
        "attention_head_dim": 2,
        "num_layers": 1,
        "num_learnable_registers": 8,
    }
    options = {
        f"{stream}_connector_{name}": value for stream in ("video", "audio") for name, value in connector.items()
    }
    options |= {"caption_channels": 8, "text_proj_in_factor": 3, "connector_rope_base_seq_len": 32, **rope}
    text_connectors = LTX2TextConnectors(**{**options, **(connectors or {})})
    vae = AutoencoderKLLTX2Video(
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        upsample_factor=(1, 1, 1),
        upsample_residual=(False, False, False),
        spatial_compression_ratio=32,
        temporal_compression_ratio=8,
        decoder_causal=False,
    )
    audio_vae = AutoencoderKLLTX2Audio(
        base_channels=4, ch_mult=(1, 1, 1), num_res_blocks=1, resolution=32, latent_channels=2, mel_bins=8
    )
    for autoencoder in (vae, audio_vae):
        autoencoder.latents_mean.normal_()
        autoencoder.latents_std.uniform_(0.5, 2.0)
    pipeline = LTX2Pipeline(
        transformer=denoiser,
        connectors=text_connectors,
        vae=vae,
        audio_vae=audio_vae,
        vocoder=LTX2Vocoder(
            in_channels=16,
            hidden_channels=32,
            upsample_kernel_sizes=[15, 16],
            upsample_factors=[15, 16],
            resnet_kernel_sizes=[3],
            resnet_dilations=[[1, 3, 5]],
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True,
            base_shift=0.95,
            max_shift=2.05,
            base_image_seq_len=1024,
            max_image_seq_len=4096,
            shift_terminal=0.1,
        ),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        **further,
    )
    return randomize_and_save(pipeline, path)


def _tiny_gemma_3() -> tuple:
    """A tiny Gemma 3 of the kind that also sees images, and its tokenizer."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    tokenizer = gemma_tokenizer()
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": 64,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=1, attn_implementation="eager")
    return Gemma3ForConditionalGeneration(config), tokenizer


def _tiny_gemma_4() -> tuple:
    """A tiny Gemma 4 of the kind without towers for images and sound, and its tokenizer."""
    from transformers import Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration

    tokenizer = gemma_tokenizer()
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 64,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {"patch_size": 2, "mm_embed_dim": 8, "mm_posemb_size": 8, "output_proj_dims": 8}
    config = Gemma4UnifiedConfig(
        text_config=text, vision_config=vision, audio_config={"audio_embed_dim": 8}, attn_implementation="eager"
    )
    return Gemma4UnifiedForConditionalGeneration(config), tokenizer


def make_tiny_chroma(path: str | Path) -> Path:
    """Save a tiny Chroma pipeline below `path` and return the path."""
    import torch
    from diffusers import ChromaPipeline, ChromaTransformer2DModel, FlowMatchEulerDiscreteScheduler

    torch.manual_seed(SEED)
    t5 = t5_tokenizer()
    transformer = ChromaTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 4, 8),
        approximator_num_channels=16,
        approximator_hidden_dim=32,
        approximator_layers=1,
    )
    pipeline = ChromaPipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=FlowMatchEulerDiscreteScheduler(),
        text_encoder=tiny_t5(t5, width=32),
        tokenizer=t5,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_auraflow(path: str | Path) -> Path:
    """Save a tiny AuraFlow pipeline below `path` and return the path."""
    import torch
    from diffusers import AuraFlowPipeline, AuraFlowTransformer2DModel, FlowMatchEulerDiscreteScheduler

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformer = AuraFlowTransformer2DModel(
        sample_size=32,
        patch_size=2,
        in_channels=4,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=32,
        out_channels=4,
        pos_embed_max_size=256,
    )
    for name, parameter in transformer.named_parameters():
        if "norm" in name:  # gates: nearly closed when they are made, so that no text would show
            parameter.data *= 4
    pipeline = AuraFlowPipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=0.13025),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.73),
        text_encoder=tiny_umt5(tokenizer, width=32),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_cogview3_plus(path: str | Path) -> Path:
    """Save a tiny CogView3-Plus pipeline below `path` and return the path."""
    import torch
    from diffusers import CogVideoXDDIMScheduler, CogView3PlusPipeline, CogView3PlusTransformer2DModel

    torch.manual_seed(SEED)
    tokenizer = t5_tokenizer()
    transformer = CogView3PlusTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        text_embed_dim=32,
        time_embed_dim=8,
        condition_dim=4,
        pos_embed_max_size=32,
        sample_size=16,
    )
    pipeline = CogView3PlusPipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=1.0, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=CogVideoXDDIMScheduler(
            prediction_type="v_prediction",
            rescale_betas_zero_snr=True,
            snr_shift_scale=4.0,
            timestep_spacing="trailing",
        ),
        text_encoder=tiny_t5(tokenizer, width=32),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_cogview4_control(path: str | Path) -> Path:
    """Save a tiny CogView4 Control pipeline below `path` and return the path: the control image in 4 more channels."""
    return make_tiny_cogview4(path, "CogView4ControlPipeline", in_channels=8)


def make_tiny_cogview4(path: str | Path, pipeline: str = "CogView4Pipeline", in_channels: int = 4) -> Path:
    """Save a tiny CogView4 pipeline below `path` and return the path."""
    import diffusers
    import torch
    from diffusers import CogView4Transformer2DModel, FlowMatchEulerDiscreteScheduler
    from tokenizers.processors import TemplateProcessing
    from transformers import GlmConfig, GlmModel, PreTrainedTokenizerFast

    torch.manual_seed(SEED)
    tokens = gemma_tokenizer()
    backend = tokens.backend_tokenizer  # begins each text with a token, so that none is empty
    backend.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", tokens.bos_token_id)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", padding_side="left")
    text_encoder = GlmConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformer = CogView4Transformer2DModel(
        in_channels=in_channels,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        text_embed_dim=16,
        time_embed_dim=8,
        condition_dim=4,
        rope_axes_dim=(8, 8),
    )
    made = getattr(diffusers, pipeline)(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=1.0, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=FlowMatchEulerDiscreteScheduler(
            base_shift=0.25, max_shift=0.75, use_dynamic_shifting=True, time_shift_type="linear"
        ),
        text_encoder=GlmModel(text_encoder),
        tokenizer=tokenizer,
    )
    return randomize_and_save(made, path)


def make_tiny_ovis_image(path: str | Path) -> Path:
    """Save a tiny Ovis-Image pipeline below `path` and return the path."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, OvisImagePipeline, OvisImageTransformer2DModel
    from transformers import Qwen3Config, Qwen3Model

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    text_encoder = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
    )
    transformer = OvisImageTransformer2DModel(
        in_channels=16,
        out_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(4, 4, 8),
    )
    pipeline = OvisImagePipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=Qwen3Model(text_encoder),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_ernie_image(path: str | Path) -> Path:
    """Save a tiny ERNIE-Image pipeline below `path` and return the path."""
    import torch
    from diffusers import ErnieImagePipeline, ErnieImageTransformer2DModel, FlowMatchEulerDiscreteScheduler
    from transformers import Mistral3Config, Mistral3Model

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    layers = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    text = {"vocab_size": len(tokenizer), "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8, **layers}
    config = Mistral3Config(
        text_config={"model_type": "mistral", **text},
        vision_config={"model_type": "pixtral", "num_hidden_layers": 1, "head_dim": 8, **layers},
    )
    transformer = ErnieImageTransformer2DModel(
        hidden_size=32,
        num_attention_heads=2,
        num_layers=2,
        ffn_hidden_size=32,
        in_channels=16,
        out_channels=16,
        text_in_dim=16,
        rope_axes_dim=(4, 6, 6),
    )
    pipeline = ErnieImagePipeline(
        transformer=transformer,
        vae=tiny_flux2_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=Mistral3Model(config),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_flux2_dev(path: str | Path) -> Path:
    """Save a tiny FLUX.2 dev pipeline below `path` and return the path."""
    import torch
    from diffusers import Flux2Pipeline
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    torch.manual_seed(SEED)
    # The real one has a PixtralProcessor, which adds images to the same template.
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{% for part in message['content'] %}[{{ part['text'] }}]{% endfor %}{% endfor %}"
    )
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 31,  # the denoiser reads the outputs of the 10th, 20th and 30th
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 4,
    }
    vision = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = Mistral3Config(
        text_config={"model_type": "mistral", **text}, vision_config={"model_type": "pixtral", **vision}
    )
    pipeline = Flux2Pipeline(
        text_encoder=Mistral3ForConditionalGeneration(config),
        tokenizer=tokenizer,
        **_tiny_flux2_parts(guidance_embeds=True),
    )
    return randomize_and_save(pipeline, path)


def make_tiny_flux2_klein(path: str | Path, pipeline: str = "Flux2KleinPipeline") -> Path:
    """Save a tiny FLUX.2 klein pipeline below `path` and return the path. pipeline: a class of diffusers."""
    import diffusers
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=28,  # the denoiser reads the outputs of the 9th, 18th and 27th
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=4,
        max_position_embeddings=512,
    )
    made = getattr(diffusers, pipeline)(
        text_encoder=Qwen3ForCausalLM(config),
        tokenizer=tokenizer,
        **_tiny_flux2_parts(guidance_embeds=False),
    )
    return randomize_and_save(made, path)


def make_tiny_flux2_klein_kv(path: str | Path) -> Path:
    """Save a tiny FLUX.2 klein KV pipeline below `path` and return the path."""
    return make_tiny_flux2_klein(path, "Flux2KleinKVPipeline")


def _tiny_flux2_parts(guidance_embeds: bool) -> dict:
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


def make_tiny_flux3(path: str | Path) -> Path:
    """Save a tiny FLUX.3 pipeline below `path`, as diffusers' modular pipelines are saved, and return the path."""
    import diffusers
    import torch
    from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer(VISION_TOKENS)
    pipeline = diffusers.Flux3AutoBlocks().init_pipeline()
    pipeline.update_components(
        text_encoder=Qwen3VLForConditionalGeneration(tiny_qwen3_vl_config(tokenizer, num_layers=33)),
        tokenizer=qwen_processor(tokenizer, Qwen3VLProcessor, patch_size=16, max_pixels=256**2),
        transformer=diffusers.Flux3Transformer2DModel(
            in_channels=16,
            cond_in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=8 * 16,
            timestep_channels=16,
            axes_dims_rope=(4, 4, 4, 4),
        ),
        vae=tiny_flux2_vae(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=6.93),
    )
    return randomize_and_save(pipeline, path)


def make_tiny_motif_video(path: str | Path) -> Path:
    """Save a tiny Motif-Video pipeline below `path` and return the path: its text encoder can see a first frame."""
    import torch
    from diffusers import (
        AutoencoderKLWan,
        ClassifierFreeGuidance,
        FlowMatchEulerDiscreteScheduler,
        MotifVideoPipeline,
        MotifVideoTransformer3DModel,
    )
    from transformers import SiglipImageProcessorPil, T5Gemma2Encoder, T5Gemma2EncoderConfig

    torch.manual_seed(SEED)
    tokenizer = gemma_tokenizer()
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {
        "vocab_size": len(tokenizer),
        "num_key_value_heads": 1,
        "head_dim": 8,
        "dropout_rate": 0.0,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 8}
    text_encoder = T5Gemma2EncoderConfig(text_config={**small, **text}, vision_config={**small, **vision})
    transformer = MotifVideoTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        num_layers=1,
        num_single_layers=2,
        num_decoder_layers=1,
        text_embed_dim=16,
        image_embed_dim=16,
        rope_axes_dim=(4, 4, 4),
        enable_text_cross_attention_dual=True,
    )
    for name, parameter in transformer.named_parameters():
        if "norm" in name and name.endswith("linear.weight"):  # of gates: else texts change next to nothing
            parameter.data.mul_(8)
    pipeline = MotifVideoPipeline(
        transformer=transformer,
        vae=AutoencoderKLWan(**_tiny_wan_vae(16)),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder=T5Gemma2Encoder(text_encoder),
        tokenizer=tokenizer,
        guider=ClassifierFreeGuidance(),
        feature_extractor=SiglipImageProcessorPil(size={"height": 16, "width": 16}),
    )
    return randomize_and_save(pipeline, path)


def make_tiny_minimax_h3(path: str | Path) -> Path:
    """Save a tiny MiniMax H3 pipeline below `path`, as diffusers' modular pipelines are saved, and return the path.

    Without the second transformer, for references.
    """
    import diffusers
    import torch
    from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer(VISION_TOKENS)
    vae = diffusers.AutoencoderKLMiniMaxH3(
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        norm_num_groups=2,
        decoder_num_layers=1,
        decoder_num_attention_heads=2,
        decoder_attention_head_dim=16,
        # unlike each other: mixed up channels would show
        latents_mean=(0.1, -0.2, 0.3, 0.0),
        latents_std=(1.5, 0.7, 1.1, 0.9),
    )
    audio_vae = diffusers.AutoencoderKLMiniMaxH3Audio(
        encoder_dim=2,
        latent_dim=16,
        latent_channels=4,
        num_attention_heads=2,
        decoder_dim=128,
        resblock_kernel_sizes=(3,),
        resblock_dilation_sizes=((1,),),
        latents_mean=[0.2, 0.1, -0.3, 0.0],
        latents_std=[0.8, 1.2, 1.0, 0.6],
    )
    pipeline = diffusers.MiniMaxH3Blocks().init_pipeline()
    pipeline.update_components(
        text_encoder=Qwen3VLForConditionalGeneration(tiny_qwen3_vl_config(tokenizer, num_layers=51)),
        tokenizer=tokenizer,
        processor=qwen_processor(tokenizer, Qwen3VLProcessor, patch_size=16, max_pixels=256**2),
        transformer=diffusers.MiniMaxH3Transformer3DModel(
            num_attention_heads=2,
            attention_head_dim=16,
            hidden_size=24,
            num_layers=2,
            num_refiner_layers=1,
            ffn_dim=32,
            in_channels=4,
            audio_in_channels=4,
            text_dim=16,
            freq_dim=16,
            time_embed_hidden_dim=24,
            time_embed_dim=16,
            rope_freq_dim=2,
        ),
        vae=vae,
        audio_vae=audio_vae,
        scheduler=diffusers.MiniMaxH3Scheduler(shift=12.0),
        audio_scheduler=diffusers.MiniMaxH3Scheduler(shift=3.0),
    )
    return randomize_and_save(pipeline, path)


def make_tiny_longcat_image(path: str | Path) -> Path:
    """Save a tiny LongCat-Image pipeline below `path` and return the path."""
    # the processor rewrites prompts, which is never asked of it
    return _save_tiny_longcat(path, "LongCatImagePipeline", qwen_tokenizer(), None)


def make_tiny_longcat_image_edit(path: str | Path) -> Path:
    """Save a tiny LongCat-Image-Edit pipeline below `path` and return the path."""
    from transformers import Qwen2VLProcessor

    tokenizer = qwen_tokenizer(VISION_TOKENS)
    processor = qwen_processor(tokenizer, Qwen2VLProcessor, patch_size=14, max_pixels=56 * 84)
    return _save_tiny_longcat(path, "LongCatImageEditPipeline", tokenizer, processor)


def _save_tiny_longcat(path: str | Path, pipeline_class: str, tokenizer, processor) -> Path:
    import diffusers
    import torch

    torch.manual_seed(SEED)
    transformer = diffusers.LongCatImageTransformer2DModel(
        in_channels=64,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=(4, 4, 8),
    )
    vae = {"scaling_factor": 0.3611, "shift_factor": 0.1159, "use_quant_conv": False, "use_post_quant_conv": False}
    pipeline = getattr(diffusers, pipeline_class)(
        transformer=transformer,
        vae=tiny_vae(latent_channels=16, **vae),  # the pipeline takes 16 channels for granted
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=tiny_qwen_vl(tokenizer),
        tokenizer=tokenizer,
        text_processor=processor,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_hunyuan_image(path: str | Path) -> Path:
    """Save a tiny HunyuanImage 2.1 pipeline below `path` and return the path. Its autoencoder has 8 pixels a cell."""
    import torch
    from diffusers import (
        AdaptiveProjectedMixGuidance,
        AutoencoderKLHunyuanImage,
        FlowMatchEulerDiscreteScheduler,
        HunyuanImagePipeline,
        HunyuanImageTransformer2DModel,
    )
    from transformers import ByT5Tokenizer

    torch.manual_seed(SEED)
    tokenizer, letters = qwen_tokenizer(), ByT5Tokenizer()
    transformer = HunyuanImageTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        text_embed_dim=16,
        text_embed_2_dim=32,
        rope_axes_dim=(8, 8),
    )
    vae = AutoencoderKLHunyuanImage(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        block_out_channels=(32, 32, 32, 32),
        layers_per_block=1,
        spatial_compression_ratio=8,
        sample_size=32,
        scaling_factor=0.75289,
    )
    pipeline = HunyuanImagePipeline(
        transformer=transformer,
        vae=vae,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0),
        text_encoder=tiny_qwen_vl(tokenizer, num_layers=4),  # the last two are not used
        tokenizer=tokenizer,
        text_encoder_2=tiny_t5(letters, width=32),
        tokenizer_2=letters,
        guider=AdaptiveProjectedMixGuidance(),
        ocr_guider=AdaptiveProjectedMixGuidance(adaptive_projected_guidance_start_step=38),
    )
    return randomize_and_save(pipeline, path)


def make_tiny_hidream(path: str | Path) -> Path:
    """Save a tiny HiDream-I1 pipeline below `path` and return the path. Its CLIPs take 128 tokens, as the real ones."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, HiDreamImagePipeline, HiDreamImageTransformer2DModel
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    clip, t5, llama = clip_tokenizer(128), t5_tokenizer(), qwen_tokenizer()
    text_encoder = LlamaConfig(
        vocab_size=len(llama),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=llama.eos_token_id,
    )
    transformer = HiDreamImageTransformer2DModel(
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_channels=[32, 16],
        text_emb_dim=32 + WIDER,
        axes_dims_rope=(4, 2, 2),
        max_resolution=(48, 48),
        llama_layers=(0, 1),
    )
    pipeline = HiDreamImagePipeline(
        transformer=transformer,
        vae=tiny_vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=tiny_clip(clip, projected=True, num_tokens=128),
        tokenizer=clip,
        text_encoder_2=tiny_clip(clip, hidden_act="gelu", projected=True, width=WIDER, num_tokens=128),
        tokenizer_2=clip,
        text_encoder_3=tiny_t5(t5, width=32),
        tokenizer_3=t5,
        text_encoder_4=LlamaForCausalLM(text_encoder),
        tokenizer_4=llama,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_kandinsky5_image(path: str | Path) -> Path:
    """Save a tiny Kandinsky 5 pipeline for images below `path` and return the path.

    The real one has a processor of texts and images in place of the tokenizer.
    """
    # the pipeline takes 8 pixels a cell for granted
    vae = {"scaling_factor": 0.3611, "shift_factor": 0.1159, "use_quant_conv": False, "use_post_quant_conv": False}
    return _save_tiny_kandinsky5(path, "Kandinsky5T2IPipeline", tiny_vae(4, **vae), qwen_tokenizer())


def make_tiny_kandinsky5_i2i(path: str | Path) -> Path:
    """Save a tiny Kandinsky 5 pipeline from images to images below `path` and return the path; see that above."""
    from transformers import Qwen2VLProcessor

    vae = {"scaling_factor": 0.3611, "shift_factor": 0.1159, "use_quant_conv": False, "use_post_quant_conv": False}
    processor = qwen_processor(qwen_tokenizer(VISION_TOKENS), Qwen2VLProcessor, patch_size=14, max_pixels=56 * 84)
    return _save_tiny_kandinsky5(path, "Kandinsky5I2IPipeline", tiny_vae(4, **vae), processor, visual_cond=True)


def make_tiny_kandinsky5_video(path: str | Path) -> Path:
    """Save a tiny Kandinsky 5 pipeline for videos below `path` and return the path; see that for images."""
    return _save_tiny_kandinsky5_video(path, "Kandinsky5T2VPipeline")


def make_tiny_kandinsky5_i2v(path: str | Path) -> Path:
    """Save a tiny Kandinsky 5 pipeline from images to videos below `path` and return the path; see that for images."""
    return _save_tiny_kandinsky5_video(path, "Kandinsky5I2VPipeline")


def _save_tiny_kandinsky5_video(path: str | Path, pipeline: str) -> Path:
    from diffusers import AutoencoderKLHunyuanVideo

    vae = AutoencoderKLHunyuanVideo(
        latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4
    )
    tokenizer = qwen_tokenizer()
    # words of the instruction as one token, or too little of a prompt would be left
    words = "describe how the camera moves shakes zoom and view angle whether follows objects video visual is of some"
    tokenizer.add_tokens([f" {word}" for word in words.split()])
    return _save_tiny_kandinsky5(path, pipeline, vae, tokenizer, visual_cond=True)


def _save_tiny_kandinsky5(path: str | Path, pipeline: str, vae, tokenizer, **transformer_config) -> Path:
    import diffusers
    import torch

    torch.manual_seed(SEED)
    clip = clip_tokenizer()
    transformer = diffusers.Kandinsky5Transformer3DModel(
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
        **transformer_config,
    )
    made = getattr(diffusers, pipeline)(
        transformer=transformer,
        vae=vae,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=tiny_qwen_vl(getattr(tokenizer, "tokenizer", tokenizer)),
        tokenizer=tokenizer,
        text_encoder_2=tiny_clip(clip),
        tokenizer_2=clip,
    )
    return randomize_and_save(made, path)


def make_tiny_hunyuan_dit(path: str | Path) -> Path:
    """Save a tiny Hunyuan-DiT pipeline below `path` and return the path. It takes sizes, as the first version."""
    import torch
    from diffusers import DDPMScheduler, HunyuanDiT2DModel, HunyuanDiTPipeline
    from transformers import BertConfig, BertModel, BertTokenizer

    torch.manual_seed(SEED)
    t5 = t5_tokenizer()
    letters = sorted(set(string.printable) - set(string.whitespace))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    bert = BertTokenizer(vocab={token: number for number, token in enumerate(dict.fromkeys(tokens))})
    text_encoder = BertConfig(
        vocab_size=len(bert),
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    transformer = HunyuanDiT2DModel(
        in_channels=4,
        patch_size=2,
        num_attention_heads=4,
        attention_head_dim=8,
        hidden_size=32,
        num_layers=4,
        cross_attention_dim=32,
        cross_attention_dim_t5=32,
        pooled_projection_dim=32,
    )
    betas = {"beta_start": 0.00085, "beta_end": 0.018, "beta_schedule": "scaled_linear"}
    pipeline = HunyuanDiTPipeline(
        transformer=transformer,
        vae=tiny_vae(4, scaling_factor=0.13025),  # the pipeline takes 8 pixels a cell for granted
        scheduler=DDPMScheduler(**betas, prediction_type="v_prediction", clip_sample=False, steps_offset=1),
        text_encoder=BertModel(text_encoder),
        tokenizer=bert,
        text_encoder_2=tiny_t5(t5, width=32),
        tokenizer_2=t5,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_bria_fibo(path: str | Path) -> Path:
    """Save a tiny Bria FIBO pipeline below `path` and return the path. It has more blocks than the encoder layers."""
    import torch
    from diffusers import (
        AutoencoderKLWan,
        BriaFiboPipeline,
        BriaFiboTransformer2DModel,
        FlowMatchEulerDiscreteScheduler,
    )
    from transformers import SmolLM3Config, SmolLM3ForCausalLM

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    text_encoder = SmolLM3Config(
        vocab_size=128001,  # the pipeline encodes the empty prompt as the token 128000
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformer = BriaFiboTransformer2DModel(
        in_channels=48,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(4, 4, 8),
        text_encoder_dim=8,
    )
    pipeline = BriaFiboPipeline(
        transformer=transformer,
        vae=AutoencoderKLWan(**_tiny_wan_vae(48), **WAN_22_VAE),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=SmolLM3ForCausalLM(text_encoder),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_bria_fibo2(path: str | Path) -> Path:
    """Save a tiny Bria FIBO 2 pipeline below `path` and return the path. It has all layers of text that are read."""
    import diffusers
    import torch
    from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer(VISION_TOKENS)
    transformer = diffusers.BriaFibo2Transformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=6,
        n_refiner_layers=1,
        n_heads=2,
        cap_feat_dim=3 * 16,
        injection_layer_ids=(0, 1, 2, 4, 5),
        perceiver_num_layers=1,
        min_num_gist_tokens=4,
        max_num_gist_tokens=8,
        gist_step=2,
        gist_min_text_len=20,
        gist_max_text_len=60,
        axes_dims=(4, 6, 6),
        axes_lens=(64, 64, 64),
    )
    pipeline = diffusers.BriaFibo2Pipeline(
        transformer=transformer,
        vae=tiny_flux2_vae(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=Qwen3VLForConditionalGeneration(tiny_qwen3_vl_config(tokenizer, num_layers=36)),
        processor=qwen_processor(tokenizer, Qwen3VLProcessor, patch_size=16, max_pixels=256**2),
    )
    return randomize_and_save(pipeline, path)


def make_tiny_krea2(path: str | Path) -> Path:
    """Save a tiny Krea 2 pipeline below `path` and return the path."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, Krea2Pipeline, Krea2Transformer2DModel
    from transformers import Qwen3VLModel

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    transformer = Krea2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        timestep_embed_dim=16,
        text_hidden_dim=16,
        num_text_layers=3,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=16,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 6, 6),
    )
    pipeline = Krea2Pipeline(
        transformer=transformer,
        vae=tiny_qwen_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=Qwen3VLModel(tiny_qwen3_vl_config(tokenizer)),
        tokenizer=tokenizer,
        text_encoder_select_layers=(0, 1, 2),
    )
    return randomize_and_save(pipeline, path)


def make_tiny_ideogram4(path: str | Path) -> Path:
    """Save a tiny Ideogram 4 pipeline below `path` and return the path."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, Ideogram4Pipeline, Ideogram4Transformer2DModel
    from transformers import Qwen3VLModel

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    denoisers = [
        Ideogram4Transformer2DModel(
            in_channels=16,
            num_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            intermediate_size=32,
            adaln_dim=16,
            llm_features_dim=13 * 16,
            mrope_section=(4, 2, 2),
        )
        for _ in range(2)
    ]
    pipeline = Ideogram4Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=tiny_flux2_vae(),
        text_encoder=Qwen3VLModel(tiny_qwen3_vl_config(tokenizer, num_layers=36)),  # the last one is read, too
        tokenizer=tokenizer,
        transformer=denoisers[0],
        unconditional_transformer=denoisers[1],
    )
    return randomize_and_save(pipeline, path)


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


def make_tiny_lumina2(path: str | Path) -> Path:
    """Save a tiny Lumina Image 2.0 pipeline below `path` and return the path."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, Lumina2Pipeline, Lumina2Transformer2DModel
    from transformers import Gemma2Config, Gemma2Model

    torch.manual_seed(SEED)
    tokenizer = gemma_tokenizer()
    text_encoder = Gemma2Config(
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
    transformer = Lumina2Transformer2DModel(
        sample_size=4,
        in_channels=4,
        hidden_size=24,
        num_layers=1,
        num_refiner_layers=1,
        num_attention_heads=3,
        num_kv_heads=1,  # a third of the heads, as published: LoRA files of fused layers are split in that proportion
        multiple_of=16,
        axes_dim_rope=(4, 2, 2),
        axes_lens=(300, 64, 64),
        cap_feat_dim=8,
    )
    pipeline = Lumina2Pipeline(
        transformer=transformer,
        vae=tiny_vae(4, scaling_factor=0.3611, shift_factor=0.1159),  # the pipeline takes 8 pixels a cell for granted
        scheduler=FlowMatchEulerDiscreteScheduler(shift=6.0),
        text_encoder=Gemma2Model(text_encoder),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_qwen_image(path: str | Path) -> Path:
    """Save a tiny Qwen-Image pipeline below `path` and return the path."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, QwenImagePipeline, QwenImageTransformer2DModel

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    transformer = QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )
    pipeline = QwenImagePipeline(
        transformer=transformer,
        vae=tiny_qwen_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=tiny_qwen_vl(tokenizer),
        tokenizer=tokenizer,
    )
    return randomize_and_save(pipeline, path)


def make_tiny_nucleus_image(path: str | Path) -> Path:
    """Save a tiny Nucleus-Image pipeline below `path` and return the path."""
    import diffusers
    import torch
    from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer(VISION_TOKENS)
    transformer = diffusers.NucleusMoEImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=4,
        attention_head_dim=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        joint_attention_dim=16,
        axes_dims_rope=(4, 6, 6),
        mlp_ratio=8.0,
        dense_moe_strategy="leave_first_block_dense",
        num_experts=4,
        moe_intermediate_dim=16,
        capacity_factors=[0.0, 2.0, 2.0, 1.0],
    )
    with torch.no_grad():
        for block in list(transformer.transformer_blocks)[1:]:
            for parameter in block.img_mlp.experts.parameters():
                parameter.normal_(0, 0.1)  # diffusers leaves them as the memory was
    pipeline = diffusers.NucleusMoEImagePipeline(
        transformer=transformer,
        vae=tiny_qwen_vae(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=Qwen3VLForConditionalGeneration(tiny_qwen3_vl_config(tokenizer, num_layers=8)),
        processor=qwen_processor(tokenizer, Qwen3VLProcessor, patch_size=16, max_pixels=256**2),
    )
    return randomize_and_save(pipeline, path)


def make_tiny_anima(path: str | Path) -> Path:
    """Save a tiny Anima pipeline below `path`, as diffusers' modular pipelines are saved, and return the path."""
    import diffusers
    import torch
    from transformers import Qwen3Config, Qwen3Model

    torch.manual_seed(SEED)
    tokenizer, t5 = qwen_tokenizer(), t5_tokenizer()
    text_encoder = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
    )
    pipeline = diffusers.AnimaAutoBlocks().init_pipeline()
    pipeline.update_components(
        text_encoder=Qwen3Model(text_encoder),
        tokenizer=tokenizer,
        t5_tokenizer=t5,
        text_conditioner=diffusers.AnimaTextConditioner(
            source_dim=16,
            target_dim=16,
            model_dim=16,
            num_layers=1,
            num_attention_heads=2,
            mlp_ratio=2.0,
            target_vocab_size=len(t5),
            min_sequence_length=32,
        ),
        transformer=diffusers.CosmosTransformer3DModel(
            in_channels=4,
            out_channels=4,
            num_attention_heads=2,
            attention_head_dim=16,
            num_layers=2,
            mlp_ratio=2,
            text_embed_dim=16,
            adaln_lora_dim=4,
            max_size=(4, 32, 32),
            patch_size=(1, 2, 2),
            rope_scale=(1.0, 4.0, 4.0),
            concat_padding_mask=True,
            extra_pos_embed_type=None,
        ),
        vae=tiny_qwen_vae(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    )
    return randomize_and_save(pipeline, path)


def make_tiny_cosmos_predict25(path: str | Path) -> Path:
    """Save a tiny Cosmos-Predict2.5 pipeline below `path` and return the path."""
    import diffusers
    import torch

    from modules.weights.libraries import import_pipeline

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'][0]['text'] }}"
        "<|im_end|>\n{% endfor %}"
    )
    # words of the instruction as one token, or too little of a prompt would be left
    words = "system user You are helpful assistant who will provide prompts image generator"
    tokenizer.add_tokens([f" {word}" for word in words.split()])
    pipeline = import_pipeline("Cosmos2_5_PredictBasePipeline")(
        text_encoder=tiny_qwen_vl(tokenizer),
        tokenizer=tokenizer,
        transformer=diffusers.CosmosTransformer3DModel(
            in_channels=4 + 1,
            out_channels=4,
            num_attention_heads=2,
            attention_head_dim=16,
            num_layers=2,
            mlp_ratio=2,
            text_embed_dim=16,
            adaln_lora_dim=4,
            max_size=(16, 32, 32),
            rope_scale=(1.0, 3.0, 3.0),
            extra_pos_embed_type=None,
            use_crossattn_projection=True,
            crossattn_proj_in_channels=2 * 16,  # of both layers of the text encoder
            encoder_hidden_states_channels=16,
        ),
        vae=diffusers.AutoencoderKLWan(z_dim=4, **_tiny_wan_vae(4)),
        # not the real UniPC, whose timesteps are whole numbers, unlike the sigmas that the transformer is given
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=5.0),
    )
    return randomize_and_save(pipeline, path)


def make_tiny_qwen_image21(path: str | Path) -> Path:
    """Save a tiny Qwen-Image 2.1 pipeline below `path` and return the path."""
    import diffusers
    import torch
    from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer(VISION_TOKENS)
    vae = diffusers.AutoencoderKLQwenImage21(
        base_dim=4,
        decoder_base_dim=4,
        z_dim=4,
        dim_mult=[1, 1, 1, 1, 1],
        num_res_blocks=1,
        # unlike each other: mixed up channels would show
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.5, 2.0, 0.5, 1.0],
    )
    transformer = diffusers.QwenImage21Transformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        context_in_dim=16,
        mlp_ratio=2,
        axes_dims_rope=(4, 6, 6),
    )
    pipeline = diffusers.QwenImage21Pipeline(
        transformer=transformer,
        vae=vae,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        text_encoder=Qwen3VLForConditionalGeneration(tiny_qwen3_vl_config(tokenizer)),
        processor=qwen_processor(tokenizer, Qwen3VLProcessor, patch_size=16, max_pixels=256**2),
    )
    return randomize_and_save(pipeline, path)


def make_tiny_qwen_image_edit(path: str | Path) -> Path:
    """Save a tiny Qwen-Image-Edit pipeline below `path` and return the path."""
    return _save_tiny_qwen_edit(path, "QwenImageEditPipeline")


def make_tiny_qwen_image_edit_plus(path: str | Path) -> Path:
    """Save a tiny Qwen-Image-Edit 2511 pipeline below `path` and return the path."""
    return _save_tiny_qwen_edit(path, "QwenImageEditPlusPipeline", zero_cond_t=True)


def make_tiny_qwen_image_layered(path: str | Path) -> Path:
    """Save a tiny Qwen-Image-Layered pipeline below `path` and return the path."""
    # the pipeline takes images of four channels for latents if these have as many
    stats = {"latents_mean": [0.1, -0.2, 0.3, 0.0, 0.2], "latents_std": [1.5, 2.0, 0.5, 1.0, 0.8]}
    vae = tiny_qwen_vae(input_channels=4, z_dim=5, **stats)
    config = {"in_channels": 20, "out_channels": 5, "use_additional_t_cond": True, "use_layer3d_rope": True}
    return _save_tiny_qwen_edit(path, "QwenImageLayeredPipeline", vae, **config)


def _save_tiny_qwen_edit(path: str | Path, pipeline_class: str, vae=None, **config) -> Path:
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


def tiny_qwen_text(tokenizer):
    from transformers import Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel

    config = Qwen2_5_VLTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=4,  # the last two are not used
        num_attention_heads=2,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]},
    )
    return Qwen2_5_VLTextModel(config)


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


def tiny_clip_vision():
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,  # the last one is not used
        num_attention_heads=2,
        image_size=16,
        patch_size=8,
    )
    return CLIPVisionModel(config)


def tiny_clip_processor():
    from transformers import CLIPImageProcessorPil

    return CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})


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
