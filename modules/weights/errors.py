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


def hub_problem(error: BaseException) -> str:
    """Why a model could not be fetched from the Hub and what to do, as a clause without a full stop.

    The classes of huggingface_hub and its HTTP client are recognized by name, so that neither has to be imported.
    """
    names: set[str] = set()
    cause: BaseException | None = error
    while cause is not None:
        names |= {kind.__name__ for kind in type(cause).__mro__}
        cause = cause.__cause__ or cause.__context__
    for known, text in _HUB_PROBLEMS.items():
        if known in names:
            return text
    return f"{loading_reason(error) if isinstance(error, Exception) else error}; check the name and the connection"


_UNREACHABLE = "the Hub can't be reached, and the model isn't on this machine; check the connection or choose a folder"
_HUB_PROBLEMS = {
    "GatedRepoError": "its authors ask for an agreement; accept it on the model's page, then run `hf auth login`",
    "RevisionNotFoundError": "the model has no such revision; check the name",
    "RepositoryNotFoundError": "there is no such model, or it is private; check the name, or run `hf auth login`",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, and the model is not on this machine; unset it, or choose a folder",
    "TransportError": _UNREACHABLE,
    "ConnectionError": _UNREACHABLE,
    "TimeoutError": _UNREACHABLE,
}
