"""What a person chooses in the window that captions by a model, and the options of scripts/caption.py for it. No Tk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from modules.annotators.Captioner import CHARACTER_THRESHOLD, GENERAL_THRESHOLD
from modules.annotators.captioner_kinds import KINDS, CaptionerKind, kind_in
from modules.annotators.chat_client import KEY_VARIABLE, sent_where, server_address
from modules.config.errors import UserError
from modules.ui.models.annotator_choices import NUM_PREVIEWED, check_number, given_options, kept_values
from modules.ui.models.AnnotatorRun import AnnotatorRun, Part, in_words_of_the_window

OWN_PROMPT = "prompt"
STYLES = {
    "": "The model's usual style",
    "long": "Long: a paragraph",
    "short": "Short: a sentence",
    "tags": "Tags: a list",
    "subject": "Subject with a name",
    OWN_PROMPT: "Own prompt",
}
_WRITTEN = {"long": "long captions", "short": "short captions", "tags": "tags", "subject": "captions of a subject"}
EXAMPLES = tuple(kind.example for kind in KINDS if kind.example)
SERVER_EXAMPLE = "http://localhost:11434/v1"


@dataclass(frozen=True)
class CaptionerChoices:
    """on_server: whether a server writes. model: a folder or a name on the Hub. address, server_model: of the server.

    style: one of STYLES. name: of the subject. prompt: the person's own. general, character: thresholds of taggers, as
    they are typed, as is batch_size. videos: whether clips are captioned, too.
    """

    on_server: bool = False
    model: str = ""
    address: str = ""
    server_model: str = ""
    style: str = ""
    name: str = ""
    prompt: str = ""
    general: str = str(GENERAL_THRESHOLD)
    character: str = str(CHARACTER_THRESHOLD)
    batch_size: str = "1"
    videos: bool = False

    @classmethod
    def of_values(cls, values: Mapping[str, object]) -> CaptionerChoices:
        """From `to_values`, possibly of another version; what is not valid gets its default."""
        kept = kept_values(cls, values)
        return cls(**kept) if kept.get("style", "") in STYLES else cls(**(kept | {"style": ""}))

    def to_values(self) -> dict[str, object]:
        return asdict(self)

    @property
    def label(self) -> str:
        """Of the step that undoes a run, as the script names it."""
        return f"Captions: {self._model or self._address}"

    def note(self, has_key: bool) -> str:
        """Where the images are sent to, or what is wrong with the address; "" for a model on this machine."""
        if not self.on_server:
            return ""
        if not self.address.strip():
            return "The images are sent to the address that you type here, and nowhere else."
        try:
            return sent_where(server_address(self.address), has_key)
        except UserError as error:
            return in_words_of_the_window(str(error))

    def check(self) -> None:
        """Raises UserError if no run can start with it."""
        if self.on_server:
            if not self.address.strip():
                raise UserError(f"Address: is empty; write the server's, such as {SERVER_EXAMPLE}.")
            try:
                server_address(self.address)
            except UserError as error:
                raise UserError(in_words_of_the_window(str(error))) from error
        elif not self._model:
            raise UserError(f"Model: is empty; choose a folder or a model on the Hub, such as {EXAMPLES[0]}.")
        if self.style == "subject" and not self.name.strip():
            raise UserError("Name: is empty; write what the captions call the subject, or choose another style.")
        if self.style == OWN_PROMPT and not self.prompt.strip():
            raise UserError("Prompt: is empty; write what the model is told, or choose another style.")
        check_number("Images at a time", self.batch_size, int, 1, 1024)
        if not self.on_server:
            check_number("Tags from", self.general, float, 0, 1)
            check_number("Characters from", self.character, float, 0, 1)

    def options(self, replaces: bool = False, restarts: bool = False) -> list[str]:
        """Of the script. replaces: whether captions that are there are replaced. restarts: those, too, that an
        interrupted run has replaced. The key is none of them: it goes by the environment."""
        options = {"--batch-size": self.batch_size, "--model": self._model}
        if self.on_server:
            options["--server"] = self._address
        else:
            options |= {"--general-threshold": self.general, "--character-threshold": self.character}
        if self.style == OWN_PROMPT:
            options["--prompt"] = self.prompt
        else:
            options |= {"--style": self.style, "--name": self.name if self.style == "subject" else ""}
        switches = {"--videos": self.videos, "--overwrite": replaces, "--restart": replaces and restarts}
        return given_options(options, switches)

    def start(
        self,
        parts: Iterable[Part],
        key: str = "",
        replaces: bool = False,
        restarts: bool = False,
        preview: bool = False,
    ) -> AnnotatorRun:
        """A run, yet to be called. key: of the server; "" for one without, or with that of the environment."""
        variables = {KEY_VARIABLE: key.strip()} if key.strip() and self.on_server else {}
        options = self.options(replaces, restarts and not preview)
        return AnnotatorRun("caption.py", "caption", [*parts], options, variables, NUM_PREVIEWED if preview else 0)

    @property
    def _model(self) -> str:
        return (self.server_model if self.on_server else self.model).strip()

    @property
    def _address(self) -> str:
        return server_address(self.address)


def known_kind(model: str) -> CaptionerKind | None:
    """The kind of a captioner in a folder, or of one of EXAMPLES; None if nobody knows before its files are read by the
    script. Call it in a thread, as a disk may be slow."""
    model = model.strip()
    folder = Path(model).expanduser()
    if not model or not folder.is_dir():
        return next((kind for kind in KINDS if kind.example and kind.example == model.partition("@")[0]), None)
    try:
        return kind_in(folder, model)
    except UserError:  # said when it is to start
        return None


def styles_of(kind: CaptionerKind | None) -> list[str]:
    """Those of STYLES that a kind of captioners can be asked for; None: all."""
    if kind is None:
        return list(STYLES)
    return ["", *(style for style in STYLES if style in kind.styles), *([OWN_PROMPT] if kind.takes_prompt else [])]


def limits_of(kind: CaptionerKind | None) -> str:
    """What a kind can only write, as a sentence for people; "" if it can do all, or is not known."""
    if len(styles_of(kind)) == len(STYLES):
        return ""
    assert kind is not None  # else it could do all
    written = " or ".join(_WRITTEN[style] for style in kind.styles)
    return f"{kind.label} writes only {written}" + ("." if kind.takes_prompt else ", and takes no prompt.")


def has_key_in_environment() -> bool:
    return bool(os.environ.get(KEY_VARIABLE, "").strip())
