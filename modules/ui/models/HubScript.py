"""What scripts/hub.py says of the Hugging Face Hub, asked in a separate process. No Tk.

Importing huggingface_hub in the window's process would stall the window, and a download could not be cancelled.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.config.errors import UserError
from modules.config.families import load_families
from modules.config.installation import ROOT
from modules.machine.ChildProcess import ChildProcess
from modules.session.byte_sizes import spoken_bytes

LAST_LETTERS = 500  # shown of an error message
# Settings of files that take the place of a model's parts -> what scripts/hub.py calls them.
PARTS = {
    "model.vae": "--vae",
    "model.denoiser": "--denoiser",
    "model.denoiser_2": "--denoiser-2",
    "model.text_encoders": "--text-encoder",
}
MODEL_PAGE = "https://huggingface.co/{}"


@dataclass(frozen=True)
class HubFacts:
    """What is known of a model on the Hub. family: None if Chorus can't train it."""

    name: str
    license: str
    is_gated: bool
    family: str | None
    pipeline: str | None
    num_bytes: int
    missing_bytes: int

    def describe(self) -> str:
        """A sentence on it, for people."""
        family = load_families()[self.family].label if self.family else ""
        kind = family or (f"{self.pipeline}, which Chorus can't train" if self.pipeline else "not in diffusers' format")
        size = f", {spoken_bytes(self.num_bytes)}" if self.pipeline else ""
        state = f", {spoken_bytes(self.missing_bytes)} to download" if self.missing_bytes else ", on this machine"
        license = f", license {self.license}" if self.license else ""
        return f"{kind}{size}{state if self.pipeline else ''}{license}."


class HubScript:
    """One run of scripts/hub.py; `cancel` may be called from another thread."""

    def __init__(self, *arguments: str):
        self._arguments = arguments
        self._child = ChildProcess()

    def run(self, heard: Callable[[Any], None] = lambda answer: None) -> Any:
        """The last line of its answer, decoded; None if it was cancelled. Call it in a thread.

        heard: called in this thread with each line. Raises UserError if the Hub can't be asked or refuses.
        """
        if not self._child.start([sys.executable, str(ROOT / "scripts" / "hub.py"), *self._arguments, "--json"]):
            return None
        answer = None

        def decode(line: bytes) -> None:
            nonlocal answer
            answer = json.loads(line)
            heard(answer)

        done = self._child.wait(heard=decode)
        if self._child.is_cancelled:
            return None
        if done.returncode != 0 or answer is None:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise UserError(lines[-1].strip()[-LAST_LETTERS:] if lines else "The Hub could not be asked.")
        return answer

    def cancel(self) -> None:
        """End it; `run` then returns None."""
        self._child.cancel()


def read_facts(answer: dict[str, Any]) -> HubFacts:
    """The facts in the answer to `info`."""
    return HubFacts(**{name: answer[name] for name in HubFacts.__dataclass_fields__})


def part_options(get: Callable[[str], Any]) -> tuple[str, ...]:
    """The options of `info` and `download` for the files that take the place of parts. get: a setting's value."""
    options = ["--family", get("family")]
    for setting, option in PARTS.items():
        value = get(setting)
        options += [text for file in (value if isinstance(value, list) else [value]) if file for text in (option, file)]
    return tuple(options)


def ask_about(name: str, parts: Sequence[str] = ()) -> tuple[str, str]:
    """(what a model on the Hub is, why it can't be used), one of them "". Call it in a thread; it takes a second.

    parts: as from `part_options`. A file that can't be used is not named: the problems of its own setting tell it.
    """
    try:
        facts = read_facts(HubScript("info", name, *parts).run())
    except UserError as error:
        if parts and str(error).startswith(tuple(PARTS)):
            return ask_about(name)
        return "", f"model.base {error}"
    if facts.family is None:
        return "", f"model.base {name!r} is {facts.describe()} Choose another model."
    return f"On the Hub: {facts.describe()}", ""


def model_page(name: str) -> str:
    """The address of a model's page, where a gated model's agreement is accepted."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/")
    page = f"{endpoint}/{{}}" if endpoint else MODEL_PAGE
    return page.format(name.partition("@")[0])


def recent_bases(paths: Sequence[str]) -> list[str]:
    """The base models of settings files, each once, in the order of the files. Call it in a thread."""
    import yaml

    found: dict[str, None] = {}
    for path in paths:
        try:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):  # gone, or not a settings file any more
            continue
        model = values.get("model") if isinstance(values, dict) else None
        base = model.get("base") if isinstance(model, dict) else None
        if isinstance(base, str) and base:
            found[base] = None
    return list(found)
