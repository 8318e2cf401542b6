"""The facts about the kinds of adapters, without torch.

A kind is one entry here and one file, `modules/weights/adapters/NAME.py`, which adds it to a model and, unless it is
LoRA, reads and writes its files. No other code compares a kind's name: it uses the facts of the chosen kind instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modules.config.LoraConfig import LoraConfig


@dataclass(frozen=True)
class AdapterFacts:
    """One kind, which `lora.adapter` chooses.

    name: as in settings files. label: as shown to users.
    settings: the fields of LoraConfig that apply to it, of those that not every kind has.
    tensors: the names of a layer's tensors in files in LyCORIS's format, behind the name of the layer; empty for LoRA,
    whose formats are diffusers' and kohya's.
    mark: how names of such tensors begin, and no others in any file.
    algorithm: LyCORIS's name for it in the metadata of files; "" if it is the same.
    arguments: setting -> LyCORIS's name for it in the metadata, where it is written if it is set.
    weights_of_lora: how many weights train, relative to a LoRA of the same rank, at most.
    composes_weights: whether each pass computes the change of a layer's whole weight, which takes memory and is not
    possible for weights in 4 bits.
    uses_rank_up_to_width: whether a rank above a layer's width is of no use.
    can_compile: whether torch.compile can compile its layers; not those of PEFT's that draw a number on the host.
    """

    name: str
    label: str
    settings: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    mark: str = ""
    algorithm: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    weights_of_lora: int = 1
    composes_weights: bool = False
    uses_rank_up_to_width: bool = False
    can_compile: bool = False

    @property
    def is_in_lycoris_files(self) -> bool:
        """Whether its files are in LyCORIS's format, whatever output.format says."""
        return bool(self.tensors)


ADAPTERS: dict[str, AdapterFacts] = {
    facts.name: facts
    for facts in (
        AdapterFacts(
            name="lora",
            label="LoRA",
            settings=("alpha", "conv_alpha", "dropout", "rank_dropout", "module_dropout", "nested_unit", "plus_ratio",
                      "max_norm", "dora", "rslora"),
            arguments={"nested_unit": "unit"},
            uses_rank_up_to_width=True,
            can_compile=True,
        ),
        AdapterFacts(
            name="loha",
            label="LoHa",
            settings=("alpha", "conv_alpha", "max_norm", "tucker"),
            tensors=("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2"),
            mark="hada_",
            arguments={"tucker": "use_tucker"},
            weights_of_lora=2,  # two products
            composes_weights=True,
            uses_rank_up_to_width=True,
        ),
        AdapterFacts(
            name="lokr",
            label="LoKr",
            settings=("alpha", "conv_alpha", "max_norm", "tucker", "lokr_factor", "lokr_decompose_both"),
            tensors=("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2"),
            mark="lokr_",
            arguments={"lokr_factor": "factor", "lokr_decompose_both": "decompose_both", "tucker": "use_tucker"},
            composes_weights=True,
        ),
        AdapterFacts(
            name="oft",
            label="OFT",
            tensors=("oft_blocks",),
            mark="oft_",
            algorithm="diag-oft",
            can_compile=True,
        ),
        AdapterFacts(
            name="ia3",
            label="IA3",
            settings=("max_norm", "ia3_on_input"),
            tensors=("on_input", "weight"),
            mark="on_input",
            arguments={"ia3_on_input": "train_on_input"},
            can_compile=True,
        ),
    )
}  # fmt: skip
"""By name, in the order of the menu."""


def facts_of_adapter(lora: LoraConfig) -> AdapterFacts:
    """The facts of the kind chosen in the settings."""
    return ADAPTERS[lora.adapter]


def adapters_with(setting: str) -> dict[str, list[str]]:
    """The `visible_when` of a setting of LoraConfig that only some kinds have, according to their facts."""
    return {".adapter": [facts.name for facts in ADAPTERS.values() if setting in facts.settings]}


def tensor_marks() -> list[str]:
    """How the names of tensors begin that only files of adapters in LyCORIS's format have."""
    return [facts.mark for facts in ADAPTERS.values() if facts.mark]
