"""Finds the folder of a captioner's or mask model: one of the user's, or of the Hub's cache, where it is downloaded to.

Only what is loaded is downloaded: configs, tokenizers and safetensors, or the ONNX file and its list of tags.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from modules.annotators.captioner_kinds import CONFIG, TAG_LIST, TAGGER_MODEL
from modules.config.errors import UserError
from modules.machine.hub import HUB_NAME, HubModel, download_model, is_complete, read_model, split_name
from modules.machine.weight_files import INDEX, WEIGHTS

_TEXTS = (".json", ".jinja", ".txt", ".model")
_MAX_TEXT_BYTES = 64 << 20  # tokenizers have up to 20 MB

Report = Callable[[int, int], None]


def model_folder(name: str, check: Callable[[Path], object], report: Report) -> Path:
    """The folder with the files of a model.

    name: of a folder, or on the Hub. check: called with the folder once the small files are there, before weights are
    downloaded; raises UserError if the model is none that can be used. report: as for `download_model`.
    Raises UserError if there is no such model, or if it can't be downloaded.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        check(path)
        return path
    if path.exists() or not HUB_NAME.fullmatch(name):
        problem = (
            "is a file; choose its folder" if path.exists() else "there is no such folder, nor can it be a Hub name"
        )
        raise UserError(f"--model {name!r}: {problem}.")
    folder = _on_disk(name)
    if folder is None:
        try:
            model = read_model(name, needed=needed_files)
            check(download_model(replace(model, sizes=_small(model.sizes), missing=())))
            _check_weights(model)
            return download_model(model, report)
        except UserError as error:
            text = str(error)
            raise UserError(text if text.startswith("--model") else f"--model {text}") from error
    check(folder)
    return folder


def onnx_file(name: str) -> Path | None:
    """The ONNX file that a person names; None if the name is not that of one. Raises UserError if it is not there."""
    path = Path(name).expanduser()
    if path.suffix.lower() != ".onnx":
        return None
    if not path.is_file():
        raise UserError(f"--model {name!r}: there is no such file.")
    return path


def needed_files(paths: Iterable[str]) -> list[str]:
    """The files of a repository that are loaded, by their paths."""
    names = sorted(path for path in paths if "/" not in path)
    texts = [name for name in names if name.endswith(_TEXTS) and not INDEX.fullmatch(name)]
    if TAG_LIST in names:
        return [*(name for name in texts if name == CONFIG), *(n for n in names if n in (TAG_LIST, TAGGER_MODEL))]
    return sorted({*texts, *safe_weights(names)})


def safe_weights(names: Collection[str]) -> list[str]:
    """The safetensors files among `names` that transformers loads, and their index: never a pickle."""
    found = {name: WEIGHTS.fullmatch(name) or INDEX.fullmatch(name) for name in names}
    return sorted(
        name for name, match in found.items() if match and match["format"] == "safetensors" and not match["variant"]
    )


def _small(sizes: Mapping[str, int]) -> dict[str, int]:
    return {path: size for path, size in sizes.items() if path.endswith((*_TEXTS, ".csv")) and size < _MAX_TEXT_BYTES}


def _check_weights(model: HubModel) -> None:
    if not any(path.endswith((".safetensors", ".onnx")) for path in model.sizes):
        raise UserError(
            f"--model {model.name!r}: has no safetensors file, and pickled weights are never loaded, because they "
            "could run code: choose another copy of the model."
        )


def _on_disk(name: str) -> Path | None:
    """The folder in the Hub's cache if it has all of the model, without asking the Hub."""
    from huggingface_hub import try_to_load_from_cache

    repo, revision = split_name(name)
    for file in (TAG_LIST, CONFIG):
        cached = try_to_load_from_cache(repo, file, revision=revision)
        if isinstance(cached, str):
            folder = Path(cached).parent
            is_there = (folder / TAGGER_MODEL).is_file() if file == TAG_LIST else is_complete(folder)
            return folder if is_there else None
    return None
