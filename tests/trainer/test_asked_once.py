"""One start asks each question once in a process."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from modules.distributed.environments import find_environment
from modules.launch import start
from modules.machine.backend import choose_backend
from modules.machine.strategy import choose_strategy
from modules.trainer.GenericTrainer import GenericTrainer
from modules.weights.inspect import check_base
from scripts import train

QUESTIONS = (check_base, choose_backend, choose_strategy, find_environment)
ONCE = {question.__name__: 1 for question in QUESTIONS}


@pytest.fixture
def asked(monkeypatch) -> Counter[str]:
    """How often each question has been asked, wherever it is imported."""
    import modules.data.run_summary
    import modules.trainer.prepare_run  # noqa: F401

    counts: Counter[str] = Counter()
    for question in QUESTIONS:

        def ask(*args, question=question, **kwargs):
            counts[question.__name__] += 1
            return question(*args, **kwargs)

        for module in list(sys.modules.values()):
            if getattr(module, question.__name__, None) is question:
                monkeypatch.setattr(module, question.__name__, ask)
    return counts


@pytest.fixture
def arguments(make_config, tmp_path) -> list[str]:
    from modules.config.files import save_config

    save_config(make_config("max_steps=1", f"workspace_dir={tmp_path / 'run'}"), tmp_path / "run.yaml")
    return ["--config", str(tmp_path / "run.yaml")]


def test_a_dry_run_asks_once(arguments, asked):
    assert train.main([*arguments, "--dry-run", "--multi_gpu", "--world_size=2"]) == 0
    assert asked == ONCE


def test_a_start_on_one_device_asks_once(arguments, asked, monkeypatch):
    opened = []
    monkeypatch.setattr(GenericTrainer, "train", lambda trainer: opened.append(trainer.prepared.base))
    monkeypatch.setattr(GenericTrainer, "end", lambda trainer: None)
    assert train.main(arguments) == 0
    assert opened
    assert asked == ONCE


def test_the_supervisor_of_a_start_asks_once(arguments, asked, monkeypatch):
    monkeypatch.setattr(start, "supervise_training", lambda plan, waiting: 0)
    assert train.main([*arguments, "--multi_gpu", "--world_size=2"]) == 0
    assert asked == ONCE
