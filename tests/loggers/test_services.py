"""What W&B and MLflow get of a training, and that a resumed one continues there."""

import importlib
import inspect
import json
import os
import subprocess
import sys
from functools import reduce
from importlib.util import find_spec, module_from_spec, spec_from_file_location

import pytest

from modules.config.errors import UserError
from modules.loggers.Logger import LoggedRun
from modules.loggers.MlflowLogger import MlflowLogger, metric_name
from modules.loggers.run_ids import read_run_id
from modules.loggers.WandbLogger import WandbLogger
from tests.loggers.conftest import STAND_INS
from tests.support.fork_server import ROOT

SECONDS = 300.0
SETTINGS = {"optimizer": {"learning_rate": 1e-4}, "concepts": [{"path": "images"}]}


def calls(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def train(logger, run, steps, step_info, samples=None, fails=False):
    logger.start(run)
    for step in steps:
        logger.on_step(step_info(step))
    logger.on_validation(step, 9, 0.5, None)
    if samples:
        logger.on_samples(samples, step)
    if fails:
        logger.on_failed("no disk")
    else:
        logger.on_finished(step)
    logger.close(SECONDS)


@pytest.mark.usefixtures("services")
def test_wandb_gets_settings_figures_and_samples_and_a_resumed_training_its_run(tmp_path, step_info, samples):
    folder = tmp_path / "flowers"
    folder.mkdir()
    train(WandbLogger("garden", entity="me"), LoggedRun(folder, SETTINGS), [1, 2], step_info, samples)
    train(WandbLogger("garden"), LoggedRun(folder, SETTINGS, resumes=True), [2, 3], step_info, fails=True)
    (path,) = (folder / "wandb").iterdir()
    assert path.stem == read_run_id(folder, "wandb")
    init, *logged = calls(path)
    assert init == {
        "call": "init", "project": "garden", "entity": "me", "name": "flowers", "resume": "allow", "config": SETTINGS,
    }  # fmt: skip
    data = [call["data"] for call in logged if call["call"] == "log"]
    assert [each["step"] for each in data if "loss" in each] == [1, 2, 2, 3]
    assert [each["validation/loss"] for each in data if "validation/loss" in each] == [0.5, 0.5]
    assert data[0]["lr/unet"] == 1e-4
    assert data[3] == {
        "step": 2,
        "samples/000_a cat": {"file": "000_a cat.png", "caption": "a cat, sitting"},
        "samples/001_a dog": {"file": "001_a dog.mp4", "caption": "a dog, sitting"},
    }
    assert [call["exit_code"] for call in logged if call["call"] == "finish"] == [0, 1]


@pytest.mark.usefixtures("services")
def test_mlflow_gets_settings_figures_and_samples_and_a_resumed_training_its_run(tmp_path, step_info, samples):
    folder, uri = tmp_path / "flowers", tmp_path / "server"
    folder.mkdir()
    train(MlflowLogger(str(uri), "garden"), LoggedRun(folder, SETTINGS), [1, 2], step_info, samples)
    changed = {**SETTINGS, "seed": 7}
    train(MlflowLogger(str(uri)), LoggedRun(folder, changed, resumes=True), [2, 3], step_info, fails=True)
    (path,) = uri.iterdir()
    made, *logged = calls(path)
    assert made == {"call": "create_run", "experiment": "garden", "name": "flowers"}
    params = [call["params"] for call in logged if call.get("params")]
    assert params == [{"optimizer.learning_rate": "0.0001", "concepts": '[{"path": "images"}]'}, {"seed": "7"}]
    losses = [point for call in logged for name, *point in call.get("metrics", ()) if name == "loss"]
    assert losses == [[1, 1], [0.5, 2], [0.5, 2], [1 / 3, 3]]
    folder = "samples/step-000000002"
    files = [call["file"] for call in logged if call["call"] == "log_artifact"]
    assert files == [f"{folder}/000_a cat.png", f"{folder}/001_a dog.mp4"]
    prompts = {"000_a cat.png": "a cat, sitting", "001_a dog.mp4": "a dog, sitting"}
    assert {"call": "log_dict", "file": f"{folder}/prompts.json", "content": prompts} in logged
    assert [call["status"] for call in logged if "status" in call] == ["FINISHED", "RUNNING", "FAILED"]


@pytest.mark.usefixtures("services")
def test_a_training_whose_run_was_deleted_at_mlflow_gets_a_new_one(tmp_path, step_info):
    uri = tmp_path / "server"
    train(MlflowLogger(str(uri)), LoggedRun(tmp_path), [1], step_info)
    (uri / "run0.jsonl").unlink()
    told = []
    train(MlflowLogger(str(uri)), LoggedRun(tmp_path, resumes=True, tell=told.append), [2], step_info)
    assert "The run at MLflow is gone; logging to a new one" in told
    assert list(uri.iterdir())


@pytest.mark.usefixtures("services")
def test_a_training_that_starts_anew_in_a_folder_is_another_run(tmp_path, step_info):
    for _ in range(2):
        train(WandbLogger(), LoggedRun(tmp_path), [1], step_info)
    assert len(list((tmp_path / "wandb").iterdir())) == 2


def test_names_of_metrics_are_as_mlflow_takes_them():
    assert metric_name("f1 @ 0.5 (macro)/größe") == "f1 _ 0.5 _macro_/größe"


@pytest.mark.parametrize(("kind", "package"), [(WandbLogger, "wandb"), (MlflowLogger, "mlflow")])
def test_a_missing_package_is_named_when_the_logger_is_made(kind, package, monkeypatch):
    monkeypatch.setattr("modules.loggers.access.find_spec", lambda name: None)
    with pytest.raises(UserError, match=f"{package} is not installed here; run `pip install {package}`"):
        kind()


# --- the packages themselves, which CI does not install ---------------------------------------------------------------

CLIENT = (
    "get_experiment_by_name", "create_experiment", "create_run", "get_run", "update_run", "log_batch", "log_artifact",
    "log_dict", "set_terminated",
)  # fmt: skip
CALLED = {
    "wandb": ("init", "setup", "Image", "Video", "Run.log", "Run.define_metric", "Run.finish"),
    "mlflow": tuple(f"MlflowClient.{name}" for name in CLIENT),
}

REAL = r"""
import sys
from pathlib import Path
from modules.loggers.Logger import LoggedRun
from modules.loggers.MlflowLogger import MlflowLogger
from modules.loggers.WandbLogger import WandbLogger
from modules.session.StepInfo import StepInfo

folder, samples = map(Path, sys.argv[1:3])
problems = []
for first in (1, 2):
    for logger in (WandbLogger("garden"), MlflowLogger(f"sqlite:///{folder / 'server.db'}", "garden")):
        logger.start(LoggedRun(folder, {"seed": first}, first == 2, problems.append, print))
        for step in (first, first + 1):
            logger.on_step(StepInfo(1, step, 3, 1 / step, 1.0, 1e-4, 4, 0.1, 1.0, {"lr/unet": 1e-4}))
        logger.on_samples(samples, step)
        logger.on_finished(step)
        logger.close(300)
assert not problems, problems

from mlflow import MlflowClient
client = MlflowClient(f"sqlite:///{folder / 'server.db'}")
(run,) = client.search_runs([client.get_experiment_by_name("garden").experiment_id])
print([(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "loss")])
print(run.info.run_name, run.info.status, run.data.params)
"""


def _skip_without(package):
    spec = find_spec(package)
    if spec is None:
        pytest.skip(f"needs the package {package}: pip install {package}")


@pytest.mark.proof
def test_the_packages_themselves_log_a_training_offline_and_continue_it(tmp_path, samples):
    for package in ("wandb", "mlflow"):
        _skip_without(package)
    folder = tmp_path / "flowers"
    folder.mkdir()
    env = {**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", REAL, folder, samples], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2:] == [
        "[(1, 1.0), (2, 0.5), (2, 0.5), (3, 0.3333333333333333)]", "flowers FINISHED {'seed': '1'}",
    ]  # fmt: skip
    runs = sorted((folder / "wandb").glob("offline-run-*"))
    assert [run.name.rpartition("-")[2] for run in runs] == [read_run_id(folder, "wandb")] * 2
    assert all(any(run.rglob("*.png")) for run in runs)


@pytest.mark.proof
@pytest.mark.parametrize(("package", "callables"), CALLED.items())
def test_the_stand_ins_take_only_what_the_packages_take(package, callables):
    _skip_without(package)
    spec = spec_from_file_location("stand_in", STAND_INS / package / "__init__.py")
    stand_in = module_from_spec(spec)
    spec.loader.exec_module(stand_in)
    real = importlib.import_module(package)
    for path in callables:
        ours, theirs = (reduce(getattr, path.split("."), module) for module in (stand_in, real))
        assert inspect.signature(ours).parameters.keys() <= inspect.signature(theirs).parameters.keys(), path
    if package == "wandb":
        assert inspect.signature(stand_in.Settings).parameters.keys() <= real.Settings.model_fields.keys()
