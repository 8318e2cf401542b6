"""scripts/train_flow_matching.py: its options, and that each way to start it on two ranks trains the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config.errors import UserError
from modules.config.files import save_config
from modules.launch.TrialRuns import read_losses
from modules.session.RunFolder import RunFolder
from modules.trainer.checks import check_batch_divides
from scripts.train_flow_matching import flow_config, given_settings, main, parse_args
from scripts.train_multigpu import with_num_gpus
from tests.support.fork_server import ForkedScript
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "scripts" / "train_flow_matching.py")
STEPS = 20
WAIT_SECONDS = 240


@pytest.fixture(scope="module")
def options(tiny_model, tmp_path_factory) -> Callable[..., list[str]]:
    """A function that gives the options of a run in a folder: options(folder, *further)."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("flow")
    (folder / "images").mkdir()
    for index in range(8):
        Image.new("RGB", (32, 32), (30 * index, 90, 200 - 20 * index)).save(folder / "images" / f"{index}.png")

    def get(run: Path, *further: str) -> list[str]:
        small = ["data.bucket_step=16", "model.weight_dtype=float32", f"cache_dir={folder / 'cache'}"]
        small += ["batch_size_mode=global", "sampling.samples=[]", f"initial_port={free_port()}"]
        given = [f"--data={folder / 'images'}", f"--base={tiny_model('wan21')}", f"--output_dir={run}", "--use_ema"]
        given += ["--batch_size=4", "--learning_rate=1e-3", "--mixed_precision=no", "--resolution=32"]
        return [*given, f"--max_steps={STEPS}", "--num_epochs=50", *(f"--set={change}" for change in small), *further]

    return get


# --- options ----------------------------------------------------------------------------------------------------------


def test_the_options_change_the_preset_of_the_models_family(options, tmp_path):
    config = flow_config(parse_args(options(tmp_path)))
    assert (config.family, config.method, config.batch_size, config.epochs) == ("wan21", "lora", 4, 50)
    assert (config.optimizer.learning_rate, config.ema.enabled, config.data.resolution) == (1e-3, True, 32)
    assert config.diffusion.timesteps == "trained"  # of the preset
    assert not config.enable_multi_gpu


@pytest.mark.parametrize(
    ("given", "batch_size", "epochs"),
    [([], 1, 100), (["--batch_size=2"], 2, 100), (["--num_epochs=3"], 1, 3)],
    ids=["defaults", "batch size", "epochs"],
)
@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_batch_size_is_per_device_whatever_the_preset_says(method, given, batch_size, epochs):
    options = [f"--method={method}", "--family=flux1", "--data=images", "--base=a/model", "--num_gpus=4"]
    config = flow_config(parse_args([*options, *given]))
    assert (config.batch_size, config.batch_size_mode, config.epochs) == (batch_size, "per_device", epochs)
    check_batch_divides(config, num_ranks=4)


@pytest.mark.parametrize("option", ["batch_size", "num_epochs", "max_steps", "learning_rate", "resolution"])
def test_zero_is_refused_and_not_taken_for_the_default(option, options, tmp_path, capsys):
    with pytest.raises(SystemExit):
        parse_args(options(tmp_path, f"--{option}=0"))
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert f"--{option}" in refusal
    assert "above 0" in refusal
    assert "default" not in refusal  # --help names the defaults, which are not those of the settings


def test_help_and_refusals_import_neither_torch_nor_what_prints_notes_when_it_is_imported():
    loaded = "{'torch', 'peft', 'transformers'} & set(sys.modules)"
    code = f"import sys; from scripts import train_flow_matching; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.stdout == "set()\n", done.stderr


def test_only_what_was_given_is_what_accelerate_may_not_contradict(options, tmp_path):
    given = given_settings(parse_args(options(tmp_path, "--num_gpus=2")))
    assert {"model.mixed_precision", "world_size", "enable_multi_gpu", "batch_size_mode"} <= given
    assert "seed" not in given


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["2", "--batch_size", "2"], ["--num_gpus=2", "--batch_size", "2"]),
        (["all"], ["--num_gpus=all"]),
        (["--num_epochs", "50"], ["--num_gpus=all", "--num_epochs", "50"]),
    ],
)
def test_train_multigpu_takes_a_number_of_gpus_and_passes_the_rest_on(argv, expected):
    assert with_num_gpus(argv) == expected


@pytest.mark.parametrize(("num_gpus", "world_size"), [("all", None), ("3", 3)])
def test_num_gpus_starts_ranks(options, tmp_path, num_gpus, world_size):
    config = flow_config(parse_args(options(tmp_path, f"--num_gpus={num_gpus}")))
    assert (config.enable_multi_gpu, config.world_size) == (True, world_size)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--data=x"], "--data and --base belong together"),
        (["--method=full"], "--family and --method are for a model of your own"),
        (["--num_gpus=0"], "neither a number above 0 nor all"),
    ],
)
def test_options_that_belong_together_or_make_no_sense_are_refused(argv, message, capsys):
    with pytest.raises(SystemExit):
        parse_args(argv)
    assert message in capsys.readouterr().err


