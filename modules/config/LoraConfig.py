from typing import Literal, get_args

from pydantic.dataclasses import dataclass

from modules.config.adapters import ADAPTERS, adapters_with
from modules.config.layer_ranks import read_layer_ranks
from modules.config.methods import methods_that
from modules.config.setting import STRICT, Float, Int, Str, setting

Targets = Literal["attention", "attention_mlp", "linear", "linear_conv"]
TARGETS: tuple[str, ...] = get_args(Targets)
"""Each has the layers of those before it, and more."""


@dataclass(config=STRICT)
class LoraConfig:
    """The low-rank adapter: its size, variant and target layers."""

    adapter: Literal[tuple(ADAPTERS)] = setting(  # type: ignore[valid-type] # the names are those of the table
        next(iter(ADAPTERS)),
        label="Adapter",
        also_called="network_module, lycoris, algo, peft_type, locon",
        help="LoRA suits most cases, and everything reads its files. LoHa learns more varied changes at the same size; "
        "LoKr makes the smallest files. Both compute whole weights in each pass, which takes memory: use gradient "
        "checkpointing. OFT rotates what layers give, which keeps more of the model. ComfyUI and Chorus read these "
        "three, diffusers does not. IA3 only scales channels: the least to train, which only A1111 and Chorus read.",
        group="method",
        choice_labels={facts.name: facts.label for facts in ADAPTERS.values()},
        importance="advanced",
    )
    rank: Int = setting(
        16,
        label="Rank (network dim)",
        also_called="network_dim, lora_rank, r",
        help="Width of the adapter: how much it can learn, and how large its file is. 4 to 32 for a subject, up to "
        "128 for a style of many images. Of OFT the size of a block, at most: 4 to 16 is usual.",
        group="method",
        ge=1,
        le=1_000_000,
    )
    alpha: Float = setting(
        16.0,
        label="Alpha",
        also_called="network_alpha, lora_alpha",
        help="The adapter's output is multiplied by alpha / rank. Equal to the rank means a factor of 1; half of the "
        "rank is a gentler choice.",
        group="method",
        gt=0,
        le=1_000_000,
        visible_when=adapters_with("alpha"),
    )
    dropout: Float = setting(
        0.0,
        label="Dropout",
        also_called="network_dropout, lora_dropout",
        help="Fraction of the adapter's inputs left out at random in training, against overfitting. 0 switches it off; "
        "0.05 to 0.1 is usual.",
        group="method",
        ge=0,
        lt=1,
        visible_when=adapters_with("dropout"),
        importance="advanced",
    )
    rank_dropout: Float = setting(
        0.0,
        label="Rank dropout",
        help="Fraction of the adapter's ranks left out at random in training, for each sample and layer, against "
        "overfitting. 0 switches it off; 0.1 to 0.3 is usual.",
        group="method",
        ge=0,
        lt=1,
        visible_when=adapters_with("rank_dropout"),
        importance="advanced",
    )
    module_dropout: Float = setting(
        0.0,
        label="Module dropout",
        help="Fraction of the layers whose adapter is left out at random in training, for each sample, against "
        "overfitting. 0 switches it off; 0.1 to 0.3 is usual.",
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
        help="Size of the smaller of the two matrices, at most: the smaller, the larger the file. 4 to 16 is usual. "
        "Empty: near the square root of the layer's size, for the smallest file.",
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
        help="The smaller matrix is a product of two of the given rank, too, where that makes it smaller.",
        group="method",
        visible_when=adapters_with("lokr_decompose_both"),
        importance="advanced",
    )
    tucker: bool = setting(
        False,
        label="Tucker decomposition",
        also_called="use_tucker, use_cp, use_effective_conv2d",
        help="Adapters of convolutions larger than 1 x 1 have a small kernel of their own: fewer weights at a high "
        "rank.",
        group="method",
        visible_when={".targets": ["linear_conv"], **adapters_with("tucker")},
        importance="advanced",
    )
    ia3_on_input: bool = setting(
        False,
        label="Scale inputs",
        also_called="train_on_input",
        help="Scale the inputs of the layers and not their outputs.",
        group="method",
        visible_when=adapters_with("ia3_on_input"),
        importance="advanced",
    )
    nested_unit: Int | None = setting(
        None,
        label="Nested ranks (DyLoRA)",
        also_called="dylora, unit, block_size",
        help="In training, only the first so many ranks take part, a multiple of this, drawn for each sample: the "
        "adapter then also works if it is cut to a smaller rank. Empty: all ranks always do.",
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
        help="The learning rate of the second matrix (B) of each adapter is this many times that of the first (A). 16 "
        "is usual, with a lower learning rate; 1 trains both alike.",
        group="method",
        ge=1,
        le=1_000_000,
        visible_when=adapters_with("plus_ratio"),
        importance="advanced",
    )
    max_norm: Float | None = setting(
        None,
        label="Max norm",
        also_called="scale_weight_norms, max_norm_value",
        help="After each step, the adapter of a layer is scaled down if the norm of its change of the weight is larger "
        "than this, against overtraining. 1 is usual. Empty: no limit.",
        group="method",
        gt=0,
        importance="advanced",
        empty_means="no limit",
        visible_when=adapters_with("max_norm"),
    )
    targets: Targets = setting(
        "attention",
        label="Target modules",
        also_called="target_modules, layer_filter",
        help="Which layers get an adapter. Attention is enough for most subjects; more layers learn more and weigh "
        "more.",
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
        help="Also train the weights and biases of the blocks' norm layers: little to train that shifts colors and "
        "contrasts. Diffusers' format can't hold them; of other programs, ComfyUI reads the file.",
        group="method",
        importance="advanced",
    )
    layer_ranks: Str = setting(
        "",
        label="Ranks of some layers",
        also_called="block_dims, network_reg_dims, rank_pattern, rank per block",
        help="Patterns of layers with their ranks, such as mid_block=32, up_blocks.*=8. The first one that matches a "
        "layer counts; all others have the ranks above. A layer's output is multiplied by alpha / its rank.",
        group="method",
        importance="advanced",
    )
    conv_rank: Int | None = setting(
        None,
        label="Convolution rank",
        also_called="conv_dim, locon",
        help="Rank of the adapters of convolutions larger than 1 x 1. Less than for the other layers is usual, because "
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
        help="Alpha of the adapters of convolutions larger than 1 x 1; their output is multiplied by it, divided by "
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
        also_called="dora_wd, use_dora, lora_decompose",
        help="Train the length of each row of the weights apart from its direction. Learns more at a low rank, takes "
        "about a third longer; of other programs' own formats only ComfyUI's holds it.",
        group="method",
        visible_when=adapters_with("dora"),
        importance="advanced",
    )
    rslora: bool = setting(
        False,
        label="Rank-stabilized (rsLoRA)",
        also_called="use_rslora, rank-stabilised",
        help="Multiply the adapter's output by alpha / sqrt(rank), so that a high rank learns as fast as a low one. "
        "With alpha equal to the rank that is much: use alpha near the rank's square root.",
        group="method",
        visible_when=adapters_with("rslora"),
        importance="advanced",
    )
    embedding_learning_rate: Float | None = setting(
        None,
        label="Embedding learning rate",
        also_called="embedding_learning_rate, pivotal tuning",
        help="Learning rate of the new words beside that of the LoRA, usually 10 to 50 times as high. Empty: the same.",
        group="method",
        gt=0,
        le=1000,
        empty_means="same as optimizer",
        visible_when={"method": methods_that(lambda method: method.trains_words and method.trains_adapters)},
    )
    start_from: Str = setting(
        "",
        label="Resume from LoRA file",
        also_called="network_weights, lora_model_name",
        help="A file in the format of diffusers, kohya or LyCORIS, to train on instead of a new adapter. Its rank, "
        "alpha and layers are kept; the settings above are for parts that it does not hold. Where a loss holds to what "
        "the model predicted before the training, that is the base without this LoRA. Empty: a new one.",
        group="method",
        format="file",
        scope="machine",
        kept_as="LoRA to start from",
        kept_while=("family", "method"),
        importance="advanced",
    )

    @property
    def largest_rank(self) -> int:
        """Of any layer that is no convolution, for estimates."""
        try:
            return max(self.rank, *read_layer_ranks(self.layer_ranks).values(), 0)
        except ValueError:  # which the checks of the settings report
            return self.rank
