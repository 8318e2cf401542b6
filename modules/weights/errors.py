"""Errors about model files that can't be used."""

import contextlib
import pickle
from collections.abc import Callable, Iterator

from modules.config.errors import UserError


class WeightsError(UserError):
    """A model file or folder that can't be read or is of the wrong kind; `str()` is one sentence with its path."""


UNSAFE_PICKLE = "is damaged, or contains more than weights, which could run code"
# Libraries raise these on purpose, with a message that makes sense without their code. Of others the class says more.
_EXPLAINED = (OSError, ValueError, RuntimeError, ImportError)


@contextlib.contextmanager
def refusing(refusal: Callable[[Exception], UserError]) -> Iterator[None]:
    """Context in which an error of a library becomes the refusal of the file that it reads.

    Malformed files make the libraries raise errors of any class, `Exception` itself included. Lack of memory is none of
    the file's faults and stays what it is.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise refusal(error) from error


def loading_reason(error: Exception) -> str:
    """Why a library could not load a component, as a clause without a full stop."""
    if isinstance(error, pickle.UnpicklingError):  # torch's message advises to load it all the same
        return f"its file {UNSAFE_PICKLE}"
    if "ignore_mismatched_sizes" in str(error):  # transformers, which prints the sizes to the terminal
        return "the shapes of its tensors differ from its config.json"
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    line = lines[0][:300].rstrip(".")
    return line if isinstance(error, _EXPLAINED) or type(error) is Exception else f"{type(error).__name__}: {line}"