def test_without_data_the_video_demo_trains_with_what_was_given():
    demo = flow_config(parse_args([]))
    assert (demo.family, demo.data.frames, demo.batch_size, demo.batch_size_mode) == ("wan21", 9, 16, "global")
    assert demo.workspace_dir.endswith("video_demo")
    assert all(Path(concept.path).is_dir() for concept in demo.concepts)
    given = flow_config(parse_args(["--batch_size=2", "--max_steps=5", "--output_dir=x", "--num_gpus=2"]))
    assert (given.batch_size, given.batch_size_mode, given.max_steps) == (2, "per_device", 5)
    assert (given.workspace_dir, given.enable_multi_gpu, given.world_size) == ("x", True, 2)


def test_a_model_that_is_no_flow_model_is_refused(tiny_sd15, options, tmp_path, capsys):
    assert main([*options(tmp_path), f"--base={tiny_sd15}"]) == 2
    assert "family sd15 is not trained by flow matching: use scripts/train.py for it" in capsys.readouterr().err
    with pytest.raises(UserError, match="method vae trains no denoiser"):
        flow_config(parse_args(options(tmp_path, "--set=method=vae", "--set=family=sd3")))


# --- the same training ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_alone(options, tmp_path_factory) -> RunFolder:
    folder = tmp_path_factory.mktemp("alone")
    start(folder, [SCRIPT], options)
    return RunFolder(folder / "run")


@pytest.fixture(scope="module")
def losses_alone(run_alone) -> dict[int, float]:
    losses = read_losses(run_alone)
    assert list(losses) == list(range(1, STEPS + 1))
    return losses


def start(folder: Path, command: list[str], options, *variables: dict[str, str], further: tuple[str, ...] = ()):
    """The losses of a run, by step. command: of Python. variables: of each process to start, one without any."""
    arguments = [*command, *options(folder / "run", *further)]
    output = folder / "output.txt"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "TORCHELASTIC_"))}
    env = {**kept, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    processes = [ForkedScript(arguments, env | own, output) for own in variables or ({},)]
    try:
        codes = [process.wait(WAIT_SECONDS) for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
        raise
    assert codes == [0] * len(codes), output.read_text(encoding="utf-8")
    return read_losses(RunFolder(folder / "run"))


def slurm_tasks() -> list[dict[str, str]]:
    step = {"MASTER_PORT": str(free_port()), "SLURM_JOB_ID": "4711", "SLURM_NODEID": "0", "SLURM_STEP_ID": "0"}
    step |= {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}
    return [{**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]


def torch_launcher(module: str) -> list[str]:
    return ["-m", module, "--nproc_per_node=2", f"--master_port={free_port()}", SCRIPT]


@pytest.mark.skipif(sys.platform != "linux", reason="the ranks are forked to save their imports")
@pytest.mark.parametrize("door", ["torchrun", "torch.distributed.launch", "srun", "train_multigpu"])
def test_each_door_trains_on_two_ranks_with_the_losses_of_one(door, options, losses_alone, tmp_path):
    losses = {
        "torchrun": lambda: start(tmp_path, torch_launcher("torch.distributed.run"), options),
        "torch.distributed.launch": lambda: start(tmp_path, torch_launcher("torch.distributed.launch"), options),
        "srun": lambda: start(tmp_path, [SCRIPT], options, *slurm_tasks()),
        "train_multigpu": lambda: start(
            tmp_path, [str(ROOT / "scripts" / "train_multigpu.py"), "2"], options, further=("--set=use_torchrun=false",)
        ),
    }[door]()
    assert losses == pytest.approx(losses_alone, rel=1e-4)
    assert json.loads((tmp_path / "run" / "exit.json").read_bytes())["status"] == "finished"
    assert "Number of processes: 2" in (tmp_path / "output.txt").read_text(encoding="utf-8")


def test_the_class_trains_with_the_same_losses_and_only_as_the_rank_it_is(two_ranks, options, losses_alone, tmp_path):
    from tests.support import rank_scenarios

    config = flow_config(parse_args(options(tmp_path / "run")))
    save_config(config, tmp_path / "run.yaml")
    results = two_ranks.run(rank_scenarios.train_by_flow_matching_trainer, config=str(tmp_path / "run.yaml"))
    for result in results:
        assert result["losses"] == pytest.approx(list(losses_alone.values()), rel=1e-4)
        assert result["is_distributed"]
        assert "but the launcher has started rank" in result["refused"]


def test_cosine_similarity_and_norms_of_the_velocity_are_logged(run_alone):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = EventAccumulator(str(run_alone.tensorboard_dir)).Reload()
    tags = curves.Tags()["scalars"]
    for name in ("cosine", "prediction_norm", "target_norm"):
        (tag,) = [tag for tag in tags if tag.endswith(name)]
        assert len(curves.Scalars(tag)) == STEPS
