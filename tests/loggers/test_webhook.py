"""Messages about a run reach a server as its service wants them, and never hold up the run."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.loggers import WebhookLogger as logger_module
from modules.loggers import webhook_address, webhook_sending
from modules.loggers.access import logger_problems
from modules.loggers.Logger import LoggedRun
from modules.loggers.run_loggers import run_loggers
from modules.loggers.webhook_address import Address, forget_address, read_address, save_address
from modules.loggers.webhook_messages import Message, request_of
from modules.loggers.webhook_sending import NotSentError, deliver, deliver_within, post
from modules.loggers.WebhookLogger import WebhookLogger, tell_end
from modules.session.RunFolder import RunFolder
from scripts import webhook as script

SECONDS = 300.0


@pytest.fixture
def server():
    """url; got: what was posted; answers: the codes to answer with, then 200; opened: until it is set, none is."""
    found = SimpleNamespace(got=[], answers=[], opened=threading.Event(), arrived=threading.Semaphore(0))
    found.opened.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.got.append((self.path, self.headers, json.loads(body)))
            found.arrived.release()
            found.opened.wait(SECONDS)
            self.send_response(found.answers.pop(0) if found.answers else 200)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args):
            """Not to the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        found.url = f"http://127.0.0.1:{running.server_port}"
        yield found
        found.opened.set()
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def saved(tmp_path, monkeypatch):
    """The file of the address, in a folder of its own, and no pauses."""
    path = tmp_path / "state" / "webhook.json"
    for module in (webhook_address, script):
        monkeypatch.setattr(module, "webhook_file", lambda: path)
    for name in ("CHORUS_WEBHOOK_URL", "CHORUS_WEBHOOK_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(webhook_sending, "PAUSES_AT_THE_END", (0.0, 0.0))
    monkeypatch.setattr(logger_module, "PAUSES", (0.0, 0.0))
    return path


FAILED = Message("cat_*1", "failed", "No <@room> in /home/anna/x", step=7, total=1200, loss=0.25, time=5.0)


def test_each_service_gets_its_own_body(server):
    url = f"{server.url}/hook"
    for service in ("discord", "slack", "ntfy", "json"):
        post(service, Address(url, "tok"), FAILED)
    paths, headers, bodies = zip(*server.got, strict=True)
    assert paths == ("/hook", "/hook", "/", "/hook")
    assert {one["Authorization"] for one in headers} == {"Bearer tok"}
    discord, slack, ntfy, own = bodies
    assert discord["allowed_mentions"] == {"parse": []}
    assert discord["content"] == (
        "**cat\\_\\*1: failed**\nStep 7 of 1,200, loss 0.2500.\nNo <@room\\> in /home/<user\\>/x"
    )
    assert slack == {
        "text": "*cat_*1: failed*\nStep 7 of 1,200, loss 0.2500.\nNo &lt;@room&gt; in /home/&lt;user&gt;/x"
    }
    text = "Step 7 of 1,200, loss 0.2500.\nNo <@room> in /home/<user>/x"
    assert ntfy == {
        "topic": "hook", "title": "cat_*1: failed", "message": text, "tags": ["rotating_light"], "priority": 4,
    }  # fmt: skip
    assert own == {
        "run": "cat_*1", "event": "failed", "text": "No <@room> in /home/<user>/x", "step": 7, "total": 1200,
        "loss": 0.25, "time": 5.0,
    }  # fmt: skip


def test_a_message_is_tried_again_after_an_error_of_the_server_but_not_after_a_refusal_or_redirect(server):
    server.answers = [500, 429]
    deliver("json", Address(server.url), FAILED, (0.0, 0.0))
    assert len(server.got) == 3
    for code in (404, 302):
        server.got.clear()
        server.answers = [code]
        with pytest.raises(NotSentError, match=f"^HTTP {code}$"):
            deliver("json", Address(server.url), FAILED, (0.0, 0.0))
        assert len(server.got) == 1


def test_three_failed_tries_give_one_warning_without_the_address(server, tmp_path, step_info):
    server.answers = [500] * 9
    told = []
    logger = WebhookLogger("json", Address(f"{server.url}/geheim"), every_steps=1)
    logger.start(LoggedRun(tmp_path, warn=told.append))
    logger.on_step(step_info(1))
    logger.on_step(step_info(2))
    for _ in range(9):
        assert server.arrived.acquire(timeout=SECONDS)
    logger.end()
    assert logger._thread is not None
    logger._thread.join(SECONDS)
    logger.close()
    assert [body["event"] for _, _, body in server.got] == ["started"] * 3 + ["progress"] * 6
    assert told == ["Own address (JSON) webhook: a message could not be sent (HTTP 500); training continues."]


def test_a_server_that_hangs_holds_up_neither_steps_nor_the_end(server, tmp_path, step_info, monkeypatch):
    monkeypatch.setattr(logger_module, "LAST_SECONDS", 0.01)
    server.opened.clear()
    told = []
    logger = WebhookLogger("json", Address(server.url), every_steps=1)
    logger.start(LoggedRun(tmp_path, warn=told.append))
    assert server.arrived.acquire(timeout=SECONDS)
    for step in range(1, 100):  # more than may wait
        logger.on_step(step_info(step, steps_total=200))
    logger.close()
    assert deliver_within(0.01, "json", Address(server.url), FAILED) == "no answer within 0.01 s"
    assert not server.opened.is_set()


@pytest.mark.parametrize(
    ("service", "url", "text"),
    [
        ("discord", "discord.com/api/webhooks/1/geheim", "begin with https://"),
        ("discord", "https://example.com/ge heim", "without spaces"),
        ("discord", "file:///geheim", "begin with https://"),
        ("json", "https://me:geheim@example.com", "CHORUS_WEBHOOK_TOKEN"),
        ("ntfy", "https://ntfy.sh/", "no topic"),
        ("ntfy", "https://ntfy.sh/a/geheim", "no topic"),
    ],
)
def test_an_address_that_is_none_is_refused_without_being_shown(service, url, text):
    with pytest.raises(UserError, match=text) as refused:
        request_of(service, url, FAILED)
    assert "geheim" not in str(refused.value)


def test_the_address_is_kept_for_its_owner_and_the_environment_counts_first(saved, monkeypatch, capsys):
    config = TrainConfig()
    config.webhook.service = "discord"
    (problem,) = logger_problems(config)
    assert "no address is saved" in problem.message
    assert problem.remedy.values == {"webhook.service": "off"}
    with pytest.raises(UserError, match="no address is saved"):
        list(run_loggers(config, RunFolder(saved.parent)))
    monkeypatch.setattr("sys.stdin", iter_of("https://example.com/geheim\n", "\n"))
    assert script.main(["save"]) == 0
    assert "geheim" not in capsys.readouterr().out
    assert saved.stat().st_mode & 0o077 == 0 or saved.drive
    assert logger_problems(config) == []
    assert read_address() == Address("https://example.com/geheim")
    assert "geheim" not in repr(read_address())
    monkeypatch.setenv("CHORUS_WEBHOOK_URL", "http://other")
    monkeypatch.setenv("CHORUS_WEBHOOK_TOKEN", "tok")
    assert read_address() == Address("http://other", "tok")
    monkeypatch.delenv("CHORUS_WEBHOOK_URL")
    forget_address()
    assert read_address() is None
    saved.write_text("damaged")
    assert read_address() is None


def iter_of(*lines):
    waiting = list(lines)
    return SimpleNamespace(isatty=lambda: False, readline=lambda: waiting.pop(0))


def test_a_test_message_says_whether_it_arrived(server, capsys):
    save_address(Address(f"{server.url}/geheim"))
    server.answers = [200, 404]
    assert script.main(["test", "slack"]) == 0
    assert server.got[0][2] == {"text": "*Chorus: test*\nRuns can send messages here."}
    assert script.main(["test", "slack"]) == 2
    said = capsys.readouterr()
    assert said.out == "Sent to Slack.\n"
    assert said.err == "The message was not sent: HTTP 404.\n"


def test_the_end_is_told_once_the_run_has_written_it(server, tmp_path, capsys):
    config = TrainConfig(workspace_dir=str(tmp_path / "cat"))
    folder = RunFolder(config.workspace_dir)
    folder.create()
    save_address(Address(server.url))
    tell_end(folder, config)  # it has not ended
    folder.write_exit("failed", rank=1, text="Rank 1 was killed.")
    tell_end(folder, config)  # switched off
    config.webhook.service = "json"
    tell_end(folder, config, since=2**33)  # of an earlier run
    assert server.got == []
    tell_end(folder, config)
    folder.freeze_config(config)
    assert server.url not in folder.config_path.read_text(encoding="utf-8")
    server.answers = [500] * 3
    tell_end(folder)  # by the settings in the folder
    bodies = [body for _, _, body in server.got]
    assert len(bodies) == 4
    assert bodies[0]["event"] == "failed"
    assert bodies[0]["text"] == "Rank 1 was killed."
    assert bodies[0]["run"] == "cat"
    said = capsys.readouterr().err
    assert said == "Own address (JSON) webhook: the end was not told (HTTP 500).\n"
