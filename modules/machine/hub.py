"""Models of the Hugging Face Hub: find them, read what they are, and download them to the Hub's own cache.

The token is the one that `hf auth login` has saved, or HF_TOKEN; Chorus never stores one. HF_ENDPOINT, HF_HOME and
HF_HUB_OFFLINE are huggingface_hub's. Importing that takes a second, so that the window runs scripts/hub.py instead.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modules.config.errors import ModelFileError, UserError
from modules.config.families import DENOISER_CONFIG, SCHEDULER_CONFIG
from modules.config.model_index import INDEXES, index_in, read_json, read_model_index
from modules.machine.weight_files import INDEX, WEIGHTS, loaded_weights

HUB_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>\w[\w./-]*))?")
"""NAMESPACE/MODEL, or NAMESPACE/MODEL@REVISION: a branch, a tag or a commit."""
TRANSFORMER = "transformer/config.json"  # U-Nets are told apart by their pipelines
# Configs that are read with the index of a model -> their names in it.
CONFIGS = {TRANSFORMER: DENOISER_CONFIG, "scheduler/scheduler_config.json": SCHEDULER_CONFIG}
FOUND_LIMIT = 40
SEARCH_SECONDS = 20.0
REPORT_SECONDS = 0.5
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5", ".onnx", ".onnx_data", ".xml")
SHARD_NAME = re.compile(r"\w[\w.-]*\.(safetensors|bin)")
WEIGHT_INDEX = re.compile(r".*\.index\.(?:[\w-]+\.)?json")


@dataclass(frozen=True)
class FoundModel:
    """A result of a search, or a model in the cache. license: "" if unknown. num_bytes: on this disk."""

    name: str
    license: str = ""
    is_gated: bool = False
    downloads: int = 0
    num_bytes: int = 0


@dataclass(frozen=True)
class HubModel:
    """A model on the Hub, at a revision.

    commit: of the revision. index: its model_index.json; empty if it is not a diffusers model. sizes: the bytes of the
    files that loading it needs, by their paths in the repository. missing: those that aren't in the cache yet.
    """

    name: str
    commit: str
    license: str
    is_gated: bool
    index: Mapping[str, Any]
    sizes: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes.values())

    @property
    def missing_bytes(self) -> int:
        return sum(self.sizes[path] for path in self.missing)


def split_name(name: str) -> tuple[str, str | None]:
    """(repository, revision) of a name on the Hub. Raises UserError if it is none."""
    match = HUB_NAME.fullmatch(name)
    if match is None:
        raise UserError(
            f"{name!r} is not the name of a model on the Hub: names have the form NAMESPACE/MODEL[@REVISION]."
        )
    return match["repo"], match["revision"]


def folder_on_disk(name: str, replaced: Collection[str] = ()) -> Path | None:
    """The folder of a model in the Hub's cache if it is there completely, without asking the Hub; else None.

    replaced: as in `needed_files`. Raises UserError if the name is none of a model on the Hub.
    """
    folder = cached_folder(name)
    if folder is None:
        return None
    index = read_index(folder)
    parts = [name for name, value in index.items() if isinstance(value, list) and value and value[0] is not None]
    return folder if all(is_complete(folder / part, part not in replaced) for part in parts) else None


def known_index(name: str) -> dict[str, Any]:
    """The index of a model: that in the Hub's cache if there is one, else the Hub's. Raises UserError."""
    folder = cached_folder(name)
    return read_index(folder) if folder else dict(read_model(name).index)


def known_config(name: str, component: str) -> dict[str, Any]:
    """The config.json of a component: that in the Hub's cache if there is one, else the Hub's; {} if it has none.

    Raises UserError if neither is to be had, and ModelFileError or OSError if it can't be read.
    """
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    (repo, revision), file = split_name(name), f"{component}/config.json"
    cached = try_to_load_from_cache(repo, file, revision=revision)
    if isinstance(cached, str):
        return read_json(Path(cached))
    try:
        names = {one.rfilename for one in HfApi().model_info(repo, revision=revision).siblings or ()}
        return read_json(Path(hf_hub_download(repo, file, revision=revision))) if file in names else {}
    except ModelFileError:
        raise
    except Exception as error:
        raise UserError(_cannot_fetch(name, expected_error(error))) from error


def cached_folder(name: str) -> Path | None:
    """The folder in the Hub's cache that has the index of a model."""
    from huggingface_hub import try_to_load_from_cache

    repo, revision = split_name(name)
    cached = (try_to_load_from_cache(repo, index, revision=revision) for index in INDEXES)
    return next((Path(path).parent for path in cached if isinstance(path, str)), None)


