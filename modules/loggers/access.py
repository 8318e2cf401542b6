"""Whether this machine has what W&B, MLflow and the webhook need, found without importing their packages."""

from __future__ import annotations

import configparser
import netrc
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from modules.config.errors import UserError
from modules.config.problems import Problem, set_to, switch_off
from modules.config.TrainConfig import TrainConfig
from modules.loggers.webhook_address import address_error

WANDB_HOSTS = {"api.wandb.ai", "api.forge.coreweave.com"}  # its cloud, by its old and its new address
WITHOUT_LOGIN = {"offline", "disabled", "dryrun"}  # values of WANDB_MODE


def logger_problems(config: TrainConfig) -> list[Problem]:
    """Of each logger that is switched on and can't work here."""
    checks = {"wandb": (config.wandb.enabled, wandb_error), "mlflow": (config.mlflow.enabled, mlflow_error)}
    errors = {f"{name}.enabled": find() for name, (enabled, find) in checks.items() if enabled}
    found = [
        Problem(path, f"{path} true: {error}, or turn it off.", remedy=switch_off(path))
        for path, error in errors.items()
        if error
    ]
    service = config.webhook.service
    if service != "off" and (error := address_error(service)):
        path = "webhook.service"
        found.append(Problem(path, f"{path} {service}: {error}, or turn it off.", remedy=set_to(path, "off", "Off")))
    return found


def refuse_missing_wandb() -> None:
    """Raises UserError if runs can't be logged to Weights & Biases."""
    if error := wandb_error():
        raise UserError(f"WandbLogger: {error}.")


def refuse_missing_mlflow() -> None:
    """Raises UserError if runs can't be logged to MLflow."""
    if error := mlflow_error():
        raise UserError(f"MlflowLogger: {error}.")


def wandb_error(env: Mapping[str, str] = os.environ) -> str:
    """Why runs can't be logged to Weights & Biases, with the remedy; "" if they can, as far as can be seen."""
    if find_spec("wandb") is None:
        return "the package wandb is not installed here; run `pip install wandb`"
    if _is_logged_in(env):
        return ""
    return (
        "nobody is logged in to Weights & Biases on this machine; run `wandb login`, set WANDB_API_KEY, or set "
        "WANDB_MODE=offline to send the runs later"
    )


def mlflow_error() -> str:
    """Why runs can't be logged to MLflow, with the remedy; "" if they can, as far as can be seen."""
    return "" if find_spec("mlflow") else "the package mlflow is not installed here; run `pip install mlflow`"


def _is_logged_in(env: Mapping[str, str]) -> bool:
    if env.get("WANDB_MODE") in WITHOUT_LOGIN or env.get("WANDB_API_KEY") or env.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = _wandb_settings(env)
    if settings.get("mode") in WITHOUT_LOGIN or settings.get("api_key"):
        return True
    address = env.get("WANDB_BASE_URL") or settings.get("base_url") or ""
    hosts = {urlsplit(address).netloc} if address else WANDB_HOSTS
    return any(host in hosts or "wandb" in host for path in _netrc_files(env) for host in _hosts_in(path))


def _wandb_settings(env: Mapping[str, str]) -> Mapping[str, str]:
    """What `wandb login` and `wandb offline` have written: for the user, and for the working folder."""
    folder = Path(env.get("WANDB_CONFIG_DIR") or os.path.expanduser("~/.config/wandb"))
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read([folder / "settings", Path("wandb") / "settings"], encoding="utf-8")
    except (configparser.Error, OSError, ValueError):  # W&B will say so
        return {}
    return parser["default"] if parser.has_section("default") else {}


def _netrc_files(env: Mapping[str, str]) -> Iterator[Path]:
    if named := env.get("NETRC"):
        yield Path(os.path.expanduser(named))
    else:
        yield from (Path(os.path.expanduser(f"~/{name}")) for name in (".netrc", "_netrc"))


def _hosts_in(path: Path) -> list[str]:
    """The hosts with credentials in a netrc file; the credentials are not kept."""
    try:
        return list(netrc.netrc(path).hosts)
    except (OSError, ValueError, netrc.NetrcParseError):  # missing, or W&B will say so
        return []
