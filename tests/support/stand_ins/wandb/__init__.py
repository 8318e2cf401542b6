"""Stands in for the package of Weights & Biases: the calls that Chorus makes, written to a file below the run's `dir`.

tests/loggers/test_services.py compares the signatures with those of the real package.
"""

import json
import os
from pathlib import Path


class Settings:
    def __init__(self, *, silent=False, console="auto", disable_git=False, init_timeout=90.0, finish_timeout=0.0):
        self.values = dict(vars(), self=None)


class Media:
    def __init__(self, data_or_path, caption=None):
        self.shown = {"file": Path(data_or_path).name, "caption": caption}


class Image(Media):
    pass


class Video(Media):
    pass


class Run:
    url = None

    def __init__(self, folder, run_id):
        self._path = Path(folder) / "wandb" / f"{run_id}.jsonl"
        self._path.parent.mkdir(exist_ok=True)

    def write(self, call, **values):
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"call": call, **values}, default=lambda media: media.shown) + "\n")

    def define_metric(self, name, step_metric=None, hidden=None):
        pass

    def log(self, data):
        self.write("log", data=data)

    def finish(self, exit_code=None):
        self.write("finish", exit_code=exit_code)


def setup(settings=None):
    assert settings.values["silent"]


def init(
    entity=None,
    project=None,
    dir=None,
    id=None,
    name=None,
    config=None,
    allow_val_change=None,
    reinit=None,
    resume=None,
    save_code=None,
    settings=None,
):
    if failure := os.environ.get("STAND_IN_FAILS"):
        raise ConnectionError(failure)
    run = Run(dir, id)
    run.write("init", project=project, entity=entity, name=name, resume=resume, config=config)
    return run