def find_models(text: str) -> list[FoundModel]:
    """Models in diffusers' format whose names contain `text`, those with the most downloads first.

    Raises UserError if the Hub can't be asked.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    # not by list_models, which tries again for half a minute, aloud, where there is no network
    wanted = {"filter": "diffusers", "search": text, "sort": "downloads", "limit": str(FOUND_LIMIT)}
    try:
        url = f"{HfApi().endpoint}/api/models"
        answer = get_session().get(url, params=wanted, headers=build_hf_headers(), timeout=SEARCH_SECONDS)
        hf_raise_for_status(answer)
        return [
            FoundModel(one["id"], _license(one.get("tags")), bool(one.get("gated")), one.get("downloads") or 0)
            for one in answer.json()
        ]
    except Exception as error:
        raise UserError(f"The Hub can't be searched: {hub_problem(expected_error(error), of_model=False)}.") from error


def read_model(
    name: str, replaced: Collection[str] = (), needed: Callable[[Iterable[str]], list[str]] | None = None
) -> HubModel:
    """What the Hub says of a model, or what is known of one that is on this machine completely if it can't be asked.

    replaced: as in `needed_files`. needed: chooses among the paths of a model that is not in diffusers' format those
    that loading it needs. Raises UserError if neither is known.
    """
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    repo, revision = split_name(name)
    try:
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
        commit = str(info.sha)
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        index: dict[str, Any] = {}
        if (name_of_index := index_in(sizes)) in sizes:
            for path in sizes.keys() & CONFIGS if TRANSFORMER in sizes else ():
                hf_hub_download(repo, path, revision=commit)
            index = read_index(Path(hf_hub_download(repo, name_of_index, revision=commit)).parent)
    except ModelFileError:
        raise
    except Exception as error:
        problem = _cannot_fetch(name, expected_error(error))
        if (folder := folder_on_disk(name, replaced)) is not None:
            return _model_in(folder, name, replaced)
        raise UserError(problem) from error
    chosen = needed_files(sizes, index, replaced) if needed is None else needed(sizes)
    own = {path: sizes[path] for path in chosen}
    missing = (path for path in own if not isinstance(try_to_load_from_cache(repo, path, revision=commit), str))
    return HubModel(name, commit, _license(info.tags), bool(info.gated), index, own, tuple(missing))


def needed_files(paths: Iterable[str], index: Mapping[str, Any], replaced: Collection[str] = ()) -> list[str]:
    """The files of a diffusers repository that are loaded: one copy of each component's weights, and its configs.

    replaced: components of which only the configs are needed, because their weights come from elsewhere.
    """
    paths = list(paths)
    folders = {name for name, value in index.items() if isinstance(value, list) and value and value[0] is not None}
    needed = [path for path in paths if path in INDEXES]
    for folder in folders:
        names = [
            name for path in paths if path.startswith(f"{folder}/") and "/" not in (name := path[len(folder) + 1 :])
        ]
        weights = [] if folder in replaced else loaded_weights(names)
        others = (name for name in names if not (WEIGHT_INDEX.fullmatch(name) or name.endswith(WEIGHT_SUFFIXES)))
        needed += [f"{folder}/{name}" for name in (*weights, *others)]
    return sorted(needed)


def download_model(model: HubModel, report: Callable[[int, int], None] = lambda done, total: None) -> Path:
    """Download what is missing to the Hub's cache. Returns the model's folder there.

    report: called from another thread, twice a second, with the bytes so far and in all. What is complete when a
    download ends early is not downloaded again.
    Raises UserError if it fails.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.file_download import repo_folder_name

    repo, revision = split_name(model.name)
    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
    before, total, ended = _bytes_in(folder), model.missing_bytes, threading.Event()

    def watch() -> None:
        while not ended.wait(REPORT_SECONDS):
            report(min(max(0, _bytes_in(folder) - before), total), total)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        # By its revision, not by the commit, so that the cache knows what the revision meant when it is read offline.
        path = snapshot_download(repo, revision=revision, allow_patterns=list(model.sizes))
    except Exception as error:
        raise UserError(_cannot_fetch(model.name, expected_error(error))) from error
    finally:
        ended.set()
        watcher.join()
    report(total, total)
    return Path(path)


