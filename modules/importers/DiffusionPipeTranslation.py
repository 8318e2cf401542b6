from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modules.config.errors import ConfigError, UserError
from modules.config.families import FamilyInfo, default_family, load_families
from modules.config.methods import METHODS, MethodFacts
from modules.config.other_programs import load_program
from modules.importers.control_folder import control_folder, unknown_models_folder
from modules.importers.foreign_values import shown
from modules.importers.ImportResult import Line
from modules.importers.ListEntry import entries
from modules.importers.read_file import find_beside, read_content
from modules.importers.Translation import Translation

_PATHS = (
    "checkpoint_path", "diffusers_path", "ckpt_path", "transformer_path", "diffusion_model", "single_file_path",
)  # fmt: skip


class DiffusionPipeTranslation(Translation):
    """The settings of one training file of diffusion-pipe, or of a dataset file alone, which names no model.

    given: of the training file; empty for a dataset file. folder: in which relative paths may start.
    data: the content of its dataset file. evaluations: the names of the datasets for evaluation, with their contents.
    Raises UserError if Chorus lacks the model.
    """

    def __init__(self, given: Mapping[str, Any], folder: Path, data: Mapping[str, Any] | None = None):
        super().__init__(load_program("diffusion_pipe"), given)
        self.folder = folder
        self.knows_model = bool(given)
        self.data = data if data is not None else self._content("dataset", self["dataset"])
        self.evaluations = list(self._evaluations())
        self.family, self.family_why = self._family() if self.knows_model else (load_families()[default_family()], "")
        self.method = self._method(isinstance(given.get("adapter"), Mapping) or not self.knows_model)
        if self.knows_model:
            self.drop_ignored(self._takes, f"{self.program.label}, for this model,")

    @property
    def is_flow(self) -> bool:
        """Whether the model is a flow model."""
        return self.family.objective == "flow"

    @property
    def takes_clips(self) -> bool:
        """Whether the model is one of videos, or unknown."""
        return bool(self.family.frame_step) or not self.knows_model

    @property
    def control_folder(self) -> str:
        """Where a concept has what the model sees beside the caption; "" if it sees nothing of the kind."""
        return control_folder(self.family) if self.knows_model else unknown_models_folder()

    def has_fact(self, name: str) -> bool:
        """Whether the model's type is in one of the table's lists."""
        return self["model.type"] in self.program.facts[name]

    def _takes(self, name: str) -> bool:
        """Whether the code of the model's type uses a setting."""
        facts, kind = self.program.facts, self["model.type"]
        types = [one for one, names in facts["only"].items() if name in names]
        return name not in facts["ignored"].get(kind, []) and (not types or kind in types)

    def batch_sizes(self, name: str) -> list[int]:
        """The batch sizes of a setting: one, or one for each resolution; those that are none are left out."""
        value = self[name]
        sizes = (
            [pair[1] for pair in value if isinstance(pair, list) and len(pair) == 2]
            if isinstance(value, list)
            else [value]
        )
        return [size for size in sizes if isinstance(size, int) and not isinstance(size, bool) and size > 0]

    @property
    def batch_size(self) -> int:
        """Images in a batch: for models of images, the images' own number; the smallest if resolutions differ."""
        own = [] if self.takes_clips else self.batch_sizes("image_micro_batch_size_per_gpu")
        return min(own or self.batch_sizes("micro_batch_size_per_gpu"), default=1)

    @property
    def examples_in_step(self) -> int:
        """Images of an optimizer step on one GPU."""
        return self.batch_size * max(1, self["gradient_accumulation_steps"])

    def _content(self, theirs: str, name: Any) -> Mapping[str, Any]:
        """What a dataset file holds; nothing, with a line, if it can't be read."""
        if not isinstance(name, str) or not name.strip():
            return {}
        path = Path(name) if Path(name).is_absolute() else find_beside(name, self.folder) or self.folder / name
        try:
            content = read_content(path)
        except ConfigError as error:
            self.result.left.append(Line(shown(theirs, name), why=str(error), path="concepts"))
            return {}
        return content if isinstance(content, Mapping) else {}

    def _evaluations(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for number, entry in enumerate(self["eval_datasets"] or []):
            values = entry if isinstance(entry, Mapping) else {"config": entry}
            name = str(values.get("name", f"eval{number}"))[:80]
            yield name, self._content(f"eval_datasets {name}", values.get("config"))

    def _family(self) -> tuple[FamilyInfo, str]:
        """The family, and how it was found where the type alone does not tell."""
        facts, kind = self.program.facts, self["model.type"]
        if facts["types"].get(kind) is None:
            raise UserError(
                f"{shown('type', kind)} in [model] of diffusion-pipe: Chorus does not train this model; import the "
                "dataset file alone."
            )
        known, variants = load_families(), facts["variants"].get(kind, {})
        names = " ".join(
            re.sub(r"[^a-z0-9]", "", "".join(re.split(r"[\\/]+", path.rstrip("\\/"))[-2:]).lower())
            for path in (self[f"model.{name}"] or "" for name in _PATHS)
        )
        then = "set family if it is another"
        for pattern, family in variants.items():
            if re.search(pattern, names):
                return known[family], f"the names of the model's files tell; {then}"
        has_controls = any("control_path" in one for one in entries(self.data.get("directory")))
        if has_controls and kind in facts["with_controls"]:
            return known[facts["with_controls"][kind]], f"a directory has control images; {then}"
        why = f"the names of the model's files tell no other model of this type; {then}" if variants else ""
        return known[facts["types"][kind]], why

    def _method(self, has_adapter: bool) -> MethodFacts:
        return next(
            one
            for one in METHODS.values()
            if one.uses_denoiser
            and not one.trains_words
            and one.trains_adapters == has_adapter
            and one.trains_weights != has_adapter
        )
