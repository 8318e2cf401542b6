"""Errors about model files that can't be used."""

from modules.config.errors import UserError


class WeightsError(UserError):
    """A model file or folder that can't be read or is of the wrong kind; `str()` is one sentence with its path."""


def loading_reason(error: Exception) -> str:
    """Why a library could not load a component, as a clause without a full stop."""
    if "ignore_mismatched_sizes" in str(error):  # transformers, which prints the sizes to the terminal
        return "the shapes of its tensors differ from its config.json"
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".") if lines else type(error).__name__
