"""Whatever stands in a settings file, the dry run accepts it or says in sentences why it can't be trained."""

import json
import random

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.config.files import to_values
from modules.config.SampleConfig import SampleConfig
from modules.config.TrainConfig import TrainConfig
from scripts import train
from tests.support.mutations import bounded, cases, check_text, mutated_values

FIXED = ("workspace_dir", "cache_dir", "version")  # where it would look, and what the numbers of a file mean


@pytest.fixture
def values(tmp_path, tiny_sd15, picture_folder):
    """Every setting, so that each can be mutated."""
    config = TrainConfig(
        workspace_dir=str(tmp_path / "run"),
        cache_dir=str(tmp_path / "cache"),
        concepts=[ConceptConfig(path=str(picture_folder()))],
    )
    config.model.base, config.data.resolution, config.data.bucket_step = str(tiny_sd15), 64, 8
    config.sampling.samples = [SampleConfig(prompt="a cat")]
    return to_values(config)


@pytest.mark.parametrize("seeds", cases(1000))
def test_mutated_settings_are_accepted_or_refused_in_sentences(seeds, values, tmp_path, capfd):
    path = tmp_path / "run.json"
    for seed in seeds:
        path.write_text(json.dumps(mutated_values(values, random.Random(seed), FIXED)), encoding="utf-8")
        with bounded(seed):
            code = train.main(["--config", str(path), "--dry-run"])
        out, error = capfd.readouterr()
        check_text(out + error)
        assert (code, bool(error)) in ((0, False), (2, True)), (seed, out[-300:], error[:300])
        assert "Traceback" not in error
