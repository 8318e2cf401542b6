"""The page from a terminal: it says where it is, and ends when it should."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from modules.config.installation import ROOT
from scripts import page

SCRIPT = ROOT / "scripts" / "page.py"


def test_it_serves_at_the_address_that_it_shows_until_its_input_ends(tmp_path):
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--port", "0", "--until-stdin-ends"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=300) as answer:
            assert answer.headers["Set-Cookie"]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(address.partition("?")[0], timeout=300)
        process.stdin.close()
        assert process.wait(300) == 0


@pytest.mark.parametrize(
    ("arguments", "token", "text"),
    [
        (["none"], "", "'none' is not a folder"),
        (["."], "short", "CHORUS_PAGE_TOKEN can't be used"),
        ([".", "--address", "192.0.2.1"], "", "can't be served at the address 192.0.2.1, port 8420"),
        ([".", "--port", "70000"], "", "choose another port"),
    ],
)
def test_what_can_not_be_served_is_said(arguments, token, text, monkeypatch, capsys):
    monkeypatch.setenv("CHORUS_PAGE_TOKEN", token)
    assert page.main(arguments) == 2
    assert text in capsys.readouterr().err


def test_the_link_names_an_address_of_this_machine():
    assert page.link("127.0.0.1", 8420) == "http://127.0.0.1:8420/"
    assert page.link("::1", 80) == "http://[::1]:80/"
    assert "0.0.0.0" not in page.link("0.0.0.0", 8420)
