"""The lines that say who trains."""

from __future__ import annotations

import pytest
import torch

from modules.engine import joining
from modules.engine.TrainingEngine import TrainingEngine
from tests.support.engine_data import small_net

ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "12355"}


@pytest.mark.parametrize(
    ("options", "precision"), [({}, "no"), ({"use_amp": True, "amp_dtype": torch.float16}, "fp16")]
)
def test_the_ranks_are_introduced_once_the_precision_is_known(options, precision, monkeypatch):
    told = []

    def join(config, tell=print, **names):
        if tell is not None:
            told.append(config.model.mixed_precision)
        return 0, 0, 1

    monkeypatch.setattr(joining, "setup_distributed", join)
    for name, value in ALONE.items():  # setup_distributed would set them for good
        monkeypatch.setenv(name, value)
    TrainingEngine.setup_distributed(0, 1)
    assert told == []
    TrainingEngine(small_net(), distributed=True, **options)
    assert told == [precision]
