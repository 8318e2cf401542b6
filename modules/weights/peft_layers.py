"""The parts of peft that adapters of our own are made of; other modules import it inside of functions."""

from modules.layers.quiet_imports import import_peft

import_peft()  # before anything else imports it

from peft.tuners.lokr.layer import factorization  # noqa: E402
from peft.tuners.lycoris_utils import LycorisConfig, LycorisLayer  # noqa: E402

__all__ = ["LycorisConfig", "LycorisLayer", "factorization"]
