from typing import Literal, get_args

from pydantic.dataclasses import dataclass

from modules.config.adapters import ADAPTERS, adapters_with
from modules.config.methods import methods_taking, methods_that
from modules.config.setting import STRICT, Float, Int, Str, setting

Targets = Literal["attention", "attention_mlp", "linear", "linear_conv"]
TARGETS: tuple[Targets, ...] = get_args(Targets)
"""Each has the layers of those before it, and more."""


@dataclass(config=STRICT)
class LoraConfig:
    """The low-rank adapter: its size, variant and target layers."""

    adapter: Literal[tuple(ADAPTERS)] = setting(  # type: ignore[valid-type] # the names are those of the table
        next(iter(ADAPTERS)),
        label="Adapter",
        also_called="lycoris, algo, locon",
        help="LoRA suits most cases, and all programs read its files. LoHa learns more varied changes at the same "
        "size; LoKr makes the smallest files. Both compute full weight matrices in each pass, which takes memory: use "
        "gradient checkpointing. OFT rotates the outputs of layers, which preserves more of the model. ComfyUI and "
        "Chorus read these three, diffusers does not. IA3 only scales channels and trains the fewest parameters; only "
        "A1111 and Chorus read it.",
        group="method",
        choice_labels={facts.name: facts.label for facts in ADAPTERS.values()},
        importance="advanced",
    )
    rank: Int = setting(
        16,
        label="Rank (network dim)",
        also_called="r",
        help="Width of the adapter: how much it can learn, and how large its file is. 4 to 32 for a subject, up to "
        "128 for a style with many images. For OFT: maximum block size, 4 to 16 is usual.",
        group="method",
        ge=1,
        le=1_000_000,
    )
    alpha: Float = setting(
        16.0,
        label="Alpha",
        help="The adapter's output is multiplied by alpha / rank. Equal to the rank, the factor is 1; half the rank "
        "makes training gentler.",
        group="method",
        gt=0,
        le=1_000_000,
        visible_when=adapters_with("alpha"),
    )
    dropout: Float = setting(
        0.0,
        label="Dropout",
        also_called="lora_dropout",
        help="Fraction of the adapter's inputs randomly dropped in training, against overfitting. 0: none; 0.05 to "
        "0.1 is usual.",
        group="method",
        ge=0,
        lt=1,
        visible_when=adapters_with("dropout"),
        importance="advanced",
    )
    rank_dropout: Float = setting(
        0.0,
        label="Rank dropout",
        help="Fraction of the adapter's ranks randomly dropped in training, per sample and layer, against "
        "overfitting. 0: none; 0.1 to 0.3 is usual.",
        group="method",
        ge=0,
        lt=1,
        visible_when=adapters_with("rank_dropout"),
        importance="advanced",
    )
    module_dropout: Float = setting(
        0.0,
        label="Module dropout",
        help="Fraction of layers whose adapter is randomly skipped in training, per sample, against overfitting. 0: "
        "none; 0.1 to 0.3 is usual.",
        group="method",
        ge=0,
        lt=1,
        visible_when=adapters_with("module_dropout"),
        importance="advanced",
    )
    lokr_factor: Int | None = setting(
        None,
        label="LoKr factor",
        also_called="factor, decompose_factor",
        help="Maximum size of the smaller of the two matrices: the smaller it is, the larger the file. 4 to 16 is "
        "usual. Empty: near the square root of the layer's size, for the smallest file.",
        group="method",
        empty_means="auto",
        ge=2,
        visible_when=adapters_with("lokr_factor"),
        importance="advanced",
    )
    lokr_decompose_both: bool = setting(
        False,
        label="LoKr: decompose both",
        also_called="decompose_both",
        help="Also make the smaller matrix a product of two matrices of the given rank where that saves parameters.",
        group="method",
        visible_when=adapters_with("lokr_decompose_both"),
        importance="advanced",
    )
    tucker: bool = setting(
        False,
        label="Tucker decomposition",
        also_called="use_tucker, use_cp, use_effective_conv2d",
        help="Give the adapters of convolutions larger than 1 x 1 a small kernel of their own: fewer weights at a "
        "high rank.",
        group="method",
        visible_when={".targets": ["linear_conv"], **adapters_with("tucker")},
        importance="advanced",
    )
    ia3_on_input: bool = setting(
        False,
        label="Scale inputs",
        also_called="train_on_input",
        help="Scale the inputs of the layers instead of their outputs.",
        group="method",
        visible_when=adapters_with("ia3_on_input"),
        importance="advanced",
    )
    nested_unit: Int | None = setting(
        None,
        label="Nested ranks (DyLoRA)",
        also_called="dylora, unit, block_size",
        help="DyLoRA block size: each sample trains a random number of leading ranks, a multiple of this, so the LoRA "
        "can be truncated to a smaller rank later. Empty: always train all ranks.",
        group="method",
        ge=1,
        visible_when=adapters_with("nested_unit"),
        importance="advanced",
        empty_means="all ranks",
    )
    plus_ratio: Float = setting(
        1.0,
        label="LoRA+ ratio",
        also_called="loraplus_lr_ratio, loraplus_unet_lr_ratio, loraplus_text_encoder_lr_ratio, lora+",
        help="Learning rate of the second matrix (B) of each adapter, as a multiple of that of the first (A). 16 is "
        "usual, with a lower learning rate; 1 trains both alike.",
        group="method",
        ge=1,
        le=1_000_000,
        visible_when=adapters_with("plus_ratio"),
        importance="advanced",
    )
    max_norm: Float | None = setting(
        None,
        label="Max norm",
        also_called="max_norm_value",
        help="After each step, scale down the adapter of a layer if its weight change has a larger norm than this, "
        "against overtraining. 1 is usual. Empty: no limit.",
        group="method",
        gt=0,
        importance="advanced",
        empty_means="no limit",
        visible_when=adapters_with("max_norm"),
    )
    targets: Targets = setting(
        "attention",
        label="Target modules",
        also_called="target_modules",
        help="Layers that get an adapter. Attention is enough for most subjects; more layers learn more and make "
        "larger files.",
        group="method",
        choice_labels={
            "attention": "Attention",
            "attention_mlp": "Attention and MLP",
            "linear": "All linear layers",
            "linear_conv": "All linear layers and convolutions",
        },
        importance="advanced",
    )
    train_norms: bool = setting(
        False,
        label="Train norm layers",
        also_called="train_norm",
        help="Also train the weights and biases of the blocks' norm layers: few parameters that shift colors and "
        "contrasts. Diffusers' format can't store them; of other programs, ComfyUI reads the file.",
        group="method",
        importance="advanced",
    )
    layer_ranks: Str = setting(
        "",
        label="Per-layer ranks (block dims)",
        also_called="block_dims, network_reg_dims, rank_pattern, rank per block",
        help="Ranks for layers whose names match a pattern, such as mid_block=32, up_blocks.*=8. The first matching "
        "pattern counts; all other layers use the ranks above. A layer's output is multiplied by alpha / its rank.",
        group="method",
        importance="advanced",
    )
    conv_rank: Int | None = setting(
        None,
        label="Convolution rank",
        also_called="conv_dim, locon",
        help="Rank of the adapters of convolutions larger than 1 x 1. Usually lower than for other layers, because "
        "convolutions have more weights. Empty: the same rank.",
        group="method",
        ge=1,
        le=1_000_000,
        importance="advanced",
        empty_means="same as rank",
        visible_when={".targets": ["linear_conv"]},
    )
    conv_alpha: Float | None = setting(
        None,
        label="Convolution alpha",
        also_called="conv_alpha, locon",
        help="Alpha of the adapters of convolutions larger than 1 x 1; their output is multiplied by this alpha / "
        "their rank. Empty: the same alpha.",
        group="method",
        gt=0,
        le=1_000_000,
        importance="advanced",
        empty_means="same as alpha",
        visible_when={".targets": ["linear_conv"], **adapters_with("conv_alpha")},
    )
    dora: bool = setting(
        False,
        label="DoRA",
        also_called="dora_wd, use_dora",
        help="Train the magnitude of each row of the weights separately from its direction. Learns more at a low rank "
        "and takes about a third longer; of other programs' own formats, only ComfyUI's can store it.",
        group="method",
        visible_when=adapters_with("dora") | methods_taking("lora.dora"),
        importance="advanced",
    )
    rslora: bool = setting(
        False,
        label="Rank-stabilized (rsLoRA)",
        also_called="use_rslora, rank-stabilised",
        help="Multiply the adapter's output by alpha / sqrt(rank), so that high ranks learn as fast as low ones. "
        "Choose an alpha near the square root of the rank: alpha equal to the rank is too much.",
        group="method",
        visible_when=adapters_with("rslora"),
        importance="advanced",
    )
    embedding_learning_rate: Float | None = setting(
        None,
        label="Embedding learning rate",
        also_called="pivotal tuning",
        help="Learning rate of the new words, usually 10 to 50 times that of the LoRA. Empty: the same.",
        group="method",
        gt=0,
        le=1000,
        empty_means="same as optimizer",
        visible_when={"method": methods_that(lambda method: method.trains_words and method.trains_adapters)},
    )
    start_from: Str = setting(
        "",
        label="Initial LoRA weights",
        help="A LoRA file in the format of diffusers, kohya or LyCORIS to continue from instead of a new adapter. Its "
        "rank, alpha and layers are kept; the settings above apply to components that it doesn't contain. "
        "Prior-preservation losses compare with the base model without this LoRA. Empty: a new one.",
        group="method",
        format="file",
        scope="machine",
        kept_as="LoRA to start from",
        kept_while=("family", "method"),
        importance="advanced",
    )
