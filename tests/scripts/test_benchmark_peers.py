"""Scripts that are not ours take turns with Chorus, in an environment of their own."""

import json
import sys
from pathlib import Path

import pytest
import torch

from modules.config.errors import UserError
from scripts import benchmark
from scripts.benchmarks import peer_environment, peer_script, peers
from scripts.benchmarks.material import model_folder
from scripts.benchmarks.peer_programs import PEERS
from scripts.benchmarks.worker import WorkerArguments
from scripts.benchmarks.workers import start_program

DIFFUSERS = ("text_to_image_lora", "dreambooth_lora_sdxl", "dreambooth_lora_flux")
SCRIPT = """
import sys
import torch

weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.AdamW([weight])
print("noise on stdout")
for number in range(int(sys.argv[sys.argv.index("--max_train_steps") + 1])):
    weight.grad = torch.ones(3)
    optimizer.step()
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    """One of diffusers, with the scripts' places."""
    for name in DIFFUSERS:
        path = tmp_path / "checkout" / PEERS[name][1].path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SCRIPT)
    return tmp_path / "checkout"


@pytest.fixture
def material(tmp_path, picture_folder) -> Path:
    picture_folder(sizes=((32, 32),) * 3, name="material/pictures")
    return tmp_path / "material"


def test_a_script_answers_when_its_turn_is_over_by_its_optimizer_steps(checkout, material, tmp_path):
    arguments = WorkerArguments(material, "lora", steps=2, turns=2, run_folder=material)
    command = peers.command_of(
        Path(sys.executable), checkout, "text_to_image_lora", tmp_path, "cpu", arguments, peers.AS_IT_COMES
    )
    with start_program("script", command, "cpu") as script:
        answers = [script.turn(), script.turn()]
        with pytest.raises(UserError, match="script ended before its time"):
            script.turn()
    assert [answer.device for answer in answers] == ["cpu", "cpu"]
    assert answers[0].time <= answers[1].time


def test_a_script_is_given_the_work_of_chorus(checkout, material):
    arguments = WorkerArguments(material, "lora", steps=5, turns=4)
    for name in DIFFUSERS:
        peer = PEERS[name][1]
        kept = peers.command_of(Path("python"), checkout, name, material, "cuda", arguments, peers.KEPT)
        options = dict(
            zip(
                kept[kept.index(str(checkout / peer.path)) + 1 :: 2],
                kept[kept.index(str(checkout / peer.path)) + 2 :: 2],
                strict=True,
            )
        )
        assert "--keep-encoded" in kept
        assert options["--pretrained_model_name_or_path"] == str(model_folder(material)), name
        wanted = {"--max_train_steps": "20", "--train_batch_size": "4", "--rank": "8", "--mixed_precision": "bf16"}
        assert wanted.items() <= options.items()
    listed = (material / "listed images" / "metadata.jsonl").read_text(encoding="utf-8")
    assert listed.count("file_name") == 3


def test_a_folder_without_the_scripts_is_refused_before_anything_is_installed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("scripts.benchmarks.material._make_model", lambda path: None)
    monkeypatch.setattr("scripts.benchmarks.material._make_pictures", lambda path: None)
    assert benchmark.main(["peers", "--scripts", str(tmp_path), "--folder", str(tmp_path / "work")]) == 2
    assert "it is no checkout of diffusers, sd-scripts, OneTrainer" in capsys.readouterr().err


ONETRAINER = {
    "requirements-global.txt": "",
    "modules/util/config.py": "def steps(file):\n    import json\n    return json.load(open(file))['epochs']\n",
    "scripts/train.py": """
import sys
import torch
sys.path.insert(0, ".")  # its own packages, which are called as those of Chorus
from modules.util.config import steps

weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.AdamW([weight])
for number in range(steps(sys.argv[sys.argv.index("--config-path") + 1])):
    weight.grad = torch.ones(3)
    optimizer.step()
""",
}
SD_SCRIPTS = {
    "sdxl_train_network.py": "",
    "networks/lora.py": "",
    "requirements.txt": "# of images\ntoml==0.10.2\ndiffusers[torch]==0.32.1\ntorchvision\nrich==1.0 # logs\n-e .\n",
}


@pytest.fixture
def write_checkout(tmp_path):
    def write(name: str, files: dict[str, str]) -> Path:
        for path, text in files.items():
            place = tmp_path / name / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def test_onetrainer_trains_in_its_checkout_on_the_work_of_chorus(write_checkout, material, tmp_path):
    arguments = WorkerArguments(material, "lora", steps=1, turns=3)
    place = write_checkout("OneTrainer", ONETRAINER)
    command = peers.command_of(
        Path(sys.executable), place, "onetrainer_sd15", tmp_path, "cpu", arguments, peers.AS_IT_COMES
    )
    with start_program("script", command, "cpu") as script:
        assert [script.turn().device for _ in range(3)] == ["cpu"] * 3
    settings = json.loads((tmp_path / "onetrainer.json").read_text(encoding="utf-8"))
    wanted = {"batch_size": 4, "lora_rank": 8, "learning_rate": 1e-4, "train_dtype": "FLOAT_32", "resolution": "32"}
    assert wanted.items() <= settings.items()
    assert settings["base_model_name"] == str(model_folder(material))
    assert settings["unet"]["train"]
    assert not settings["text_encoder"]["train"]


