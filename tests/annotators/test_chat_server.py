"""Captions of a server: what is sent where, what is tried again, and that keys stay where they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.annotators import chat_client
from modules.annotators.chat_client import ChatServer, is_on_this_machine, sent_where, server_address
from modules.annotators.kinds.chat_server import data_url
from modules.config.errors import UserError
from modules.curation.Journal import Journal
from tests.annotators.conftest import captioned, texts_in
from tests.support.chat_server import ChatServerStandIn, sent_images, sent_text
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
KEY = "a-key-that-nobody-may-read"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(chat_client, "FIRST_WAIT_SECONDS", 0.0)
    stand_in = ChatServerStandIn()
    with stand_in.running():
        yield stand_in


def start_script(*arguments: object, **variables: str) -> subprocess.Popen[bytes]:
    images = Path(str(arguments[0]))
    code = f"""import sys
from pathlib import Path
from modules.config import installation
installation.window_state_folder = lambda: Path({str(images.parent / "state")!r})
from scripts.caption import main
sys.exit(main())"""
    command = [sys.executable, "-c", code, *map(str, arguments), "--json"]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
    )


def test_a_script_that_is_killed_at_the_seventh_of_twenty_images_goes_on_at_the_eighth(server, uncaptioned, tmp_path):
    images = uncaptioned(20)
    command = (images, "--server", server.address)
    server.limit = 7
    child = start_script(*command)
    wait_until(lambda: len(server.requests) == 8)
    child.kill()
    child.communicate()
    server.limit = 1000

    before = texts_in(images)
    assert [*before] == [f"{number:03d}.txt" for number in range(7)]

    child = start_script(*command)
    output = child.communicate()[0]

    assert child.returncode == 0
    assert captioned([json.loads(line) for line in output.splitlines()]) == [f"{n:03d}.png" for n in range(7, 20)]
    after = texts_in(images)
    assert len(after) == 20
    assert before.items() <= after.items()

    journal = Journal(images, tmp_path / "state" / "journals")
    journal.undo()
    assert texts_in(images) == before
    journal.undo()
    assert not texts_in(images)


@pytest.mark.parametrize("how", ["signal", "line"])
def test_canceling_does_not_wait_for_an_answer_and_keeps_what_is_written(how, server, uncaptioned):
    images = uncaptioned(3)
    server.limit = 1
    child = start_script(images, "--server", server.address, "--listen")
    wait_until(lambda: len(server.requests) == 2)
    if how == "signal":
        child.send_signal(signal.SIGTERM)
    else:
        child.stdin.write(b"cancel\n")
        child.stdin.flush()
    lines = child.communicate()[0].splitlines() if how == "signal" else child.stdout.readlines()
    child.wait()

    assert child.returncode == 130
    assert json.loads(lines[-1]) == {"event": "end", "written": 1, "failed": 0, "left": 2, "canceled": True}
    assert len(texts_in(images)) == 1


def test_images_are_sent_scaled_with_the_instruction_and_written_on_one_line(server, uncaptioned, run_captioner):
    images = uncaptioned(2)
    command = (images, "--server", server.address, "--max-side", 48, "--style", "subject", "--name", "ohwx")

    assert run_captioner(*command)[0] == 0

    assert [sent_images(one)[0].size for one in server.requests] == [(48, 48), (48, 32)]
    assert all('"ohwx"' in sent_text(one) and one["model"] == "tiny-vl" for one in server.requests)
    assert texts_in(images)["001.txt"] == "an image of 48 x 32, number 2"


def test_it_says_where_images_go_before_it_sends_one(server, uncaptioned, run_captioner):
    _, events = run_captioner(uncaptioned(1), "--server", server.address, "--preview")
    assert events[0]["event"] == "plan"
    assert events[0]["sent_to"] == f"The images are sent to {server.address}, on this machine, and nowhere else."
    elsewhere = sent_where("http://10.0.0.7:1234/v1", with_key=True)
    assert "another machine" in elsewhere
    assert "others on the network can read the key and the images" in elsewhere
    assert "network" not in sent_where("https://example.org/v1", with_key=True)


def test_the_key_goes_to_the_server_and_into_no_file_or_message(
    server, uncaptioned, run_captioner, monkeypatch, capsys, tmp_path
):
    monkeypatch.setenv("MY_KEY", KEY)
    server.answers += [(400, {}, {"error": {"message": f"the key {KEY} may not do this"}})]
    images = uncaptioned(2)

    code, events = run_captioner(images, "--server", server.address, "--key-from", "MY_KEY")

    assert set(server.keys) == {f"Bearer {KEY}"}
    (failed,) = (event for event in events if event["event"] == "failed")
    assert failed["reason"] == "the server answers 400 (the key <key> may not do this)"
    assert code == 1
    shown = json.dumps(events) + "".join(capsys.readouterr()) + repr(ChatServer(server.address, KEY))
    assert KEY not in shown
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_a_busy_server_is_asked_again(server):
    server.answers += [(503, {}, {}), (429, {"Retry-After": "0"}, {"error": {"message": "too many"}})]
    answer = ChatServer(server.address).complete(_question())
    assert answer.startswith('"an image')
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            (401, {}, {"error": {"message": "who are you?"}}),
            r"it refuses the key \(who are you\?\); set it by --key-from",
        ),
        ((404, {}, {"error": "model 'x' not found"}), r"knows no such model or address \(model 'x' not found\)"),
        ((302, {"Location": "http://example.org/v1"}, {}), r"redirects to another address, where nothing is sent"),
    ],
)
def test_an_answer_that_will_not_change_ends_the_run_at_once(answer, told, server):
    server.answers.append(answer)
    with pytest.raises(UserError, match=f"^--server {server.address}: .*{told}"):
        ChatServer(server.address).complete(_question())
    assert len(server.requests) == 1


def test_a_server_that_is_not_there_or_silent_is_named_with_what_to_do(server):
    server.limit = 0
    with pytest.raises(UserError, match=r"it does not answer within 0 s; check that the server is running"):
        ChatServer(server.address, seconds=0.05).complete(_question())
    wait_until(lambda: len(server.requests) == chat_client.TRIES)
    with pytest.raises(UserError, match=r"^--server http://127.0.0.1:9/v1: Connection refused; check"):
        ChatServer("http://127.0.0.1:9/v1").models()


def test_images_that_the_server_refuses_are_named_until_they_are_too_many(server, uncaptioned, run_captioner, capsys):
    server.answers += [(400, {}, {"error": "this model sees no images"})] * 9
    code, events = run_captioner(uncaptioned(9), "--server", server.address)
    assert code == 2
    assert len([event for event in events if event["event"] == "failed"]) == 5
    assert "5 images in a row have failed, the last because the server answers 400 (this model sees no" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"choices": []}', b'{"choices": [{"message": {}}]}'])
def test_an_answer_without_a_text_is_a_failure_of_its_image(body, server, uncaptioned, run_captioner):
    server.answers.append((200, {}, body))
    code, events = run_captioner(uncaptioned(2), "--server", server.address)
    assert code == 1
    assert [event["event"] for event in events] == ["plan", "loading", "failed", "caption", "end"]


def test_of_several_models_one_has_to_be_named(server, uncaptioned, run_captioner, capsys):
    server.models = ("one", "other")
    assert run_captioner(uncaptioned(1), "--server", server.address)[0] == 2
    assert "--model: name one of the server's models: one, other." in capsys.readouterr().err
    assert not server.requests


def test_proxies_of_the_environment_get_nothing(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert ChatServer(server.address).models() == ["tiny-vl"]


def test_addresses_are_completed_or_refused():
    assert server_address("http://localhost:11434/") == "http://localhost:11434/v1"
    assert server_address("https://example.org/api/v2") == "https://example.org/api/v2"
    for text in ("localhost:11434", "ftp://example.org", "http://", "http://a:port", "http://a/v1?key=1"):
        with pytest.raises(UserError, match="is no address"):
            server_address(text)
    with pytest.raises(UserError, match="keep passwords out of the address") as refusal:
        server_address(f"http://me:{KEY}@example.org/v1")
    assert KEY not in str(refusal.value)
    assert [
        is_on_this_machine(f"http://{host}/v1") for host in ("127.0.0.3:1", "[::1]:1", "localhost", "10.0.0.1")
    ] == [*(True, True, True, False)]


def _question() -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": data_url(Image.new("RGB", (8, 8)))}}]
    content.append({"type": "text", "text": "what?"})
    return {"messages": [{"role": "user", "content": content}]}
