"""Learning-rate schedules: a factor for the base rate as a pure function of the optimizer step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from modules.config.schedule_pieces import Piece, read_pieces

if TYPE_CHECKING:
    from modules.config.ScheduleConfig import ScheduleConfig

INVERSE_SQRT_STEPS = 10_000  # its time scale where there is no warm-up, as in big_vision and transformers


def schedule_factor(config: ScheduleConfig, step: int, total_steps: int) -> float:
    """The factor for the base learning rate in optimizer step `step` (from 0) of `total_steps`.

    The warm-up rises linearly to 1 in its last step. After it, the schedules decay towards `final_share`; all except
    the inverse square root and the cosine that rises again would reach it after the last step of the run. Piecewise
    constant has factors of its own.
    """
    warmup = warmup_steps(config, total_steps)
    if step < warmup:
        return (step + 1) / warmup
    if config.name == "piecewise":
        return _piecewise(read_pieces(config.pieces), step, total_steps)
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    if config.name == "inverse_sqrt":
        decay = _inverse_sqrt(step - warmup, warmup or INVERSE_SQRT_STEPS)
    elif config.name == "cosine_restarts":
        decay = _cosine_restarts(progress, config.restarts)
    elif config.name == "wsd":
        decay = _cosine(_decay_progress(step, warmup, _share_or_steps(config.decay, total_steps), total_steps))
    elif config.name == "polynomial":
        decay = (1.0 - progress) ** config.power
    else:
        decay = {
            "constant": 1.0,
            "linear": 1.0 - progress,
            "cosine": _cosine(progress),
            "cosine_waves": _cosine(2 * config.restarts * progress),
            "rex": _rex(progress, config.rex_d),
        }[config.name]
    return config.final_share + (1.0 - config.final_share) * decay


def warmup_steps(config: ScheduleConfig, total_steps: int) -> int:
    """The number of warm-up steps; a setting below 1 is a fraction of all steps."""
    return _share_or_steps(config.warmup, total_steps)


def _share_or_steps(setting: float, total_steps: int) -> int:
    # rounded first, for 0.07 * 100 is 7.000000000000001
    return math.ceil(round(setting * total_steps, 6)) if setting < 1 else int(setting)


def _decay_progress(step: int, warmup: int, decay_steps: int, total_steps: int) -> float:
    """How much of the decay of WSD has passed, from 0 to 1: Hu et al. 2024, arXiv 2404.06395, section 4.

    The shape of the decay is that of transformers' and kohya's schedules of this name.
    """
    start = max(warmup, total_steps - decay_steps)
    return min(1.0, max(0, step - start) / max(1, total_steps - start))


def _cosine(progress: float) -> float:
    """Loshchilov & Hutter 2017, arXiv 1608.03983, eq. 5, without restarts."""
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def _cosine_restarts(progress: float, count: int) -> float:
    """`count` cosine cycles of equal length, each from 1 to 0; the same paper, with T_mult = 1."""
    return 0.0 if progress >= 1.0 else _cosine((count * progress) % 1.0)


def _rex(progress: float, d: float) -> float:
    """Chen, Wolfe & Kyrillidis 2022, "REX: Revisiting Budgeted Training", arXiv 2107.04197, section 3. Its d is 0.5."""
    return (1.0 - progress) / ((1.0 - d) + d * (1.0 - progress))


def _piecewise(pieces: list[Piece], step: int, total_steps: int) -> float:
    """The factor of the piece that a step (from 0) lies in; an end is the first step of the next piece."""
    return next(piece.factor for piece in pieces if step < piece.end * (total_steps if piece.end < 1 else 1))


def _inverse_sqrt(steps: int, time_scale: int) -> float:
    """`steps` after the warm-up; Vaswani et al. 2017, arXiv 1706.03762, eq. 3, where the warm-up is the time scale."""
    return math.sqrt(time_scale / (steps + time_scale))
