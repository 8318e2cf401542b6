"""A logger that can't work is refused before the run starts, with its setting and the remedy."""

import pytest

from modules.config.TrainConfig import TrainConfig
from modules.loggers import access
from modules.loggers.access import logger_problems, wandb_error


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder without any login, and both packages installed."""
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(access, "find_spec", lambda name: name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_missing_package_and_a_missing_login_are_told_by_their_settings(home, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setattr(access, "find_spec", lambda name: name if name == "wandb" else None)
    config = TrainConfig()
    assert logger_problems(config) == []
    config.wandb.enabled = config.mlflow.enabled = True
    found = logger_problems(config)
    assert [problem.path for problem in found] == ["wandb.enabled", "mlflow.enabled"]
    assert [problem.message for problem in found] == [
        "wandb.enabled true: nobody is logged in to Weights & Biases on this machine; run `wandb login`, set "
        "WANDB_API_KEY, or set WANDB_MODE=offline to send the runs later, or turn it off.",
        "mlflow.enabled true: the package mlflow is not installed here; run `pip install mlflow`, or turn it off.",
    ]


@pytest.mark.parametrize(
    ("env", "file", "text"),
    [
        ({"WANDB_API_KEY": "of-nobody"}, "", ""),
        ({"WANDB_MODE": "offline"}, "", ""),
        ({}, ".netrc", "machine api.wandb.ai\n  login user\n  password of-nobody\n"),
        ({}, "_netrc", "machine api.forge.coreweave.com login user password of-nobody\n"),
        ({"NETRC": "~/secrets"}, "secrets", "machine api.wandb.ai login user password of-nobody\n"),
        ({"WANDB_BASE_URL": "https://our.server:8080"}, ".netrc", "machine our.server:8080 login u password p\n"),
        ({}, ".config/wandb/settings", "[default]\nmode = offline\n"),
    ],
)
def test_a_login_is_found_where_wandb_looks_for_it(env, file, text, home):
    assert wandb_error({})
    if file:
        path = home / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert wandb_error(env) == ""


def test_a_login_to_another_server_does_not_count(home):
    (home / ".netrc").write_text("machine github.com login user password of-nobody\n", encoding="utf-8")
    assert wandb_error({})
    (home / ".netrc").write_text("not a netrc file", encoding="utf-8")
    assert wandb_error({})
