"""What a person chooses in the window that masks by a model, and the options of scripts/mask.py for it. No Tk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, get_args

from modules.annotators.mask_edges import MAX_PIXELS
from modules.annotators.masker_kinds import KINDS
from modules.config.errors import UserError
from modules.ui.models.annotator_choices import NUM_PREVIEWED, check_number, given_options, kept_values
from modules.ui.models.AnnotatorRun import AnnotatorRun, Part

Way = Literal["clicks", "words", "subject", "alpha"]


class WayFacts(NamedTuple):
    """label: for people. needs_model: whether a model finds the mask. file_type: of its file; "" for a folder or Hub
    name. examples: models on the Hub."""

    label: str
    needs_model: bool = True
    file_type: str = ""
    examples: tuple[str, ...] = ()


def _examples(needs: str) -> tuple[str, ...]:
    return tuple(kind.example for kind in KINDS if kind.needs == needs and kind.example)


WAYS: dict[Way, WayFacts] = {
    "clicks": WayFacts("Clicks (SAM)", examples=tuple(reversed(_examples("clicks")))),
    "words": WayFacts("Words (CLIPSeg)", examples=_examples("prompt")),
    "subject": WayFacts("Subject (ONNX)", file_type="*.onnx"),
    "alpha": WayFacts("Transparency", needs_model=False),
}
FOR_MANY: tuple[Way, ...] = ("words", "subject", "alpha")  # clicks are of one image
HINTS = {
    "words": "Marks what the words name.",
    "subject": "Marks the subject of each image, by a file of U2-Net, IS-Net or BiRefNet.",
    "alpha": "What is opaque is learned; images without transparency fail.",
}


@dataclass(frozen=True)
class MaskerChoices:
    """way: how the mask is found. painter_way: the same in the painter. clicks_model, words_model: a folder or name on
    the Hub. subject_model: a file. words: for what is masked. threshold, grow, feather: as they are typed. soft: keep
    what is between. invert: mask the rest.
    """

    way: str = "words"
    clicks_model: str = WAYS["clicks"].examples[0]
    words_model: str = WAYS["words"].examples[0]
    subject_model: str = ""
    words: str = ""
    threshold: str = "0.5"
    soft: bool = False
    invert: bool = False
    grow: str = "0"
    feather: str = "0"
    painter_way: str = "clicks"

    @classmethod
    def of_values(cls, values: Mapping[str, object]) -> MaskerChoices:
        """From `to_values`, possibly of another version; what is not valid gets its default."""
        kept = kept_values(cls, values)
        unknown = [name for name in ("way", "painter_way") if kept.get(name) not in get_args(Way)]
        return cls(**{name: value for name, value in kept.items() if name not in unknown})

    def to_values(self) -> dict[str, object]:
        return asdict(self)

    @property
    def model(self) -> str:
        """That is chosen for the way; "" for none."""
        texts = {"clicks": self.clicks_model, "words": self.words_model, "subject": self.subject_model}
        return texts.get(self.way, "").strip()

    @property
    def label(self) -> str:
        """Of the step that undoes a run, as the script names it."""
        return f"Masks: {self.model or 'transparency'}"

    def check_model(self) -> None:
        """Raises UserError if no model is chosen for a way that needs one, or no words."""
        if self.way == "subject" and not self.model:
            raise UserError("Model: is empty; choose an .onnx file of U2-Net, IS-Net or BiRefNet.")
        if self.way != "alpha" and not self.model:
            example = next(facts.examples[0] for way, facts in WAYS.items() if way == self.way)
            raise UserError(f"Model: is empty; choose a folder or a model on the Hub, such as {example}.")
        if self.way == "words" and not self.words.strip():
            raise UserError("Words: are empty; write what is masked, such as face, hair.")

    def check(self) -> None:
        """Raises UserError if no run can start with it."""
        self.check_model()
        if not self.soft:
            check_number("Threshold", self.threshold, float, 0, 1)
        check_number("Grow by", self.grow, int, -MAX_PIXELS, MAX_PIXELS)
        check_number("Feather by", self.feather, int, 0, MAX_PIXELS)

    def options(self, replaces: bool = False, restarts: bool = False) -> list[str]:
        """Of the script. replaces, restarts: as of CaptionerChoices, for masks."""
        texts = {
            "--model": self.model,
            "--prompt": self.words if self.way == "words" else "",
            "--threshold": "" if self.soft else self.threshold,
            "--grow": self.grow,
            "--feather": self.feather,
        }
        switches = {
            "--alpha": self.way == "alpha",
            "--soft": self.soft,
            "--invert": self.invert,
            "--overwrite": replaces,
            "--restart": replaces and restarts,
        }
        return given_options(texts, switches)

    def start(
        self, parts: Iterable[Part], replaces: bool = False, restarts: bool = False, preview_folder: str = ""
    ) -> AnnotatorRun:
        """A run, yet to be called. preview_folder: where masks of a preview go, which writes no others; "": none."""
        options = self.options(replaces, restarts and not preview_folder)
        if not preview_folder:
            return AnnotatorRun("mask.py", "mask", [*parts], options)
        return AnnotatorRun(
            "mask.py", "mask", [*parts], [*options, f"--preview-to={preview_folder}"], preview=NUM_PREVIEWED
        )
