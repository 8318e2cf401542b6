"""The short runs of the trainer's tests, started in every way."""

from tests.trainer.conftest import config_file, make_config, start, train  # noqa: F401 - fixtures
