"""The facts about what can compute attention in place of PyTorch, without importing any of it."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

HALF = ("bfloat16", "float16")


@dataclass(frozen=True)
class AttentionFacts:
    """A value of `model.attention` whose kernels are not those of torch's scaled_dot_product_attention.

    name: as in settings files. label: as shown to users.
    module, package: what has the kernels, and how pip calls it; empty for PyTorch.
    least_version: of the package, as diffusers requires it.
    dtypes: in which it computes. masks: whether it takes masks.
    narrowest, widest, width_step: the heads that it takes are of these widths, in multiples of the step.
    least_capability, only_capability: the GPUs for which it is made, by compute capability.
    is_compiled: whether it is compiled for the sizes that it meets. Samples and validation are then left to PyTorch.
    """

    name: str
    label: str
    module: str = ""
    package: str = ""
    least_version: str = ""
    dtypes: tuple[str, ...] = HALF
    masks: bool = False
    narrowest: int = 8
    widest: int = 256
    width_step: int = 8
    least_capability: tuple[int, int] = (8, 0)
    only_capability: tuple[int, int] | None = None
    is_compiled: bool = False

    def takes(self, width: int, masked: bool = False) -> bool:
        """Whether it takes heads of this width, with or without a mask."""
        is_width = self.narrowest <= width <= self.widest and width % self.width_step == 0
        return is_width and (self.masks or not masked)


ATTENTIONS: dict[str, AttentionFacts] = {
    facts.name: facts
    for facts in (
        # Dao 2023, arXiv 2307.08691. It fills up heads whose width is no multiple of 8.
        AttentionFacts(
            name="flash",
            label="FlashAttention 2",
            module="flash_attn",
            package="flash-attn",
            least_version="2.6.3",
            narrowest=1,
            width_step=1,
        ),
        # Shah et al. 2024, arXiv 2407.08608, in the build of the Hub that diffusers names
        AttentionFacts(
            name="flash3",
            label="FlashAttention 3",
            module="kernels",
            package="kernels",
            least_version="0.12",
            least_capability=(9, 0),
            only_capability=(9, 0),
        ),
        # Dong et al. 2024, arXiv 2412.05496
        AttentionFacts(
            name="flex",
            label="FlexAttention",
            dtypes=(*HALF, "float32"),
            masks=True,
            narrowest=16,
            least_capability=(7, 0),  # of Triton
            is_compiled=True,
        ),
        AttentionFacts(
            name="xformers",
            label="xFormers",
            module="xformers",
            package="xformers",
            least_version="0.0.29",
            dtypes=(*HALF, "float32"),
            masks=True,
            widest=512,
            least_capability=(5, 0),
        ),
    )
}
"""By name, in the order of the menu."""


@dataclass(frozen=True)
class AttentionKind:
    """Attentions of a denoiser that are alike. width: of a head. masked: whether they have masks. count: of them."""

    width: int
    masked: bool
    count: int


@dataclass(frozen=True)
class Attentions:
    """The attentions of a denoiser in a pass for texts of different lengths.

    linear: the number of those without a softmax, which no kernel of `model.attention` computes.
    """

    kinds: tuple[AttentionKind, ...]
    linear: int

    @classmethod
    def read(cls, values: Mapping[str, Any] | None) -> Attentions | None:
        """From resources/families.json; None for a model of which nothing is known."""
        return cls(tuple(AttentionKind(**kind) for kind in values["kinds"]), values["linear"]) if values else None

    @property
    def total(self) -> int:
        return sum(kind.count for kind in self.kinds)

    def not_taken(self, facts: AttentionFacts) -> list[AttentionKind]:
        """Those that these kernels can't compute, so that PyTorch does."""
        return [kind for kind in self.kinds if not facts.takes(kind.width, kind.masked)]


# What people ask for and can't have: kernels that compute no gradients, by the beginnings of their names elsewhere.
WITHOUT_GRADIENTS = {
    "sage": "SageAttention",
    "_sage": "SageAttention",
    "_flash_3": "a FlashAttention 3 that was built locally",
    "_flash_varlen_3": "a FlashAttention 3 that was built locally",
}


def without_gradients(name: str) -> str:
    """What a name means, if that has no backward pass in diffusers; else "". "_flash_3_hub" has one."""
    if name.endswith("_hub") and not name.startswith(("sage", "_sage")):
        return ""
    return next((label for start, label in WITHOUT_GRADIENTS.items() if name.startswith(start)), "")


def package_problem(facts: AttentionFacts) -> str:
    """What is wrong with the package of an attention on this machine, with the remedy; "" if nothing is."""
    if not facts.package:
        return ""
    version = installed_version(facts.package) if find_spec(facts.module) else None
    install = f"run `pip install '{facts.package}>={facts.least_version}'`"
    if version is None:
        return f"needs the package {facts.package}, which is not installed here: {install}"
    if _numbers(version) < _numbers(facts.least_version):
        return f"needs {facts.package} {facts.least_version} or newer, and {version} is installed here: {install}"
    return ""


def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Of a release, as in "2.8.3+cu12torch2.9"."""
    release = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()
