from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass

from modules.config.attentions import ATTENTIONS, without_gradients
from modules.config.families import families_with, load_families
from modules.config.methods import methods_that
from modules.config.quantizations import EIGHT_BITS, QUANTIZATIONS
from modules.config.setting import STRICT, Int, Str, setting

ADDS_WEIGHTS = methods_that(lambda method: not method.trains_weights)
WITH_DENOISER = methods_that(lambda method: method.uses_denoiser)
QUANTIZATION_LABELS = {"none": "None", **{name: facts.label for name, facts in QUANTIZATIONS.items()}}
ATTENTION_LABELS = {"auto": "Auto", "sdpa": "PyTorch", "cudnn": "cuDNN"}
ATTENTION_LABELS |= {name: facts.label for name, facts in ATTENTIONS.items()}
DENOISER_SETTINGS = ("model.denoiser", "model.denoiser_2")  # in the order of a family's denoisers
SEVERAL_CLIPS = [name for name in families_with(skips_layers=True) if len(load_families()[name].text_encoders) > 1]
DDPM = {"family": families_with(objective="ddpm"), "method": WITH_DENOISER}


@dataclass(config=STRICT)
class ModelConfig:
    """Which pretrained model is trained, and in which precision."""

    base: Str = setting(
        "",
        label="Base model",
        also_called="checkpoint",
        help="The model to start from: a diffusers folder, a .safetensors file or a model on the Hugging Face Hub, "
        "optionally followed by @REVISION.",
        group="model",
        format="file_or_folder",
        scope="machine",
        kept_as="base model",
        kept_while=("family",),
    )
    config_folder: Str = setting(
        "",
        label="Diffusers config folder",
        help="A diffusers folder with the configuration files and tokenizer for a .safetensors base model. Needed "
        "only without internet access.",
        group="model",
        format="folder",
        scope="machine",
        kept_as="its configuration folder",
        kept_while=("model.base",),
        importance="advanced",
    )
    vae: Str = setting(
        "",
        label="VAE override",
        also_called="vae_override",
        help="A VAE to use instead of the base model's: a folder, a .safetensors file or a model on the Hugging Face "
        "Hub, NAMESPACE/MODEL. It must be of the same kind. A full model is saved with it; use the same one to "
        "generate images with a LoRA.",
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
        label="Transformer / U-Net override",
        also_called="transformer_model, unet_path, dit, transformer override, gguf",
        help="The transformer or U-Net to use instead of the base model's; everything else comes from the base model: "
        "a .safetensors or .gguf file in ComfyUI's layout, or a diffusers folder of it. On the Hugging Face Hub: "
        "NAMESPACE/MODEL/FILE or NAMESPACE/MODEL/FOLDER. For a model with two experts, this is the high-noise one. A "
        "GGUF file stays quantized and can train LoRAs and embeddings. Generate images with a LoRA with the same one.",
        group="model",
        format="file_or_folder",
        empty_means="that of the base model",
        scope="machine",
        kept_as="denoiser",
        kept_while=("model.base",),
        importance="advanced",
        visible_when={"method": WITH_DENOISER},
    )
    denoiser_2: Str = setting(
        "",
        label="Low-noise expert override",
        also_called="transformer_2, low noise model, second expert, gguf",
        help="The low-noise expert to use instead of the base model's, as a file or a folder; the setting above is for "
        "the high-noise one. Either can be given alone, except that GGUF files are needed for both or neither.",
        group="model",
        format="file_or_folder",
        empty_means="that of the base model",
        scope="machine",
        kept_as="low-noise expert",
        kept_while=("model.base",),
        importance="advanced",
        visible_when={"family": families_with(experts=True), "method": WITH_DENOISER},
    )
    text_encoders: list[Str] = setting(
        label="Text encoder override",
        also_called="t5xxl_path, text_encoder_path, qwen_2.5_vl, umt5, gemma, mistral, clip",
        help="A .safetensors file for each text encoder, in ComfyUI's layout, to use instead of the base model's. "
        "Which encoder a file contains is read from its tensors; encoders without a file come from the base model. On "
        "the Hugging Face Hub: NAMESPACE/MODEL/FILE. Use the same files to generate images with a LoRA.",
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
        help="A LoRA that is active during training only, not in samples or saved models. For distilled models, which "
        "would otherwise lose their ability to sample in few steps.",
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
        help="What the denoiser predicts. Auto reads it from the base model; set it if a single file doesn't contain "
        "it.",
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
        also_called="zero_terminal_snr",
        help="Makes the last timestep pure noise, as in sampling, so the model learns very dark and very bright "
        "images. Only for v-prediction models; it is saved in the model's scheduler.",
        group="model",
        importance="advanced",
        visible_when=DDPM,
    )
    clip_skip: Int = setting(
        1,
        label="CLIP skip",
        help="Which layer of the CLIP text encoders is used: 1 is the model's default, 2 the layer before it, as most "
        "anime models expect. Generate images with the same value.",
        group="model",
        ge=1,
        le=12,
        importance="advanced",
        visible_when={"family": families_with(skips_layers=True), "method": WITH_DENOISER},
    )
    clip_skips: list[Annotated[Int, Field(ge=1, le=12)]] = setting(
        label="CLIP skip per encoder",
        also_called="text_encoder_layer_skip, text_encoder_2_layer_skip",
        help="CLIP skip for each CLIP text encoder, starting with number 1, for models that have several. Encoders "
        "without a value use the one above. Empty: all use it.",
        group="model",
        default_factory=list,
        importance="advanced",
        visible_when={"family": SEVERAL_CLIPS, "method": WITH_DENOISER},
    )
    text_chunks: Int = setting(
        1,
        label="Text chunks (75 tokens each)",
        also_called="150, 225, long captions, long prompts",
        help="CLIP text encoders read 75 tokens; longer captions and prompts are cut off. With 2 or 3, up to 150 or "
        "225 tokens are encoded in chunks of 75, and shorter texts are padded to that length. ComfyUI and A1111 "
        "encode long prompts in the same way.",
        group="model",
        ge=1,
        le=3,
        importance="advanced",
        visible_when={"family": families_with(takes_chunks=True), "method": WITH_DENOISER},
    )
    word_weights: bool = setting(
        False,
        label="Prompt weighting (word:1.2)",
        also_called="prompt weighting, emphasis",
        help="In captions and prompts, (word:1.2) increases the weight of a word and (word:0.8) reduces it; (word) "
        "means 1.1 and [word] 1 / 1.1, as in A1111. Write \\( and \\) for literal brackets. Off: brackets are "
        "ordinary text.",
        group="model",
        importance="advanced",
        visible_when={"family": families_with(takes_chunks=True), "method": WITH_DENOISER},
    )
    weight_dtype: Literal["float32", "bfloat16", "float16", "float64"] = setting(
        "float32",
        label="Weight precision",
        also_called="torch_dtype",
        help="Data type of the model's weights in memory. float32 is safest; bfloat16 halves the memory of weights "
        "that are not trained, as with LoRA.",
        group="model",
        in_crash_report=True,
    )
    denoiser_quantization: Literal[tuple(QUANTIZATION_LABELS)] = setting(  # type: ignore[valid-type] # as in the table
        "none",
        label="Quantize U-Net / transformer",
        help="Keep the frozen layers of the U-Net or transformer in 8 or 4 bits while a LoRA or an embedding is "
        "trained. int8 takes half the memory of bfloat16 and is nearly exact; nf4 takes a little more than a quarter "
        "and needs the package bitsandbytes.",
        group="model",
        in_crash_report=True,
        choice_labels=QUANTIZATION_LABELS,
    )
    text_encoder_quantization: Literal[tuple(QUANTIZATION_LABELS)] = setting(  # type: ignore[valid-type] # as in the table
        "none",
        label="Quantize text encoders",
        help="Keep the text encoders in 8 or 4 bits, for models whose text encoder does not fit on the GPU. Changing "
        "this encodes all captions again.",
        group="model",
        in_crash_report=True,
        choice_labels=QUANTIZATION_LABELS,
    )
    quantized_matmul: Literal["auto", "on", "off"] = setting(
        "auto",
        label="Quantized matmul (8-bit)",
        also_called="w8a8, int8 matmul, fp8 matmul, fp8_fast, fp8 fast, scaled_mm, int_mm, 8-bit products",
        help="Multiply with the weights of large int8 and float8 layers in 8 bits, without dequantizing: faster on "
        "GPUs whose 8-bit kernels are, and less exact, because inputs and gradients are rounded to 8 bits, too. int8 "
        "needs compute capability 8.0 (RTX 30), float8 8.9 (RTX 40). Experimental. Auto: off.",
        group="model",
        in_crash_report=True,
        choice_labels={"auto": "Auto", "on": "On", "off": "Off"},
        importance="advanced",
        visible_when={"method": WITH_DENOISER, ".denoiser_quantization": EIGHT_BITS},
    )
    quantized_matmul_size: Int = setting(
        10,
        label="Quantized matmul: least layer size",
        help="Layers with fewer weights are dequantized as usual, because what a product gains is then less than "
        "rounding the inputs takes. On an H200, a float8 layer of 9 million weights gained nothing and one of 13 "
        "million a quarter; older GPUs gain from smaller layers.",
        group="model",
        unit="million weights",
        ge=0,
        le=1000,
        importance="advanced",
        visible_when={"method": WITH_DENOISER, ".denoiser_quantization": EIGHT_BITS, ".quantized_matmul": ["on"]},
    )
    quantized_matmul_rotation: bool = setting(
        False,
        label="Quantized matmul: Hadamard rotation",
        also_called="convrot, int8_convrot, quarot, outliers",
        help="Rotate the inputs of the layers that multiply in 8 bits, and their weights with them, in groups of up to "
        "256, so that outliers are spread before they are rounded. With outliers among the inputs, int8 is then as "
        "exact as without them, for one more small product per layer. float8 gains nothing.",
        group="model",
        in_crash_report=True,
        importance="advanced",
        visible_when={"method": WITH_DENOISER, ".denoiser_quantization": EIGHT_BITS, ".quantized_matmul": ["on"]},
    )
    mixed_precision: Literal["no", "bf16", "fp16"] = setting(
        "no",
        label="Mixed precision",
        also_called="autocast, amp",
        help="Data type of computations that can safely use a lower precision. bf16 suits recent GPUs, fp16 older "
        "ones.",
        group="model",
        in_crash_report=True,
        choice_labels={"no": "Off"},
    )
    tf32: bool = setting(
        True,
        label="TF32",
        help="Let NVIDIA GPUs (Ampere and newer) multiply float32 matrices in TF32: several times faster, with a "
        "10-bit instead of a 23-bit mantissa. Off: exact float32, in convolutions as well.",
        group="model",
        importance="advanced",
    )
    gradient_checkpointing: bool = setting(
        False,
        label="Gradient checkpointing",
        also_called="activation checkpointing, vram, memory",
        help="Recompute activations in the backward pass instead of storing them: needs far less memory and takes "
        "about a third longer.",
        group="model",
        in_crash_report=True,
    )
    activation_offloading: bool = setting(
        False,
        label="Activation offloading",
        also_called="activation_cpu_offloading, offload activations, vram, memory",
        help="Move the activations that gradient checkpointing keeps to system memory until the backward pass, in the "
        "background. For long videos, large images and large batches. Doesn't change the result.",
        group="model",
        in_crash_report=True,
        visible_when={"method": WITH_DENOISER},
    )
    blocks_to_swap: Int | None = setting(
        0,
        label="Blocks to swap",
        also_called="layer_offload_fraction, block swapping, layer offloading, cpu offload, vram",
        help="Number of transformer or U-Net blocks that stay in system memory and are copied to the GPU each time "
        "they run, for models that don't fit. 0: none. Empty: as many as needed. Needs gradient checkpointing; "
        "doesn't change the result.",
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
        also_called="dynamo_backend",
        help="Compile the repeated blocks of the U-Net or transformer with torch: the first steps take a minute or "
        "two, all others are faster. The result changes only by rounding.",
        group="model",
        choice_labels={"off": "Off", "blocks": "Repeated blocks"},
        importance="advanced",
        visible_when={"method": WITH_DENOISER},
    )
    compile_sizes: Literal["auto", "each", "all"] = setting(
        "auto",
        label="Compiled image sizes",
        also_called="dynamic shapes, recompilation",
        help="Each: a graph for each size of a batch, with the fastest kernels, which takes about half a minute for "
        "each on a GPU. All: one graph for all sizes. Auto: each, if the run has four at most.",
        group="model",
        choice_labels={"auto": "Auto", "each": "Each", "all": "All at once"},
        importance="advanced",
        visible_when={"method": WITH_DENOISER, ".compile": ["blocks"]},
    )
    cuda_graphs: Literal["auto", "on", "off"] = setting(
        "auto",
        label="CUDA graphs",
        also_called="cudagraphs, cuda graph capture, reduce-overhead",
        help="Record the forward and backward pass of each image size once and replay it, so that the GPU does not "
        "wait for Python to launch its kernels: for GPUs that are faster than that. Needs memory for the activations "
        "twice. Not with sharded models (FSDP); experimental. Auto: off.",
        group="model",
        in_crash_report=True,
        choice_labels={"auto": "Auto", "on": "On", "off": "Off"},
        importance="advanced",
        visible_when={"method": WITH_DENOISER},
    )
    attention: Literal["auto", "sdpa", "cudnn", "flash", "flash3", "flex", "xformers"] = setting(
        "auto",
        label="Attention",
        also_called="attn_mode, attention_backend, attention_mechanism, sdpa, flash_attn, flash attention 2, flash3, "
        "flex attention, xformers, cudnn",
        help="Kernels for attention on NVIDIA GPUs. PyTorch: its flash or memory-efficient kernels. cuDNN: half the "
        "time on H100, H200 and B200, in bf16 or fp16; experimental, because it misreads gradients whose layout "
        "differs from that of its outputs, so Chorus rearranges them. FlashAttention 2 and 3 (for H100 and H200) and "
        "xFormers need their packages; what they can't compute, PyTorch does. Auto: PyTorch.",
        group="model",
        in_crash_report=True,
        choice_labels=ATTENTION_LABELS,
        importance="advanced",
    )
    channels_last: bool = setting(
        True,
        label="Channels-last memory",
        also_called="opt_channels_last",
        help="Memory layout that makes convolutions faster on most GPUs. The result changes only by rounding.",
        group="model",
        importance="advanced",
    )

    @field_validator("attention", mode="before")
    @classmethod
    def _refuse_without_gradients(cls, value: Any) -> Any:
        if isinstance(value, str) and (what := without_gradients(value)):
            raise ValueError(f"one with a backward pass, which {what} does not have")
        return value

    def denoiser_files(self, denoisers: Sequence[str]) -> dict[str, str]:
        """The setting of each of a model's denoisers -> the file in it; "" for that of the base model."""
        return dict(zip(DENOISER_SETTINGS[: len(denoisers)], (self.denoiser, self.denoiser_2), strict=False))

    @property
    def is_one_file(self) -> bool:
        """Whether the base model is a single file, as far as its name says."""
        return self.base.lower().endswith(".safetensors")

    @property
    def least_clip_skip(self) -> int:
        """The layers that all CLIP text encoders leave out; `clip_skips` may have some leave out more."""
        return min(self.clip_skip, *self.clip_skips) if self.clip_skips else self.clip_skip
