"""The options of the scripts: an error in one of them stays in sight."""

from __future__ import annotations

import argparse
import importlib
import re

import pytest

from modules.config.installation import ROOT

PARSE = re.compile(r"^def (_?parse|parse_args)\(", re.MULTILINE)
SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py") if PARSE.search(path.read_text("utf-8")))


class Seen(Exception):
    pass


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_usage_or_error_lists_a_dozen_choices(script, monkeypatch):
    def stop(parser, *arguments):
        raise Seen(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    module = importlib.import_module(f"scripts.{script}")
    with pytest.raises(Seen) as caught:
        (getattr(module, "parse", None) or getattr(module, "_parse", None) or module.parse_args)([])
    (parser,) = caught.value.args
    for one in parsers(parser):
        for action in one._actions:
            assert len(action.choices or ()) < 12, action.option_strings


def parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parser and those of its commands."""
    commands = (one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    return [parser, *(command for each in commands for command in each.values())]
