"""Figures and samples for MLflow."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from modules.config.errors import UserError, first_line
from modules.loggers.access import refuse_missing_mlflow
from modules.loggers.BackgroundLogger import BackgroundLogger, Figures, SampleFile
from modules.loggers.Logger import LoggedRun
from modules.loggers.run_ids import read_run_id, write_run_id

SERVICE = "mlflow"
MAX_PARAMS = 100  # MLflow's limits for one request, and for the length of a parameter
MAX_METRICS = 1000
MAX_PARAM_LENGTH = 6000
OUTCOMES = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MlflowLogger(BackgroundLogger):
    """Logs to a run at an MLflow server or in a database, in the background. A resumed training continues its run.

        engine.train(..., callbacks=MlflowLogger("http://localhost:5000", experiment="flowers"))

    It needs the package `mlflow`, or for a server only `mlflow-skinny`. Credentials come from MLflow's own variables,
    such as MLFLOW_TRACKING_TOKEN. If the server can't be reached, training continues.

    tracking_uri: the address; by default the variable MLFLOW_TRACKING_URI, or a database in the working folder.
    experiment: the experiment's name; it is created if there is none.
    name: of the run, by default that of the training's folder.
    config: the settings to log as the run's parameters, as plain data.
    samples: whether to send sample images and videos, too, with their prompts.
    every_steps: log the figures of every so many optimizer steps.

    Raises UserError if the package is missing.
    """

    title = "MLflow"

    def __init__(
        self,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        samples: bool = True,
        every_steps: int = 1,
    ):
        super().__init__(every_steps, samples)
        refuse_missing_mlflow()
        self._tracking_uri = tracking_uri or None
        self._experiment = experiment or "Default"
        self._name = name
        self._config = dict(config or {})
        self._client: Any = None
        self._run_id = ""

    def connect(self, run: LoggedRun) -> None:
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # else it prints over the progress bar
        self._client = MlflowClient(tracking_uri=self._tracking_uri)
        self._run_id = read_run_id(run.folder, SERVICE) if run.resumes else ""
        if not (self._run_id and self._continues()):
            self._run_id = self._begin(run)
            write_run_id(run.folder, SERVICE, self._run_id)
        self._log_settings({**run.settings, **self._config})

    def _continues(self) -> bool:
        """Whether the run of before is still there; if so, it is running again."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.update_run(self._run_id, status="RUNNING")
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            self.tell("The run at MLflow is gone; logging to a new one")
            return False
        return True

    def _begin(self, run: LoggedRun) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(self._experiment)
        return self._client.create_run(experiment_id, run_name=self._name or run.folder.name).info.run_id

    def _log_settings(self, settings: Mapping[str, Any]) -> None:
        """Logs what is new as parameters, which can't be changed, and all of it as a file."""
        from mlflow.entities import Param

        if not settings:
            return
        known = self._client.get_run(self._run_id).data.params
        new = (Param(name, value) for name, value in flat_settings(settings) if name not in known)
        while params := list(islice(new, MAX_PARAMS)):
            self._client.log_batch(self._run_id, params=params)
        self._client.log_dict(self._run_id, dict(settings), "settings.json")

    def send_figures(self, batch: Sequence[Figures]) -> None:
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        metrics = (
            Metric(metric_name(name), float(value), int(figures.time * 1000), figures.step)
            for figures in batch
            for name, value in figures.values.items()
        )
        try:
            while some := list(islice(metrics, MAX_METRICS)):
                self._client.log_batch(self._run_id, metrics=some)
        except MlflowException as error:
            if error.error_code == "INVALID_PARAMETER_VALUE":  # it would be refused each time
                raise UserError(first_line(error)) from error
            raise

    def send_samples(self, samples: Sequence[SampleFile], step: int) -> None:
        folder = f"samples/step-{step:09d}"
        for sample in samples:
            self._client.log_artifact(self._run_id, str(sample.path), folder)
        self._client.log_dict(self._run_id, {each.path.name: each.prompt for each in samples}, f"{folder}/prompts.json")

    def disconnect(self) -> None:
        self._client.set_terminated(self._run_id, status=OUTCOMES[self.outcome])


def metric_name(name: str) -> str:
    """The name with "_" for the characters that MLflow refuses."""
    return re.sub(r"[^\w./ -]", "_", name)


def flat_settings(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Name and value of each setting as text, those of sections as "section.name"."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat_settings(value, f"{before}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
            yield metric_name(f"{before}{name}"), text[:MAX_PARAM_LENGTH]
