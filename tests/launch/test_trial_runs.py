"""The trial runs of scripts/validate_multigpu.py: real ones on two CPU ranks, and what they refuse to call equal."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import pytest

from modules.launch.TrialRuns import TrialRuns, check_shares, compare_losses, compare_weights
from modules.machine.doctor.child import ChildAnswer

LOSSES = {1: 0.5, 2: 0.25}


@pytest.mark.skipif(sys.platform != "linux", reason="the ranks are forked to save their imports")
def test_two_ranks_of_this_machine_train_like_one_and_each_other_training_is_told(tmp_path):
    from tests.support.fork_server import ForkedScript

    def run(command, seconds: float) -> ChildAnswer:
        output = tmp_path / "output.txt"
        code = ForkedScript(command[1:], {**os.environ, "CUDA_VISIBLE_DEVICES": ""}, output).wait(seconds)
        return ChildAnswer(code, "", output.read_text(encoding="utf-8"))

    def run_another_seed_on_ranks(command, seconds: float) -> ChildAnswer:
        path = Path(command[2].removeprefix("--config="))
        settings = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(settings | {"seed": 7 if settings["enable_multi_gpu"] else 42}), encoding="utf-8")
        return run(command, seconds)

    for name in ("same", "other"):
        (tmp_path / name).mkdir()
    results = list(TrialRuns(tmp_path / "same", 2, [], "gloo", run).checks())
    assert [result.state for result in results] == ["ok"] * 8, results
    assert "cached 8 + 8" in results[5].text
    states = {}
    for result in TrialRuns(tmp_path / "other", 2, [], "gloo", run_another_seed_on_ranks).checks():
        states[result.name] = result.state
        if result.name == "same EMA":
            break
    assert [states[f"same {what}"] for what in ("losses", "weights", "EMA")] == ["fails"] * 3


def test_the_first_run_that_fails_is_the_last_check_and_names_its_log(tmp_path):
    (result,) = TrialRuns(tmp_path, 2, [], "gloo", lambda command, seconds: ChildAnswer(1, "", "no memory.\n")).checks()
    assert (result.state, result.text) == ("fails", "no memory")
    assert str(tmp_path / "one-rank" / "log") in result.remedy


@pytest.mark.parametrize("found", [{1: 0.5}, {1: 0.5, 2: 0.251}, {1: 0.5, 2: math.nan}, {}])
def test_other_losses_fail(found):
    assert compare_losses("losses", LOSSES, LOSSES).state == "ok"
    assert compare_losses("losses", LOSSES, found).state == "fails"


def test_other_weights_fail():
    import torch

    weights = {"a": torch.ones(4), "b": torch.zeros(2)}
    assert (
        compare_weights("EMA", weights, {name: tensor * (1 + 1e-5) for name, tensor in weights.items()}).state == "ok"
    )
    for found in ({"a": weights["a"]}, {**weights, "b": torch.ones(2)}, {**weights, "a": torch.full((4,), math.nan)}):
        assert compare_weights("EMA", weights, found).state == "fails"


@pytest.mark.parametrize(("cached", "state"), [([8, 8], "ok"), ([16, 0], "fails"), ([8, 7], "fails")])
def test_each_rank_has_to_cache_its_part(cached, state):
    assert check_shares(cached, 16).state == state