def test_sd_scripts_keeps_what_it_encodes_by_its_own_options(write_checkout, material, tmp_path):
    place = write_checkout("sd-scripts", SD_SCRIPTS)
    (model_folder(material) / "tokenizer").mkdir(parents=True)
    arguments = WorkerArguments(material, "lora", steps=5, turns=4)
    kept, plain = (
        peers.command_of(Path("python"), place, "sd_scripts_sdxl", tmp_path / how, "cuda", arguments, how)
        for how in (peers.KEPT, peers.AS_IT_COMES)
    )
    assert {"--cache_latents", "--cache_text_encoder_outputs", "--network_train_unet_only"} <= {*kept}
    assert not {"--cache_latents", "--keep-encoded"} & {*plain}
    assert kept[kept.index("--max_train_steps") + 1] == "20"
    (images,) = Path(kept[kept.index("--train_data_dir") + 1]).iterdir()
    assert images.name.startswith("1_"), "which says how often they are repeated"
    assert len([*images.glob("*.png")]) == 3
    assert (tmp_path / peers.KEPT / "tokenizers" / "openai_clip-vit-large-patch14").is_dir()


def test_scripts_are_those_of_the_checkouts_that_can_train_on_the_device(write_checkout, checkout):
    folders = [checkout, write_checkout("sd-scripts", SD_SCRIPTS), write_checkout("OneTrainer", ONETRAINER)]
    chosen = [name for _, name in peers.chosen_peers(folders, (), "cpu")]
    assert chosen == [*DIFFUSERS, "onetrainer_sd15", "onetrainer_sdxl"]
    assert peers.chosen_peers(folders, ["sd_scripts_sdxl"], "cuda") == [(folders[1], "sd_scripts_sdxl")]
    with pytest.raises(UserError, match="only trains models of published size; add --device cuda"):
        peers.chosen_peers(folders, ["sd_scripts_sdxl"], "cpu")
    with pytest.raises(UserError, match="is a script of OneTrainer; name a checkout of it"):
        peers.chosen_peers(folders[:1], ["onetrainer_sd15"], "cpu")


def test_a_program_gets_the_versions_that_it_asks_for_but_no_other_pytorch(tmp_path, monkeypatch):
    create, installs = peer_environment.venv.create, []
    monkeypatch.setattr(peer_environment.venv, "create", lambda folder, with_pip: create(folder))
    monkeypatch.setattr(peer_environment, "_install", lambda python, arguments: installs.append(arguments))
    listed = peers.own_requirements(SD_SCRIPTS["requirements.txt"])
    assert listed == ("toml==0.10.2", "diffusers[torch]==0.32.1", "rich==1.0")
    peer_environment.peer_python(tmp_path / "env", {}, listed)
    asked = installs[0]
    assert Path(asked[asked.index("-r") + 1]).read_text(encoding="utf-8").splitlines() == list(listed)
    held = Path(asked[asked.index("-c") + 1]).read_text(encoding="utf-8")
    assert held.startswith("torch=="), "which all environments share"


def test_peers_without_a_checkout_is_refused(capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["peers"])
    assert "peers needs --scripts" in capsys.readouterr().err


def test_the_environment_of_peers_sees_what_is_installed_and_replaces_none_of_it(tmp_path, monkeypatch):
    create, installs = peer_environment.venv.create, []
    monkeypatch.setattr(peer_environment.venv, "create", lambda folder, with_pip: create(folder))
    monkeypatch.setattr(peer_environment, "_install", lambda python, arguments: installs.append(arguments))
    requirements = {"torch": "torch==0.1", "datasets": "notinstalled==1.0"}
    python = peer_environment.peer_python(tmp_path / "env", requirements)
    shared = next((tmp_path / "env").rglob("shared.pth")).read_text(encoding="utf-8").splitlines()
    assert str(Path(torch.__file__).parents[1]) in shared
    (constrained, torchvision) = installs
    assert "notinstalled==1.0" in constrained
    assert "torch==0.1" not in constrained, "it is there already"
    assert "diffusers==" in (tmp_path / "env" / "constraints.txt").read_text(encoding="utf-8")
    assert torchvision[0] == "--no-deps"
    assert peer_environment.peer_python(tmp_path / "env", requirements) == python
    assert len(installs) == 2, "it is complete"


def test_what_pip_can_not_install_is_said_with_its_reason(tmp_path):
    with pytest.raises(UserError, match="peers needs no-such==1, which pip could not install"):
        peer_environment._install(Path(sys.executable), ["--no-index", "no-such==1"])


def test_each_row_is_encoded_once_and_comes_out_as_before():
    encoded = []

    def encode(module, values):
        encoded.append(len(values))
        return {"out": values * 2, "states": (values + 1, [7])}

    encode = peer_script.remembering(encode)
    values = torch.arange(12.0).reshape(4, 3)
    encode("module", values)
    found = encode("module", values[[3, 1]])
    assert encoded == [4]
    assert torch.equal(found["out"], values[[3, 1]] * 2)
    assert torch.equal(found["states"][0], values[[3, 1]] + 1)
    encode("other module", values[:1])
    assert encoded == [4, 1]
