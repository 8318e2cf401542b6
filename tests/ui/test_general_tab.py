"""The general tab serves the page of the runs and keeps the webhook's address, both of which are secrets."""

import os
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from modules.loggers import webhook_address
from modules.loggers.webhook_address import read_address
from modules.ui.cards.PageCard import OTHER, PLAIN, WAITS, PageCard
from modules.ui.cards.WebhookAddress import WebhookAddress
from tests.support.many_runs import make_run
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.ui.test_train_ui import find_widget


def open_card(window, kind, wait_for):
    tab = window.open_tab("general")
    wait_for(window, lambda: find_widget(tab, kind) is not None and not window.is_building)
    return find_widget(tab, kind)


def test_the_page_is_there_as_long_as_the_window_and_the_choice_is_kept(make_app, wait_for, tmp_path):
    state = tmp_path / "state"
    window = make_app(state)
    card, page = open_card(window, PageCard, wait_for), window.page
    card.switch.toggle()
    wait_for(window, lambda: card.note.cget("text") == WAITS)
    make_run(tmp_path / "workspace" / "cat")
    wait_for(window, lambda: page.link)
    link, process = page.link, page._serving.child.process
    assert card.link.get("1.0", "end-1c") == link
    with urllib.request.urlopen(link, timeout=PATIENCE_SECONDS) as answer:
        assert answer.headers["Set-Cookie"]
    token = link.partition("?token=")[2]
    assert (state / "page.token").read_text().strip() == token
    card.copy.invoke()
    assert window.clipboard_get() == link

    process.kill()
    wait_for(window, lambda: page.error)
    assert any("General tab" in text for text in window.banner.texts)
    assert not page.link
    card.again.invoke()
    wait_for(window, lambda: page.link)
    assert page.link.endswith(token)

    process = page._serving.child.process
    window.destroy()
    wait_until(lambda: process.poll() is not None)
    assert token not in (state / "settings.json").read_text() + (state / "window.json").read_text()
    window = make_app(state)
    wait_for(window, lambda: window.page.link)
    assert window.page.link.endswith(token)
    if os.name == "posix":
        assert (state / "page.token").stat().st_mode & 0o077 == 0
    card = open_card(window, PageCard, wait_for)
    card.renew.invoke()
    wait_for(window, lambda: window.page.link and not window.page.link.endswith(token))
    process = window.page._serving.child.process
    card.switch.toggle()
    wait_until(lambda: process.poll() is not None)
    assert not window.preferences.serves_page


def test_an_address_that_this_machine_lacks_is_refused_with_the_reason(app, wait_for, tmp_path):
    make_run(tmp_path / "workspace" / "cat")
    card = open_card(app, PageCard, wait_for)
    card.place.set(OTHER)
    card.other.insert(0, "192.0.2.1")
    card._choose_place(OTHER)
    assert card.note.cget("text") == PLAIN
    card.switch.toggle()
    wait_for(app, lambda: app.page.error)
    assert "can't be served at the address 192.0.2.1" in card.note.cget("text")


@pytest.fixture
def server():
    """url, and the codes that it answers with."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(codes.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args):
            """Not to the terminal."""

    codes = [404, 200]
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/a-secret-path"
        running.shutdown()
        thread.join()


def test_the_webhook_is_tried_saved_and_forgotten_and_its_address_is_in_no_file_of_the_window(
    make_app, wait_for, tmp_path, monkeypatch, server
):
    monkeypatch.setattr(webhook_address, "webhook_file", lambda: tmp_path / "webhook.json")
    monkeypatch.delenv("CHORUS_WEBHOOK_URL", raising=False)
    window = make_app(tmp_path / "state")
    card = open_card(window, WebhookAddress, wait_for)
    assert not card.grid_info()
    window.settings.set("webhook.service", "json")
    assert card.grid_info()
    window.checks.tell()
    assert window.problems.at("webhook.service")
    card.address.insert(0, server)
    for text in ("not sent: HTTP 404", "Sent to Own address"):
        card.send_test()
        wait_for(window, lambda text=text: text in card.note.cget("text"))
    assert read_address() is None
    card.save()
    assert read_address().url == server
    assert not card.address.get()
    assert not window.problems.at("webhook.service")
    window.settings.set("webhook.service", "ntfy")
    card.address.insert(0, "https://ntfy.sh/")
    card.save()
    assert "no topic" in card.note.cget("text")
    card.forget()
    assert read_address() is None
    window.destroy()
    kept = "".join(path.read_text() for path in (tmp_path / "state").iterdir())
    assert "a-secret-path" not in kept
