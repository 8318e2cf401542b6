"""diffusers and transformers, imported once and without their chatter."""

from __future__ import annotations

import os
from types import ModuleType


def import_diffusers() -> ModuleType:
    """diffusers, with warnings that users can't act on and progress bars of other programs' making switched off.

    Before the first import: transformers speaks while it is imported. A verbosity that the user has set stays.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    import diffusers
    import transformers

    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    return diffusers
