"""scripts/sample.py on the pretended GPU, for tests/scripts/test_sample.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch import nn


def sample_on_gpu(_: Any, arguments: Sequence[str]) -> dict[str, Any]:
    """What `sample.main` returns, and for each class of models with which others it has been on the GPU together."""
    from scripts import sample
    from tests.support import pretended_gpu  # not in the process of the tests, which this module is imported in, too

    together: dict[str, set[str]] = {}
    models: dict[str, nn.Module] = {}
    own = nn.Module.__call__

    def watched(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        name = type(module).__name__
        if hasattr(module, "config") and name in MODELS:
            models[name] = module
            here = {other for other, one in models.items() if next(one.parameters()).device == pretended_gpu.GPU}
            together.setdefault(name, set()).update(here)
        return own(module, *args, **kwargs)

    with (
        mock.patch("modules.distributed.Runtime.default_device", return_value=pretended_gpu.GPU),
        mock.patch.object(nn.Module, "__call__", watched),
        torch.no_grad(),
    ):
        code = sample.main(list(arguments))
    return {"code": code, "together": {name: sorted(others) for name, others in together.items()}}


MODELS = ("CLIPTextModel", "UNet2DConditionModel", "AutoencoderKL")
