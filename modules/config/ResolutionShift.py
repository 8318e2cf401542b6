from dataclasses import dataclass
from typing import Literal

ShiftLaw = Literal["exponential", "root", "side"]


@dataclass(frozen=True)
class ResolutionShift:
    """Parameters of a shift of timesteps that grows with the image size; the defaults are those of FLUX.

    law: "exponential" if the logarithm of the shift is linear in the number of tokens, through (base_tokens,
        base_shift) and (max_tokens, max_shift); "root" if the shift is
        base_shift + max_shift sqrt(tokens / base_tokens); "side" if it, or its logarithm, is sqrt(tokens / base_tokens)
        of a single frame.
    is_linear: whether the law "side" gives the shift itself.
    """

    base_shift: float = 0.5
    max_shift: float = 1.15
    base_tokens: int = 256
    max_tokens: int = 4096
    law: ShiftLaw = "exponential"
    is_linear: bool = False
