"""The repeated blocks of a denoiser, and which of them are swapped between system memory and the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from modules.families.Family import Family


def repeated_blocks(family: Family, denoiser: nn.Module) -> dict[str, nn.Module]:
    """The blocks of a denoiser, by name, each of which gradient checkpointing computes again by itself.

    They are the members of its module lists whose classes diffusers names as repeated, or as not to be split, and those
    that wrap a module of such a class.
    """
    from torch import nn

    # both are lists of class names; diffusers declares neither of them for every model
    named: Any = getattr(denoiser, "_repeated_blocks", None) or getattr(denoiser, "_no_split_modules", None) or ()
    return {
        f"{list_name}.{number}": block
        for list_name, blocks in denoiser.named_modules()
        if isinstance(blocks, nn.ModuleList) and list_name not in family.unchecked_blocks
        for number, block in enumerate(blocks)
        if any(type(module).__name__ in named for module in (block, *block.children()))
    }


def swapped_blocks(family: Family, denoiser: nn.Module, count: int) -> dict[str, nn.Module]:
    """`count` of the blocks, by name, evenly spaced, so that each is copied while others compute."""
    blocks = repeated_blocks(family, denoiser)
    total, count = len(blocks), min(count, len(blocks))
    return {
        name: block
        for number, (name, block) in enumerate(blocks.items())
        if (number + 1) * count // total > number * count // total
    }


def keep_in_place(block: nn.Module) -> None:
    """Lets `Module.to` on the block or a module above it leave the block where it is."""
    vars(block)["_apply"] = lambda function, recurse=True: block
