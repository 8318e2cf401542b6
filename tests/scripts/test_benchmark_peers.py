"""Scripts that are not ours take turns with Chorus, in an environment of their own."""

import sys
from pathlib import Path

import pytest
import torch

from modules.config.errors import UserError
from scripts import benchmark
from scripts.benchmarks import peer_environment, peer_script, peers
from scripts.benchmarks.material import model_folder
from scripts.benchmarks.worker import WorkerArguments
from scripts.benchmarks.workers import start_program

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
    """A checkout with the scripts' places."""
    for peer in peers.PEERS.values():
        path = tmp_path / "checkout" / peer.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SCRIPT)
    return tmp_path / "checkout"


@pytest.fixture
def material(tmp_path, picture_folder) -> Path:
    picture_folder(sizes=((32, 32),) * 3, name="material/pictures")
    return tmp_path / "material"


def test_a_script_answers_when_its_turn_is_over_by_its_optimizer_steps(checkout, material):
    arguments = WorkerArguments(material, "lora", steps=2, turns=2, run_folder=material)
    peer = peers.PEERS["text_to_image_lora"]
    command = peers.command_of(
        Path(sys.executable), checkout, peer, material, material, "cpu", arguments, peers.AS_IT_COMES
    )
    with start_program("script", command, "cpu") as script:
        answers = [script.turn(), script.turn()]
        with pytest.raises(UserError, match="script ended before its time"):
            script.turn()
    assert [answer.device for answer in answers] == ["cpu", "cpu"]
    assert answers[0].time <= answers[1].time


def test_a_script_is_given_the_work_of_chorus(checkout, material):
    arguments = WorkerArguments(material, "lora", steps=5, turns=4)
    for name, peer in peers.PEERS.items():
        kept = peers.command_of(Path("python"), checkout, peer, material, material, "cuda", arguments, peers.KEPT)
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
    assert "name the root of a diffusers checkout" in capsys.readouterr().err


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
