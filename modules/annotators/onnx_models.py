"""Models in ONNX files, by the optional package onnxruntime."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modules.config.errors import UserError, first_line
from modules.config.installation import IS_INSTALLED
from modules.config.regular_file import check_regular
from modules.weights.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Sequence

ADVICE = "`pip install chorus[onnx]`" if IS_INSTALLED else "`python -m pip install onnxruntime` in its environment"


class OnnxModel:
    """An ONNX file that takes one batch of images.

    Runs on a GPU if `on_gpu` and the installed onnxruntime can, else on the CPU.
    Raises UserError if onnxruntime is missing, and WeightsError if the file can't be used.
    """

    def __init__(self, path: Path, on_gpu: bool = False):
        check_onnxruntime()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors, which are raised, too
        usable = onnxruntime.get_available_providers()
        wanted = ["CUDAExecutionProvider"] if on_gpu else []
        providers = [name for name in (*wanted, "CPUExecutionProvider") if name in usable]
        try:
            check_regular(path)
            self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except OSError as error:
            raise WeightsError(f"'{path}': can't be read ({error.strerror}); choose another file.") from error
        except MemoryError:
            raise
        except Exception as error:  # onnxruntime's own classes, which have no common base
            raise WeightsError(f"'{path}': can't be loaded as an ONNX model: {first_line(error)}.") from error
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4:
            raise WeightsError(f"'{path}': does not take a single batch of images; choose another model.")
        self.path = path
        self._input = inputs[0].name
        self.dtype: Any = np.float16 if "float16" in inputs[0].type else np.float32
        self.shape: Sequence[int | None] = [
            one if isinstance(one, int) and one > 0 else None for one in inputs[0].shape
        ]
        """Of its input; None for a size that may be any."""

    def run(self, batch: np.ndarray) -> list[np.ndarray]:
        """Its outputs. batch: float32; split where the file has a fixed batch size of 1. Raises WeightsError."""
        parts = np.split(batch, len(batch)) if self.shape[0] == 1 else [batch]
        with _refusing(self.path):
            outputs = [self._session.run(None, {self._input: part.astype(self.dtype)}) for part in parts]
        return [np.concatenate(one).astype(np.float32) for one in zip(*outputs, strict=True)]


def check_onnxruntime() -> None:
    """Raises UserError if onnxruntime is not installed, without importing it."""
    if find_spec("onnxruntime") is None:
        raise UserError(f"ONNX models need the package onnxruntime, which is not installed: {ADVICE} adds it.")


@contextlib.contextmanager
def _refusing(path: Path) -> Any:
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # as above
        raise WeightsError(f"'{path}': the ONNX model fails: {first_line(error)}.") from error
