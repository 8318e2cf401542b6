"""Other trainers' control images and videos go where the family's condition looks for them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config.families import families_taking, families_taking_clips
from modules.config.other_programs import load_program
from modules.importers.import_files import import_files
from modules.importers.ImportResult import ImportResult
from modules.importers.MusubiTranslation import musubi_tuner

BESIDE = "/before"
DATASETS = [
    {"id": "a", "dataset_type": "video", "instance_data_dir": "/a", "conditioning_data": ["b"]},
    {"id": "b", "dataset_type": "conditioning", "conditioning_type": "reference_strict", "instance_data_dir": BESIDE},
]
OF_MUSUBI = f'[[datasets]]\nvideo_directory = "/a"\ncontrol_directory = "{BESIDE}"\n'
OF_PIPE = f'[[directory]]\npath = "/a"\ncontrol_path = "{BESIDE}"\n'


def written(folder: Path, **files: str) -> ImportResult:
    """The import of the first file, which may name the others."""
    paths = [folder / name.replace("__", ".") for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return import_files(paths[:1])


def of_ai_toolkit(folder: Path, family: str, patch: pytest.MonkeyPatch) -> ImportResult:
    patch.setitem(load_program("ai_toolkit").facts["families"], "wan21", family)
    process = {"type": "sd_trainer", "network": {}, "model": {"arch": "wan21"}}
    process["datasets"] = [{"folder_path": "/a", "control_path": BESIDE, "num_frames": 17}]
    return written(folder, job__json=json.dumps({"config": {"process": [process]}}))


def of_musubi(folder: Path, family: str, patch: pytest.MonkeyPatch) -> ImportResult:
    patch.setitem(musubi_tuner().facts["choices"]["wan_train_network.py"]["task"], "t2v-14B", family)
    command = "python wan_train_network.py --dataset_config data.toml --network_module networks.lora_wan"
    return written(folder, train__sh=command, data__toml=OF_MUSUBI)


def of_diffusion_pipe(folder: Path, family: str, patch: pytest.MonkeyPatch) -> ImportResult:
    patch.setitem(load_program("diffusion_pipe").facts["types"], "wan", family)
    patch.setitem(load_program("diffusion_pipe").facts["variants"], "wan", {})
    text = 'dataset = "data.toml"\nepochs = 1\noutput_dir = "/o"\n[model]\ntype = "wan"\n[adapter]\ntype = "lora"\n'
    return written(folder, train__toml=text, data__toml=OF_PIPE)


def of_simpletuner(folder: Path, family: str, patch: pytest.MonkeyPatch) -> ImportResult:
    patch.setitem(load_program("simpletuner").facts["families"], "wan", family)
    values = {"model_family": "wan", "model_type": "lora", "data_backend_config": json.dumps(DATASETS)}
    return written(folder, config__json=json.dumps(values))


PROGRAMS = [of_ai_toolkit, of_musubi, of_diffusion_pipe, of_simpletuner]
CASES = [
    (families_taking("source_clip")[0], "concepts.0.source_folder"),
    ("qwen_image_edit", "concepts.0.reference_folder"),
    (next(iter(set(families_taking_clips()) - {*families_taking("source_clip"), *families_taking("references")})), ""),
]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("family", "path"), CASES, ids=["sources", "references", "neither"])
def test_controls_go_to_what_the_model_sees(
    program: Callable[[Path, str, pytest.MonkeyPatch], ImportResult],
    family: str,
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = program(tmp_path, family, monkeypatch)
    taken = {name: value for name, value in result.values.items() if value == BESIDE}
    assert taken == ({path: BESIDE} if path else {})
    assert any(BESIDE in line.theirs for line in result.left) is not bool(path)


def test_a_file_of_videos_that_names_no_model_has_source_clips(tmp_path: Path) -> None:
    for name, text in {"data.toml": OF_MUSUBI, "multidatabackend.json": json.dumps(DATASETS)}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert import_files([tmp_path / name]).values["concepts.0.source_folder"] == BESIDE
