from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from modules.config.families import families_with, load_families
from modules.config.methods import methods_that
from modules.config.quantizations import QUANTIZATIONS
from modules.config.setting import STRICT, Int, Str, setting

ADDS_WEIGHTS = methods_that(lambda method: not method.trains_weights)
WITH_DENOISER = methods_that(lambda method: method.uses_denoiser)
QUANTIZATION_LABELS = {"none": "None", **{name: facts.label for name, facts in QUANTIZATIONS.items()}}
DENOISER_SETTINGS = ("model.denoiser", "model.denoiser_2")  # in the order of a family's denoisers
SEVERAL_CLIPS = [name for name in families_with(skips_layers=True) if len(load_families()[name].text_encoders) > 1]
DDPM = {"family": families_with(objective="ddpm"), "method": WITH_DENOISER}


@dataclass(config=STRICT)
class ModelConfig:
    """Which pretrained model is trained, and in which precision."""

    base: Str = setting(
        "",
        label="Base model",
        also_called="pretrained_model_name_or_path, checkpoint, base_model_name",
        help="The model to start from: a diffusers folder, a .safetensors file or a name on the Hugging Face Hub, "
        "with @REVISION behind it if wanted.",
        group="model",
        format="file_or_folder",
        scope="machine",
        kept_as="base model",
        kept_while=("family",),
    )
    config_folder: Str = setting(
        "",
        label="Diffusers config folder",
        help="A diffusers folder whose configuration files and tokenizer describe a .safetensors base model. "
        "Needed only without internet.",
        group="model",
        format="folder",
        scope="machine",
        kept_as="its configuration folder",
        kept_while=("model.base",),
        importance="advanced",
    )
    vae: Str = setting(
        "",
        label="Other VAE",
        also_called="vae, vae_override",
        help="A VAE in place of the base model's, as a folder, a .safetensors file or a name on the Hugging Face Hub, "
        "NAMESPACE/MODEL. It has to be of the same kind. A whole model is saved with it; "
        "generate images of a LoRA with the same one.",
        group="model",
        format="file_or_folder",
        empty_means="that of the base model",
        scope="machine",
        kept_as="VAE",
        kept_while=("model.base",),
        importance="advanced",
    )
    denoiser: Str = setting(
        "",
        label="Other denoiser",
        also_called="transformer_model, unet_path, dit, transformer override, gguf",
        help="A .safetensors or .gguf file with the transformer or U-Net alone, as ComfyUI loads it, in place of the "
        "base model's; the rest comes from the base model. On the Hugging Face Hub: NAMESPACE/MODEL/FILE. For a model "
        "with two experts, this is the high-noise one. A "
        "GGUF file stays quantized, for LoRAs and embeddings. Generate images of a LoRA with the same one.",
        group="model",
        format="file",
        empty_means="that of the base model",
        scope="machine",
        kept_as="denoiser",
        kept_while=("model.base",),
        importance="advanced",
        visible_when={"method": WITH_DENOISER},
    )
    denoiser_2: Str = setting(
        "",
        label="Other low-noise expert",
        also_called="transformer_2, low noise model, second expert, gguf",
        help="A .safetensors or .gguf file with the low-noise expert alone, in place of the base model's; the setting "
        "above has the high-noise one. Either can be given alone, but GGUF files only for both experts.",
        group="model",
        format="file",
        empty_means="that of the base model",
        scope="machine",
        kept_as="low-noise expert",
        kept_while=("model.base",),
        importance="advanced",
        visible_when={"family": families_with(experts=True), "method": WITH_DENOISER},
    )
    text_encoders: list[Str] = setting(
        label="Other text encoders",
        also_called="clip_l, clip_g, t5xxl, t5xxl_path, text_encoder_path, qwen_2.5_vl, umt5, gemma, mistral, clip",
        help="A .safetensors file for each text encoder, as ComfyUI loads them, in place of the base model's; which "
        "encoder a file has is told by its tensors, and those that are not given come from the base model. On the "
        "Hugging Face Hub: NAMESPACE/MODEL/FILE. Generate images of a LoRA with the same ones.",
        group="model",
        default_factory=list,
        format="file",
        empty_means="those of the base model",
        scope="machine",
        kept_as="text encoders",
        kept_while=("model.base",),
        importance="advanced",
        visible_when={"method": WITH_DENOISER},
    )
    training_adapter: Str = setting(
        "",
        label="Training adapter",
        also_called="assistant_lora_path, assistant LoRA, de-distill, dedistill",
        help="A LoRA file that the denoiser has while it trains, and neither in samples nor in what is saved. Made for "
        "distilled models, which would otherwise unlearn how to sample in few steps.",
        group="model",
        format="file",
        empty_means="none",
        scope="machine",
        kept_as="training adapter",
        kept_while=("model.base",),
        importance="advanced",
        visible_when={"method": WITH_DENOISER},
    )
    prediction_type: Literal["auto", "epsilon", "v_prediction"] = setting(
        "auto",
        label="Prediction type",
        also_called="v_parameterization, v2",
        help="What the denoiser predicts. Auto reads it from the base model; set it if a single file doesn't say so.",
        group="model",
        kept_as="its prediction type",
        kept_while=("model.base",),
        choice_labels={"auto": "Auto", "epsilon": "Noise (epsilon)", "v_prediction": "Velocity (v)"},
        importance="advanced",
        visible_when=DDPM,
    )
    zero_terminal_snr: bool = setting(
        False,
        label="Zero terminal SNR",
        also_called="zero_terminal_snr, rescale_noise_scheduler_to_zero_terminal_snr",
        help="The noisiest timestep is noise alone, as in sampling: models learn very dark and very bright images. "
        "Only for models that predict v; the saved model's scheduler says so.",
        group="model",
        importance="advanced",
        visible_when=DDPM,
    )
    clip_skip: Int = setting(
        1,
        label="CLIP skip",
        also_called="clip_skip, text_encoder_layer_skip",
        help="Which of the last layers of the CLIP text encoders the denoiser gets: 1 is the model's own, 2 the one "
        "before, as many anime models were made. Generate images with the same value.",
        group="model",
        ge=1,
        le=12,
        importance="advanced",
        visible_when={"family": families_with(skips_layers=True), "method": WITH_DENOISER},
    )
    clip_skips: list[Annotated[Int, Field(ge=1, le=12)]] = setting(
        label="CLIP skip of single encoders",
        also_called="text_encoder_layer_skip, text_encoder_2_layer_skip",
        help="The same for the CLIP text encoders one by one, in models that have several: the first is that of number "
        "1. Those that are left out have the value above. Empty: all have it.",
        group="model",
        default_factory=list,
        importance="advanced",
        visible_when={"family": SEVERAL_CLIPS, "method": WITH_DENOISER},
    )
    text_chunks: Int = setting(
        1,
        label="Text chunks (75 tokens each)",
        also_called="max_token_length, 150, 225, long captions, long prompts",
        help="CLIP text encoders take 75 tokens; longer captions and prompts are cut off. With 2 or 3, up to 150 or "
        "225 tokens are encoded in chunks of 75, and shorter texts are padded to that length. ComfyUI and A1111 encode "
        "long prompts in the same way.",
        group="model",
        ge=1,
        le=3,
        importance="advanced",
        visible_when={"family": families_with(takes_chunks=True), "method": WITH_DENOISER},
    )
    word_weights: bool = setting(
        False,
        label="Weighted words",
        also_called="weighted_captions, prompt weighting, emphasis",
        help="(word:1.2) in captions and prompts makes a word count more and (word:0.8) less, (word) is 1.1 and [word] "
        "1 / 1.1, as in A1111. Write \\( and \\) for brackets that are meant as such. Off: brackets are plain text.",
        group="model",
        importance="advanced",
        visible_when={"family": families_with(takes_chunks=True), "method": WITH_DENOISER},
    )
    weight_dtype: Literal["float32", "bfloat16", "float16", "float64"] = setting(
        "float32",
        label="Weight precision",
        also_called="full_bf16, full_fp16, torch_dtype",
        help="Precision in which the model's weights are held. float32 is safest; bfloat16 halves the memory of "
        "weights that are not trained, as with LoRA.",
        group="model",
        in_crash_report=True,
    )
    denoiser_quantization: Literal[tuple(QUANTIZATION_LABELS)] = setting(  # type: ignore[valid-type] # as in the table
        "none",
        label="Quantize denoiser",
        help="Hold the frozen layers of the denoiser in 8 or 4 bits while a LoRA or an embedding trains. int8 takes "
        "half the memory of bfloat16 and is nearly exact; nf4 takes little more than a quarter and needs the package "
        "bitsandbytes.",
        group="model",
        in_crash_report=True,
        choice_labels=QUANTIZATION_LABELS,
    )
    text_encoder_quantization: Literal[tuple(QUANTIZATION_LABELS)] = setting(  # type: ignore[valid-type] # as in the table
        "none",
        label="Quantize text encoders",
        help="The same for the text encoders, for models whose text encoder does not fit on the GPU. Captions are "
        "encoded again when it changes.",
        group="model",
        in_crash_report=True,
        choice_labels=QUANTIZATION_LABELS,
    )
    mixed_precision: Literal["no", "bf16", "fp16"] = setting(
        "no",
        label="Mixed precision",
        also_called="autocast, train_dtype, amp",
        help="Precision of the computation where it is safe to lower it. bf16 is good on recent GPUs, fp16 on older "
        "ones.",
        group="model",
        in_crash_report=True,
        choice_labels={"no": "Off"},
    )
    tf32: bool = setting(
        True,
        label="TF32",
        help="Let NVIDIA GPUs since Ampere multiply float32 matrices in TF32, several times faster, with 10 bits of "
        "precision in place of 23. Off: exact float32, in convolutions too.",
        group="model",
        importance="advanced",
    )
    gradient_checkpointing: bool = setting(
        False,
        label="Gradient checkpointing",
        also_called="activation checkpointing, vram, memory",
        help="Computes activations a second time instead of keeping them: needs far less memory and about a third "
        "more time.",
        group="model",
        in_crash_report=True,
    )
    activation_offloading: bool = setting(
        False,
        label="Activation offloading",
        also_called="activation_cpu_offloading, cpu_offload_checkpointing, offload activations, vram, memory",
        help="Moves what gradient checkpointing keeps of the denoiser's blocks to system memory until the backward "
        "pass, in the background: for long videos, large images and large batches. Changes no result.",
        group="model",
        in_crash_report=True,
        visible_when={"method": WITH_DENOISER},
    )
    blocks_to_swap: Int | None = setting(
        0,
        label="Blocks to swap",
        also_called="blocks_to_swap, layer_offload_fraction, block swapping, layer offloading, cpu offload, vram",
        help="How many of the denoiser's blocks stay in system memory and are copied to the GPU each time they run, "
        "for models that don't fit. 0: none. Empty: as many as needed. Needs gradient checkpointing and changes no "
        "result.",
        group="model",
        empty_means="auto",
        in_crash_report=True,
        ge=0,
        le=1000,
        visible_when={"method": ADDS_WEIGHTS},
    )
    compile: Literal["off", "blocks"] = setting(
        "off",
        label="torch.compile",
        also_called="torch_compile, dynamo_backend",
        help="Let torch compile the denoiser's repeated blocks: the first steps take a minute or two, the others are "
        "faster. Changes no result beyond rounding.",
        group="model",
        choice_labels={"off": "Off", "blocks": "Repeated blocks"},
        importance="advanced",
        visible_when={"method": WITH_DENOISER},
    )
    attention: Literal["auto", "sdpa", "cudnn"] = setting(
        "auto",
        label="Attention",
        also_called="attn_mode, attention_mechanism, attention_backend, sdpa, flash attention, xformers, cudnn",
        help="What computes attention on NVIDIA GPUs. PyTorch: its flash or memory-efficient kernels. cuDNN: takes "
        "half their time on H100, H200 and B200, in bf16 or fp16; experimental, because it misreads gradients that are "
        "not laid out like its outputs, so that Chorus has to rearrange them. Auto: PyTorch.",
        group="model",
        in_crash_report=True,
        choice_labels={"auto": "Auto", "sdpa": "PyTorch", "cudnn": "cuDNN"},
        importance="advanced",
    )
    channels_last: bool = setting(
        True,
        label="Channels-last memory",
        also_called="opt_channels_last",
        help="Memory layout that makes convolutions faster on most GPUs. Changes no result beyond rounding.",
        group="model",
        importance="advanced",
    )

    def denoiser_files(self, denoisers: Sequence[str]) -> dict[str, str]:
        """The setting of each of a model's denoisers -> the file in it; "" for that of the base model."""
        return dict(zip(DENOISER_SETTINGS[: len(denoisers)], (self.denoiser, self.denoiser_2), strict=False))

    @property
    def least_clip_skip(self) -> int:
        """The layers that all CLIP text encoders leave out; `clip_skips` may have some leave out more."""
        return min(self.clip_skip, *self.clip_skips) if self.clip_skips else self.clip_skip
