"""A training never waits for a service, and hears once what does not work."""

import threading

import pytest

from modules.config.errors import UserError
from modules.loggers import BackgroundLogger as module
from modules.loggers.BackgroundLogger import BackgroundLogger
from modules.loggers.Logger import LoggedRun, close_loggers

SECONDS = 300.0


class Service(BackgroundLogger):
    """failures: raised, one after the other, in place of connecting. opened: until it is set, connecting takes."""

    title = "The service"

    def __init__(self, *failures):
        super().__init__()
        self.failures = list(failures)
        self.opened, self.sent = threading.Event(), threading.Event()
        self.steps, self.samples, self.ended = [], [], None

    def connect(self, run):
        assert self.opened.wait(SECONDS)
        if self.failures:
            raise self.failures.pop(0)

    def send_figures(self, batch):
        self.steps += [figures.step for figures in batch]
        self.sent.set()

    def send_samples(self, samples, step):
        self.samples += [(step, sample.name, sample.path.suffix, sample.prompt) for sample in samples]

    def disconnect(self):
        self.ended = self.outcome


@pytest.fixture
def told():
    return []


@pytest.fixture
def run(tmp_path, told):
    return LoggedRun(tmp_path, warn=told.append, tell=told.append)


def test_everything_is_sent_in_order_while_the_training_goes_on(run, told, step_info, samples):
    logger = Service()
    logger.start(run)
    for step in (1, 2):
        logger.on_step(step_info(step))
    logger.on_samples(samples, 2)
    logger.on_step(step_info(3))
    assert logger.steps == []
    logger.on_finished(3)
    logger.opened.set()
    logger.close(SECONDS)
    assert logger.steps == [1, 2, 3]
    assert logger.samples == [(2, "000_a cat", ".png", "a cat, sitting"), (2, "001_a dog", ".mp4", "a dog, sitting")]
    assert logger.ended == "finished"
    assert told in ([], ["Sending the rest to The service"])


def test_what_fails_is_told_once_and_tried_again(run, told, step_info, monkeypatch):
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    logger = Service(ConnectionError("no route"), ConnectionError("no route"), ConnectionError("no route"))
    logger.opened.set()
    logger.start(run)
    logger.on_step(step_info(1))
    assert logger.sent.wait(SECONDS)
    logger.on_step(step_info(2))
    logger.close(SECONDS)
    assert [text for text in told if "Sending" not in text] == [
        "Logging to The service fails (no route); training continues, and it is tried again every minute.",
        "Logging to The service works again",
    ]
    assert logger.steps == [1, 2]


def test_a_mistake_of_the_user_ends_the_logging_and_not_the_training(run, told, step_info):
    logger = Service(UserError("the project's name is too long"))
    logger.opened.set()
    logger.start(run)
    logger.close(SECONDS)
    logger.on_step(step_info(1))
    assert told == ["The service logging stops: the project's name is too long."]


def test_what_does_not_fit_and_what_is_not_sent_at_the_end_is_counted(run, told, step_info, monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    logger = Service()
    logger.start(run)
    for step in range(1, 6):
        logger.on_step(step_info(step))
    logger.close(0)
    logger.opened.set()
    assert told == [
        "The service is too slow or can't be reached: some of the figures are left out there.",
        "The service: the training has ended before all was sent (5 entries missing).",
    ]


def test_a_sample_that_is_gone_is_left_out_with_a_warning(run, told, samples):
    logger = Service()
    logger.start(run)
    (samples / "000_a cat.png").write_bytes(b"")
    logger.on_samples(samples, 2)
    logger.opened.set()
    logger.close(SECONDS)
    assert [name for _, name, *_ in logger.samples] == ["001_a dog"]
    assert any("000_a cat.png can't be read" in text for text in told)


def test_loggers_end_side_by_side(run):
    both = threading.Barrier(2, timeout=SECONDS)
    loggers = [Service(), Service()]
    for logger in loggers:
        logger.opened.set()
        logger.disconnect = both.wait
        logger.start(run)
    close_loggers(loggers, SECONDS)
    assert not both.broken
