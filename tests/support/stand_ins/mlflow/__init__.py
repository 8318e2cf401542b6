"""Stands in for the package of MLflow: the calls that Chorus makes, written to a file in the folder `tracking_uri`.

tests/loggers/test_services.py compares the signatures with those of the real package.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace

from mlflow.exceptions import MlflowException


class MlflowClient:
    def __init__(self, tracking_uri=None):
        if failure := os.environ.get("STAND_IN_FAILS"):
            raise MlflowException(failure)
        self._folder = Path(tracking_uri)
        self._folder.mkdir(exist_ok=True)

    def _write(self, run_id, call, **values):
        with (self._folder / f"{run_id}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"call": call, **values}) + "\n")

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return name

    def create_run(self, experiment_id, run_name=None):
        run_id = f"run{len(list(self._folder.glob('*.jsonl')))}"
        self._write(run_id, "create_run", experiment=experiment_id, name=run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def get_run(self, run_id):
        lines = (self._folder / f"{run_id}.jsonl").read_text(encoding="utf-8").splitlines()
        known = {name for line in map(json.loads, lines) for name in line.get("params", {})}
        return SimpleNamespace(data=SimpleNamespace(params=dict.fromkeys(known)))

    def update_run(self, run_id, status=None):
        if not (self._folder / f"{run_id}.jsonl").exists():
            raise MlflowException(f"Run '{run_id}' not found", "RESOURCE_DOES_NOT_EXIST")
        self._write(run_id, "update_run", status=status)

    def log_batch(self, run_id, metrics=(), params=()):
        assert len(metrics) <= 1000
        assert len(params) <= 100
        shown = [[metric.key, metric.value, metric.step] for metric in metrics]
        self._write(run_id, "log_batch", metrics=shown, params={param.key: param.value for param in params})

    def log_artifact(self, run_id, local_path, artifact_path=None):
        self._write(run_id, "log_artifact", file=f"{artifact_path}/{Path(local_path).name}")

    def log_dict(self, run_id, dictionary, artifact_file):
        self._write(run_id, "log_dict", file=artifact_file, content=dictionary)

    def set_terminated(self, run_id, status=None):
        self._write(run_id, "set_terminated", status=status)
