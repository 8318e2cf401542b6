"""The page shows runs to whoever has its token, and nothing but their samples is ever sent."""

from __future__ import annotations

import http.client
import io
import os
import re
import threading
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

from modules.page.access import Access, is_loopback
from modules.page.curve_svg import curve_svg
from modules.page.page_html import runs_page, time_left
from modules.page.PageServer import STYLE, PageServer
from modules.runs.Curve import Curve
from modules.runs.RunIndex import RunIndex
from modules.runs.RunRow import RunRow
from modules.runs.RunTable import TableRun
from modules.session.event_types import SampleEvent
from tests.support.many_runs import START, add_events, make_run

TOKEN = "the-token-of-the-tests"
ODD = "<script>alert(1)</script> grün"
ODD_NAME = "a&b '\"grün\n<i>" if os.name == "posix" else "a&b 'grün"
SAMPLE = f"step-000000020/{quote('000_a cat_seed42.png')}"


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two runs: one with a sample that is there, a video and samples that lead outside; one with an odd name."""
    workspace = tmp_path / "workspace"
    run = make_run(workspace / "cat")
    folder = run.samples_dir / "step-000000020"
    folder.mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(b"secret")
    Image.new("RGB", (600, 300), "red").save(folder / "000_a cat_seed42.png")
    Image.new("RGB", (8, 8)).save(folder / "unlisted.png")
    Image.new("RGB", (8, 8)).save(folder / "video.png")
    (folder / "video.mp4").write_bytes(bytes(range(100)))
    (run.samples_dir / "settings.yaml").write_text("secret")
    names = ["step-000000020/video.png", "../../../secret.png", "settings.yaml", "link.png", "step-000000020/gone.png"]
    add_events(run, [(START + 50, SampleEvent(str(run.samples_dir / name), ODD, 20)) for name in names])
    make_run(workspace / ODD_NAME, status="failed")
    return workspace


@pytest.fixture
def server(folder):
    with PageServer("127.0.0.1", 0, [folder], Access(TOKEN)) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def ask(server):
    """A function that sends a request, with the cookie, and returns status, headers and body."""

    def ask(path, method="GET", **headers):
        sent = {"Host": f"127.0.0.1:{server.server_port}", "Cookie": server.access.set_cookie().partition(";")[0]}
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=300)
        connection.putrequest(method, path, skip_host=True)
        for name, value in {**sent, **headers}.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        found = answer.status, answer.headers, answer.read()
        connection.close()
        return found

    return ask


def test_only_whoever_has_the_token_sees_anything(ask):
    for path in ("/", "/runs/0/cat", f"/runs/0/cat/samples/{SAMPLE}", "/?token=wrong", "/?token="):
        status, headers, body = ask(path, Cookie="chorus-page=0; other=x")
        assert status == 403
        assert b"cat" not in body
        assert "Set-Cookie" not in headers
    assert ask("/", Cookie="chorus-page=\xe4")[0] == 403
    status, headers, body = ask(f"/runs/0/cat?token={TOKEN}", Cookie="")
    assert status == 200
    assert b"/runs/0/cat" in body
    assert TOKEN.encode() not in body
    name, *rest = headers["Set-Cookie"].split("; ")
    assert set(rest) == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert TOKEN not in name
    assert ask("/runs/0/cat", Cookie=name)[0] == 200
    body = ask(f"//evil.example/?token={TOKEN}", Cookie="")[2]
    assert b"//evil" not in body


def test_a_foreign_name_is_refused_even_with_the_cookie(ask, server):
    port = server.server_port
    for host in ("evil.example", f"evil.example:{port}", "", "127.0.0.1@evil", "10.1.2.3", "localhost.evil.example"):
        assert ask("/", Host=host)[0] == 421
    for host in (f"localhost:{port}", "localhost:9", "[::1]:9", "127.0.0.1"):
        assert ask("/", Host=host)[0] == 200
    access = Access(TOKEN, ["Runs.example.org"])
    assert access.is_host("runs.example.org:80", "10.0.0.5")
    assert access.is_host("10.0.0.5:8420", "10.0.0.5")
    assert not access.is_host("10.0.0.6:8420", "10.0.0.5")
    assert [is_loopback(one) for one in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "pc")] == [True] * 3 + [False] * 2


def test_other_methods_are_refused_and_every_answer_has_the_headers_that_protect(ask):
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "FOO"):
        status, headers, body = ask("/<b>", method)
        assert status == 405
        assert headers["Allow"] == "GET, HEAD"
        assert b"<b>" not in body
    for path in ("/", "/page.css", "/nothing", f"/runs/0/cat/samples/{SAMPLE}", f"/?token={TOKEN}"):
        _, headers, _ = ask(path)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "Python" not in headers["Server"]
    status, headers, body = ask("/", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 100


def test_a_run_has_its_state_progress_curve_and_samples(ask):
    text = ask("/runs/0/cat")[2].decode()
    assert '<progress max="20" value="20">' in text
    assert "finished" in text
    assert "<svg" in text
    assert 'class="mean"' in text
    assert f'href="/runs/0/cat/samples/{SAMPLE}"' in text
    assert '<video src="/runs/0/cat/samples/step-000000020/video.mp4"' in text
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert "width=device-width" in text


def test_names_of_any_kind_are_shown_and_lead_to_their_run(ask):
    text = ask("/")[2].decode()
    path = f"/runs/0/{quote(os.fsencode(ODD_NAME), safe='')}"
    assert f'href="{path}"' in text
    assert "<i>" not in text
    status, _, body = ask(path)
    assert status == 200
    assert "grün" in body.decode()
    assert b"<i>" not in body


def test_samples_are_sent_whole_in_part_and_small(ask):
    status, headers, body = ask(f"/runs/0/cat/samples/{SAMPLE}")
    assert (status, headers["Content-Type"]) == (200, "image/png")
    assert Image.open(io.BytesIO(body)).size == (600, 300)
    status, headers, body = ask(f"/runs/0/cat/thumbs/{SAMPLE}")
    assert (status, headers["Content-Type"]) == (200, "image/jpeg")
    assert Image.open(io.BytesIO(body)).size == (480, 240)
    video = "/runs/0/cat/samples/step-000000020/video.mp4"
    for wanted, part in (("bytes=0-1", b"\0\1"), ("bytes=98-", b"bc"), ("bytes=-1", b"c"), ("bytes=5-5", b"\5")):
        status, headers, body = ask(video, Range=wanted)
        assert (status, body) == (206, part)
    assert headers["Content-Range"] == "bytes 5-5/100"
    assert [ask(video, Range=wanted)[0] for wanted in ("bytes=9-1", "lines=1-2", "bytes=a-b")] == [200] * 3


@pytest.mark.parametrize(
    "path",
    [
        "samples/../../../secret.png",
        "samples/..%2F..%2F..%2Fsecret.png",
        "samples/%2e%2e/%2e%2e/%2e%2e/secret.png",
        "samples/..%5c..%5csecret.png",
        "samples/step-000000020/unlisted.png",
        "samples/step-000000020/gone.png",
        "samples/step-000000020",
        "samples/settings.yaml",
        "samples/video.png%00.mp4",
        "samples/",
        "thumbs/..%2F..%2F..%2Fsecret.png",
        "thumbs/step-000000020/video.mp4",
        "config.yaml",
        "events/rank-0.jsonl",
    ],
)
def test_nothing_but_listed_samples_is_sent(ask, path):
    status, _, body = ask(f"/runs/0/cat/{path}")
    assert status == 404
    assert b"secret" not in body


@pytest.mark.parametrize(
    "path",
    ["/runs/0/..", "/runs/0/%2e%2e", "/runs/0/cat%2F..", "/runs/1/cat", "/runs/-1/cat", "/runs/0/", "/runs", "/x"],
)
def test_there_are_no_runs_but_those_of_the_folders(ask, path):
    assert ask(path)[0] == 404


@pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows")
def test_links_that_lead_out_are_not_followed(ask, folder, tmp_path):
    secret = tmp_path / "secret.png"
    samples = folder / "cat" / "samples"
    (samples / "link.png").symlink_to(secret)
    assert ask("/runs/0/cat/samples/link.png")[0] == 404
    (samples / "link.png").unlink()
    os.mkfifo(samples / "link.png")
    assert ask("/runs/0/cat/samples/link.png")[0] == 404
    elsewhere = make_run(tmp_path / "elsewhere")
    (folder / "linked").symlink_to(elsewhere.path, target_is_directory=True)
    assert ask("/runs/0/linked")[0] == 404
    samples.rename(tmp_path / "moved")
    samples.symlink_to(tmp_path / "moved", target_is_directory=True)
    assert ask(f"/runs/0/cat/samples/{SAMPLE}")[0] == 404


def test_pages_come_while_a_large_folder_is_still_read(ask, server, monkeypatch):
    started, goes_on = threading.Event(), threading.Event()
    refresh = RunIndex.refresh

    def slow(self, *arguments):
        started.set()
        assert goes_on.wait(300)
        return refresh(self, *arguments)

    monkeypatch.setattr(RunIndex, "refresh", slow)
    ask("/")
    assert started.wait(300)
    assert b"cat" in ask("/")[2]
    assert ask("/runs/0/cat")[0] == 200
    goes_on.set()


def test_many_runs_are_shown_in_pages():
    runs = [(0, TableRun(Path(f"run-{number}"), RunRow(f"run-{number}"))) for number in range(120)]
    second = runs_page(runs, 2, is_local=False)
    assert ("run-50<" in second, "run-99<" in second, "run-49<" in second) == (True, True, False)
    assert "Page 2 of 3" in second
    assert "plain HTTP" in second
    assert "plain HTTP" not in runs_page(runs, 9, is_local=True)


def test_the_time_left_is_that_of_the_last_speed():
    curve = Curve()
    for step in range(1, 101):
        curve.add(step, 0.5, 1, 60.0 if step < 50 else 2.0)
    assert time_left(curve.points(), 400) == "about 10 min"
    assert time_left(curve.points(), 100) == ""
    assert time_left([], 100) == ""


def test_the_labels_of_the_loss_axis_are_not_cut_off_in_the_large_text_of_phones():
    size = int(re.findall(r"\.curve text { font-size: (\d+)px", STYLE.read_text(encoding="utf-8"))[0])
    for loss in (0.05561, 0.5, 1.234e-05, 123.4):
        curve = Curve()
        for step in (1, 2):
            curve.add(step, loss * step, 1, 1.0)
        labels = re.findall(r'<text x="(\d+)" y="\d+" text-anchor="end">([^<]+)<', curve_svg(curve.points(), [], 10))
        right_edges = [int(x) for x, text in labels[:2]]
        assert right_edges == [max(right_edges)] * 2
        assert max(right_edges) >= 0.6 * size * max(len(text) for x, text in labels[:2])