def models_on_disk() -> list[FoundModel]:
    """The diffusers models in the Hub's cache, by name. Raises UserError if the cache is no folder."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    except ValueError as error:  # a file
        raise UserError(
            f"The Hub's cache {HF_HUB_CACHE!r} is not a folder: set HF_HOME or HF_HUB_CACHE to one."
        ) from error
    found = []
    for repo in repos:
        names = {file.file_name for revision in repo.revisions for file in revision.files}
        if repo.repo_type == "model" and names.intersection(INDEXES):
            found.append(FoundModel(repo.repo_id, num_bytes=repo.size_on_disk))
    return sorted(found, key=lambda model: model.name.casefold())


def hub_problem(error: BaseException, of_model: bool = True) -> str:
    """Why the Hub could not be asked and what to do, as a clause without a full stop.

    of_model: whether it was asked for a model that somebody has named, which might be on this machine.
    The classes of huggingface_hub and its HTTP client are recognized by name, so that neither has to be imported.
    """
    names: set[str] = set()
    cause: BaseException | None = error
    while cause is not None:
        names |= {kind.__name__ for kind in type(cause).__mro__}
        cause = cause.__cause__ or cause.__context__
    for known, text in (_PROBLEMS if of_model else _PROBLEMS | _OF_NO_MODEL).items():
        if known in names:
            return text
    lines = str(error).strip().splitlines()
    reason = lines[0][:300].rstrip(".") if lines else type(error).__name__
    return f"{reason}; check the name and the connection"


_UNREACHABLE = "the Hub can't be reached, and the model isn't on this machine; check the connection or choose a folder"
_PROBLEMS = {
    "GatedRepoError": "its authors ask for an agreement; accept it on the model's page, then run `hf auth login`",
    "RevisionNotFoundError": "the model has no such revision; check the name",
    "RepositoryNotFoundError": "there is no such model, or it is private; check the name, or run `hf auth login`",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set, and the model is not on this machine; unset it, or choose a folder",
    "TransportError": _UNREACHABLE,
    "ConnectionError": _UNREACHABLE,
    "TimeoutError": _UNREACHABLE,
}
_NO_CONNECTION = "it can't be reached; check the connection"
_OF_NO_MODEL = {
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set; unset it",
    **dict.fromkeys(("TransportError", "ConnectionError", "TimeoutError"), _NO_CONNECTION),
}


def _model_in(folder: Path, name: str, replaced: Collection[str]) -> HubModel:
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    index = read_index(folder)
    sizes = {path: paths[path].stat().st_size for path in needed_files(paths, index, replaced)}
    return HubModel(name, folder.name, "", False, index, sizes)


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a diffusers folder, with the CONFIGS of a model with a transformer.

    Raises ModelFileError if one of them can't be used, and OSError if one can't be read.
    """
    index = read_model_index(folder)
    if not (folder / TRANSFORMER).is_file():
        return index
    return index | {name: read_json(folder / path) for path, name in CONFIGS.items() if (folder / path).is_file()}


def is_complete(part: Path, with_weights: bool = True) -> bool:
    """Whether a component's folder has all shards of its weights, if it has weights, which a config.json says."""
    names = {path.name for path in part.iterdir()} if part.is_dir() else set()
    if not with_weights:
        return bool(names)
    shards = [set(shards_in(part / name)) for name in names if INDEX.fullmatch(name)]
    if shards:
        return any(one <= names for one in shards)
    return bool(names) and ("config.json" not in names or any(map(WEIGHTS.fullmatch, names)))


def shards_in(path: Path) -> list[str]:
    """The files that an index of weights names, sorted. Raises ModelFileError if it is damaged or names others' files.

    path: of a .safetensors.index.json or .bin.index.json.
    """
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict) or not files or not all(map(_is_file_name, files.values())):
        raise ModelFileError(f"'{path}': does not name the files with the weights; download the model again.")
    return sorted(set(files.values()))


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and SHARD_NAME.fullmatch(name) is not None


def _cannot_fetch(name: str, error: BaseException) -> str:
    return f"{name!r} can't be fetched from the Hub: {hub_problem(error)}."


def expected_error(error: Exception) -> Exception:
    """The error, if it is one of the network, the Hub or the disk; any other is a bug, and is raised."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, OSError | ValueError) or kinds & {"HfHubHTTPError", "TransportError", "HTTPError"}:
        return error
    raise error


def _license(tags: Iterable[str] | None) -> str:
    marked = (tag.partition(":")[2] for tag in tags or () if tag.startswith("license:"))
    return next(marked, "")


def _bytes_in(folder: Path) -> int:
    """The bytes of all files below a folder, each once: the cache links to files of its own."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                try:
                    total += path.stat().st_size
                except OSError:  # renamed meanwhile
                    continue
    return total
