"""N ranks give the same results as one rank: complete runs of a tiny model in real processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from modules.config.files import save_config
from modules.distributed.Runtime import Runtime
from modules.session.TrainCommands import TrainCommands
from modules.trainer.GenericTrainer import GenericTrainer
from modules.trainer.rank_checks import settings_digest
from modules.trainer.TrainingError import TrainingError
from modules.weights.safe import load_tensors
from tests.support import rank_scenarios
from tests.support.RankPool import run_alone
from tests.support.Recorder import Recorder
from tests.support.ThreadRanks import ThreadRanks

# Eleven images in three shapes: steps of 8 and 3, so that with four ranks one has no samples in the second step.
GLOBAL = ("batch_size=8", "batch_size_mode=global", "data.caption_dropout=0.1", "backup.at_end=false")
SAMPLE = (
    "sampling.samples.0.prompt=a photo of a cat",
    "sampling.samples.0.width=32",
    "sampling.samples.0.height=32",
    "sampling.samples.0.steps=1",
)


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def settings(make_config, shared_cache, tmp_path) -> Callable[..., str]:
    """Returns a function that writes the settings of a run in the folder `name` and returns their file."""

    def write(name: str, *overrides: str) -> str:
        config = make_config(*GLOBAL, f"cache_dir={shared_cache}", f"workspace_dir={tmp_path / name}", *overrides)
        path = tmp_path / f"{name}.yaml"
        save_config(config, path)
        return str(path)

    return write


class PretendRuntime(Runtime):
    """Rank 0 of `num_ranks` identical ranks; for decisions before the first step."""

    def __init__(self, num_ranks: int):
        super().__init__(torch.device("cpu"))
        self.world_size = self.local_world_size = num_ranks

    def gather(self, value, why):
        return [value] * self.world_size


@pytest.fixture
def trainer_of_ranks(make_config, shared_cache) -> Callable[..., GenericTrainer]:
    """Returns a function that returns the trainer of rank 0 of `num_ranks` simulated ranks, not yet started."""

    def make(num_ranks: int, *overrides: str, resume: bool = False) -> GenericTrainer:
        config = make_config(f"cache_dir={shared_cache}", *overrides)
        return GenericTrainer(config, Recorder(), TrainCommands(), PretendRuntime(num_ranks), resume)

    return make


def gathered_pictures(ranks: list[dict]) -> list[list[tuple[int, int]]]:
    """The samples of each step, over all ranks."""
    steps = zip(*(rank["pictures"] for rank in ranks), strict=True)
    return [sorted(tuple(pair) for share in step for pair in share) for step in steps]


def weights_of(folder: Path, when: str, rank: int = 0) -> torch.Tensor:
    tensors = load_tensors(folder / f"{when}-{rank}.safetensors")
    return torch.cat([tensors[name].flatten().double() for name in sorted(tensors)])


# --- the same curve ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "method", "accumulation"),
    [("float64", "full", 2), pytest.param("float32", "lora", 1, marks=pytest.mark.proof)],
)
def test_one_two_and_four_ranks_give_the_same_curve_of_three_epochs(
    dtype, method, accumulation, settings, two_ranks, four_ranks, tmp_path
):
    curves, trained = [], []
    for name, run in {"one": run_alone, "two": two_ranks.run, "four": four_ranks.run}.items():
        # on one rank there are no micro-batches, which must make no difference either
        cut = 1 if name == "one" else accumulation
        config = settings(
            name,
            f"model.weight_dtype={dtype}",
            f"method={method}",
            f"optimizer.learning_rate={1e-3 if method == 'lora' else 1e-4}",
            f"gradient_accumulation_steps={cut}",
            "max_steps=6",
        )
        folder = tmp_path / f"weights-{name}"
        folder.mkdir()
        outcomes = run(rank_scenarios.train, config=config, weights=str(folder))
        ranks = [outcomes] if name == "one" else outcomes
        assert ranks[0]["samples"] == [8, 3] * 3
        for other in ranks[1:]:
            assert (other["losses"], other["norms"]) == (ranks[0]["losses"], ranks[0]["norms"])
            assert other["digest"] == ranks[0]["digest"]
        curves.append((ranks[0]["losses"], ranks[0]["norms"], gathered_pictures(ranks)))
        trained.append(weights_of(folder, "after"))

    losses, norms, pictures = curves[0]
    assert torch.tensor(losses).std() > 1e-3  # a flat curve would prove nothing
    tolerance = 1e-9 if dtype == "float64" else 1e-4
    moved = (trained[0] - weights_of(tmp_path / "weights-one", "before")).norm()
    assert moved > 1e-3
    for (own, own_norms, own_pictures), weights in zip(curves[1:], trained[1:], strict=True):
        assert own == pytest.approx(losses, rel=tolerance)
        assert own_norms == pytest.approx(norms, rel=10 * tolerance)
        assert own_pictures == pictures
        assert (weights - trained[0]).norm() <= moved * (1e-9 if dtype == "float64" else 1e-3)


@pytest.mark.parametrize(
    "sync",
    [{"static_graph": True}, {"bucket_size_mb": 1, "gradient_as_bucket_view": False}],
    ids=["static graph", "small buckets that are copied"],
)
def test_how_gradients_are_exchanged_makes_no_difference(sync, settings, two_ranks):
    # full fine-tune: 2 MB of gradients, so more than one bucket
    common = ("method=full", "optimizer.learning_rate=1e-4", "model.weight_dtype=float64", "max_steps=4")
    alone = run_alone(rank_scenarios.train, config=settings("one", *common))
    config = settings("two", *common, "gradient_accumulation_steps=2")
    first, second = two_ranks.run(rank_scenarios.train, config=config, sync=sync)
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert first["norms"] == pytest.approx(alone["norms"], rel=1e-9)
    assert first["digest"] == second["digest"]


@pytest.mark.parametrize(
    ("family", "method", "text"),
    # no full fine-tune of all encoders of sd3: its T5 has dropout, which differs between ranks
    # zimage: its denoiser takes texts of unequal lengths as lists
    [
        ("sd15", "lora", True),
        pytest.param("sd15", "full", True, marks=pytest.mark.proof),
        pytest.param("sd3", "lora", True, marks=pytest.mark.proof),
        ("sd3", "full", False),
        ("zimage", "lora", False),
    ],
)
def test_families_train_on_ranks_as_on_one(family, method, text, settings, two_ranks, tiny_model):
    common = (
        *(f"family={family}", f"model.base={tiny_model(family)}", "data.bucket_step=16", "model.weight_dtype=float64"),
        *(f"method={method}", f"text_encoder.train={text}", "optimizer.learning_rate=1e-4", "max_steps=5"),
    )
    alone = run_alone(rank_scenarios.train, config=settings("one", *common))
    config = settings("two", *common, "gradient_accumulation_steps=2")
    first, second = two_ranks.run(rank_scenarios.train, config=config)
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert first["norms"] == pytest.approx(alone["norms"], rel=1e-9)
    assert first["digest"] == second["digest"]


@pytest.mark.parametrize(
    "adapter",
    [
        ("lora.adapter=lokr", "lora.rank=1", "lora.targets=linear_conv"),
        (
            "lora.plus_ratio=16",
            "lora.max_norm=0.01",
            "lora.targets=linear_conv",
            "lora.conv_rank=2",
            "lora.train_norms=true",
            "output.format=single_file",
        ),
    ],
    ids=["lokr", "lora+ with a limit"],
)
def test_adapters_train_on_ranks_as_on_one(adapter, settings, two_ranks):
    common = (*adapter, "model.weight_dtype=float64", "optimizer.learning_rate=1e-3", "max_steps=4")
    alone = run_alone(rank_scenarios.train, config=settings("one", *common))
    first, second = two_ranks.run(rank_scenarios.train, config=settings("two", *common))
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-9)
    assert first["norms"] == pytest.approx(alone["norms"], rel=1e-9)
    assert first["norms"][0] > 0
    assert first["digest"] == second["digest"]


@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.proof), "fp16"])
def test_with_mixed_precision_ranks_stay_equal_and_close_to_one(precision, settings, two_ranks):
    common = (f"model.mixed_precision={precision}", "max_steps=8")
    alone = run_alone(rank_scenarios.train, config=settings("one", *common))
    first, second = two_ranks.run(rank_scenarios.train, config=settings("two", *common))
    skipped = [loss is None for loss in first["losses"]]
    assert skipped == [loss is None for loss in alone["losses"]] == [loss is None for loss in second["losses"]]
    assert [x for x in first["losses"] if x] == pytest.approx([x for x in alone["losses"] if x], rel=1e-2)
    assert first["digest"] == second["digest"]


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.proof)])
def test_with_low_precision_gradients_ranks_stay_equal_and_close_to_one(precision, settings, two_ranks):
    exact = run_alone(rank_scenarios.train, config=settings("one", "max_steps=5"))
    sync = {"reduce_precision": precision}
    first, second = two_ranks.run(rank_scenarios.train, config=settings("two", "max_steps=5"), sync=sync)
    assert first["losses"] == pytest.approx(exact["losses"], rel=1e-2)
    assert first["norms"] == pytest.approx(exact["norms"], rel=5e-2)
    assert first["norms"] != pytest.approx(exact["norms"], rel=1e-6)  # otherwise nothing was rounded
    assert first["digest"] == second["digest"]


def test_the_ema_is_the_same_on_one_rank_and_on_several(settings, two_ranks, tmp_path):
    common = ("ema.enabled=true", "max_steps=4", "output.dtype=float32")
    alone = run_alone(rank_scenarios.train, config=settings("one", *common))
    first, second = two_ranks.run(rank_scenarios.train, config=settings("two", *common))
    assert first["ema"] == second["ema"] != first["digest"]
    assert alone["ema"] != alone["digest"]
    own, expected = (load_tensors(tmp_path / name / "models" / "model.safetensors") for name in ("two", "one"))
    for name, value in expected.items():
        torch.testing.assert_close(own[name], value, rtol=1e-3, atol=1e-6)


# --- resuming from a backup -------------------------------------------------------------------------------------------


def test_a_backup_of_two_ranks_resumes_on_one_two_and_four(settings, two_ranks, four_ranks, tmp_path):
    common = ("ema.enabled=true", "optimizer.name=adamw", "schedule.name=cosine", "max_steps=8")
    # goes on after its backup, as test_resume.py knows that one without backups does; step 5 is within the third epoch
    backed_up = settings("straight", *common, "backup.every=5", "backup.unit=steps")
    straight = two_ranks.run(rank_scenarios.train, config=backed_up)
    assert [path.name for path in (tmp_path / "straight" / "backup").iterdir()] == ["step-000000005"]
    resumed = {}
    for name, run in {"on-1": run_alone, "on-2": two_ranks.run, "on-4": four_ranks.run}.items():
        shutil.copytree(tmp_path / "straight", tmp_path / name)
        resumed[name] = run(rank_scenarios.train, config=settings(name, *common), resume=True)
    resumed["on-1"] = [resumed["on-1"]]

    for ranks in resumed.values():
        assert ranks[0]["steps"] == list(range(6, 9))
        assert ranks[0]["losses"] == pytest.approx(straight[0]["losses"][5:], rel=1e-4)
        assert gathered_pictures(ranks) == gathered_pictures(straight)[5:]
    for rank in resumed["on-2"]:
        assert rank["losses"] == straight[0]["losses"][5:]
        assert (rank["digest"], rank["ema"]) == (straight[0]["digest"], straight[0]["ema"])


@pytest.mark.parametrize(
    "common",
    [
        pytest.param(("method=full", "optimizer.learning_rate=1e-4"), marks=pytest.mark.proof),
        ("lora.dropout=0.1", "text_encoder.train=true", "gradient_accumulation_steps=2"),
    ],
    ids=["full", "lora with dropout"],
)
def test_four_ranks_resume_bit_for_bit(common, settings, four_ranks):
    straight = four_ranks.run(rank_scenarios.train, config=settings("straight", *common, "max_steps=6"))
    half = ("backup.at_end=true", "max_steps=3")
    four_ranks.run(rank_scenarios.train, config=settings("cut", *common, *half))
    resumed = four_ranks.run(rank_scenarios.train, config=settings("cut", *common, "max_steps=6"), resume=True)
    for rank in resumed:
        assert rank["losses"] == straight[0]["losses"][3:]
        assert rank["digest"] == straight[0]["digest"]


def test_the_batch_size_per_device_is_recomputed_for_another_number_of_ranks(settings, two_ranks, tmp_path):
    common = ("batch_size_mode=per_device", "batch_size=4", "lr_scaling=sqrt", "backup.at_end=true")
    first, _ = two_ranks.run(rank_scenarios.train, config=settings("run", *common, "max_steps=3"))
    resumed = run_alone(rank_scenarios.train, config=settings("run", *common, "max_steps=6"), resume=True)
    assert (first["samples"], resumed["samples"]) == ([8, 3, 8], [3, 8, 3])
    assert (first["accumulation"], resumed["accumulation"]) == (1, 2)
    assert first["largest_batch"] <= 4
    assert resumed["largest_batch"] <= 4
    # the learning rate of one rank is 1e-3
    assert resumed["rates"] == first["rates"] == [pytest.approx(1e-3 * 2**0.5)]
    assert not any("Scaling" in text for text in resumed["statuses"])


@pytest.mark.parametrize(
    ("batch", "num_ranks", "fitting"), [(8, 3, "1, 2, 4 or 8"), (6, 4, "1, 2, 3 or 6"), (3, 2, "1 or 3"), (1, 2, "1")]
)
def test_a_number_of_ranks_that_does_not_divide_the_batch_of_a_backup_is_refused(
    batch, num_ranks, fitting, trainer_of_ranks
):
    overrides = (f"batch_size={batch}", "batch_size_mode=global")
    trainer = trainer_of_ranks(1, *overrides, "max_steps=1")
    trainer.start()
    trainer.train()
    trainer.end()
    with pytest.raises(TrainingError) as caught:
        trainer_of_ranks(num_ranks, *overrides, resume=True).start()
    assert str(caught.value) == (
        f"The global batch of the backup is {batch}, which is not divisible by {num_ranks} GPUs: resume on {fitting}."
    )


# --- the learning rate ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "rate"), [("sqrt", 2e-4), ("linear", 4e-4), ("none", 1e-4)])
def test_the_learning_rate_is_scaled_with_the_number_of_ranks(rule, rate, trainer_of_ranks):
    parts = ("text_encoder.train=true", "text_encoder.learning_rate=1e-5")
    trainer = trainer_of_ranks(4, f"lr_scaling={rule}", "optimizer.learning_rate=1e-4", *parts)
    trainer.start()
    groups = trainer.loop.optimizer.torch.param_groups
    assert [group["initial_lr"] for group in groups] == pytest.approx([rate, rate / 10])
    told = [text for text in trainer.callbacks.statuses if "Scaling" in text]
    words = {"sqrt": ["sqrt(4): 1e-4 -> 2e-4"], "linear": ["4: 1e-4 -> 4e-4"], "none": []}[rule]
    assert told == [f"Scaling learning rate by {text}" for text in words]


def test_the_learning_rate_of_prodigy_and_of_a_global_batch_is_not_scaled(trainer_of_ranks):
    for overrides in (("optimizer.name=prodigy",), ("batch_size_mode=global", "batch_size=4")):
        trainer = trainer_of_ranks(4, *overrides, "optimizer.learning_rate=1e-4")
        trainer.start()
        assert [group["initial_lr"] for group in trainer.loop.optimizer.torch.param_groups] == [1e-4]
        assert not any("Scaling" in text for text in trainer.callbacks.statuses)
        shutil.rmtree(trainer.run_folder.path)


def test_real_ranks_use_the_scaled_learning_rate(settings, two_ranks):
    config = settings("run", "batch_size_mode=per_device", "batch_size=2", "lr_scaling=linear", "max_steps=1")
    for rank in two_ranks.run(rank_scenarios.start, config=config):
        assert rank["rates"] == [2e-3]


# --- ranks that fail or differ ----------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_on_one_rank_is_skipped_by_all(settings, two_ranks):
    alone = run_alone(rank_scenarios.train, config=settings("one", "max_steps=6"), fault="nan@0:3")
    first, second = two_ranks.run(rank_scenarios.train, config=settings("two", "max_steps=6"), fault="nan@1:3")
    assert [step for step, loss in enumerate(alone["losses"], 1) if loss is None] == [3]
    for rank in (first, second):
        assert [step for step, loss in enumerate(rank["losses"], 1) if loss is None] == [3]
        assert rank["losses"][3:] == pytest.approx(alone["losses"][3:], rel=1e-4)
        assert rank["finite"]
    assert first["digest"] == second["digest"]
    assert [text for text in first["warnings"] if "Step 3 was skipped" in text]


def test_a_rank_with_another_base_model_is_named_before_the_first_step(settings, two_ranks):
    errors = two_ranks.run(rank_scenarios.train_on_another_base, config=settings("run"))
    refusal = "The weights of rank 1 differ from those of rank 0 (step 0): check model.base on its machine."
    assert errors == [f"TrainingError: {refusal}"] * 2


def test_a_rank_whose_weights_drift_is_named_within_the_interval(settings, two_ranks):
    config = settings("run", "check_ranks_every=2", "max_steps=12")
    for rank in two_ranks.run(rank_scenarios.train_with_fault, config=config, fault="perturb@1:3"):
        assert rank["error"].startswith("TrainingError: The trained weights of rank 1 differ")
        assert rank["step"] == 4


# --- stops ------------------------------------------------------------------------------------------------------------


def test_a_stop_during_sampling_ends_it_and_the_run_on_all_ranks(settings, two_ranks):
    config = settings("run", *SAMPLE, "sampling.samples.0.count=6", "sampling.at_start=true", "max_steps=1")
    first, second = two_ranks.run(rank_scenarios.stop_while_sampling, config=config)
    assert first["samples_made"] == ["000_a photo of a cat_seed42.png"]
    assert second["samples_made"] == ["001_a photo of a cat_seed43.png"]
    assert (first["stopped"], second["stopped"]) == (True, True)
    assert (first["step"], second["step"], first["backups"]) == (0, 0, [0])
    first, second = two_ranks.run(rank_scenarios.train, config=config, resume=True)
    assert [name[:3] for name in first["samples_made"]] == ["002", "004"]
    assert [name[:3] for name in second["samples_made"]] == ["003", "005"]


def test_a_stop_on_any_rank_ends_the_wait_for_disk_space(settings, two_ranks, tmp_path):
    spare = (f"output.fallback_dir={tmp_path / 'spare'}", "output.wait_minutes=60")
    config = settings("run", "max_steps=1", *spare)
    first, second = two_ranks.run(rank_scenarios.stop_while_waiting_for_room, config=config)
    assert first["saved"] == ["model.safetensors"]
    assert any("The model is in" in text for text in first["warnings"])
    assert (first["stopped"], second["warnings"]) == (False, [])


@pytest.mark.parametrize("stopper", [0, 1])
def test_a_stop_during_caching_ends_all_ranks(stopper, settings, two_ranks, tmp_path):
    config = settings("run", f"cache_dir={tmp_path / 'cold'}")
    ends = two_ranks.run(rank_scenarios.stop_while_caching, config=config, stopper=stopper)
    assert ends == ["StopRequested: "] * 2


@pytest.mark.parametrize(("stopper", "requeues"), [(0, False), (1, False), (1, True)])
def test_a_stop_while_another_rank_loads_the_model_ends_all_ranks(stopper, requeues, settings, two_ranks):
    scenario = {"config": settings("run"), "stopper": stopper, "requeues": requeues}
    ends = two_ranks.run(rank_scenarios.stop_while_loading, **scenario)
    assert [tuple(end) for end in ends] == [("StopRequested: ", requeues)] * 2


# --- work split over ranks --------------------------------------------------------------------------------------------


def test_samples_are_split_over_ranks_and_numbered_consecutively(settings, two_ranks, tmp_path):
    common = (*SAMPLE, "sampling.samples.0.count=5", "sampling.at_end=true", "max_steps=1")
    alone = run_alone(rank_scenarios.train, config=settings("one", *common))
    first, second = two_ranks.run(rank_scenarios.train, config=settings("two", *common))
    assert len(alone["samples_made"]) == 5
    assert first["samples_made"] == alone["samples_made"][0::2]
    assert second["samples_made"] == alone["samples_made"][1::2]
    folder = tmp_path / "two" / "samples" / "step-000000001"
    assert sorted(path.name for path in folder.iterdir()) == alone["samples_made"]


def test_only_rank_0_writes_backup_model_and_settings(settings, two_ranks, tmp_path):
    config = settings("run", "backup.at_end=true", "max_steps=1", "ema.enabled=true")
    first, second = two_ranks.run(rank_scenarios.train, config=config, own_workspace=True)
    assert (first["backups"], first["saved"]) == ([1], ["model.safetensors"])
    assert (second["backups"], second["saved"]) == ([], [])
    assert (tmp_path / "run" / "config.yaml").exists()
    assert not (tmp_path / "run-rank-1").exists()


def test_warnings_about_the_run_appear_once(settings, two_ranks):
    config = settings("run", "batch_size=16", "max_steps=2")
    first, second = two_ranks.run(rank_scenarios.train, config=config, fault="nan@1:2")
    assert [text.split(":")[0] for text in first["warnings"]] == ["11 samples < 16 per step", "Step 2 was skipped"]
    assert second["warnings"] == []


def test_if_only_some_ranks_resume_they_are_refused_in_the_first_exchange(make_config):
    config = make_config()

    def start(runtime: Runtime) -> None:
        GenericTrainer(config, Recorder(), TrainCommands(), runtime, resume=runtime.rank == 0).start()

    ranks = ThreadRanks(2)
    with pytest.raises(TrainingError, match=r"The options of rank 1 differ .* check --resume in the command"):
        ranks.run(start)
    assert [len(runtime.meetings) for runtime in ranks.runtimes] == [1, 1]


# --- settings files of several machines -------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["optimizer.learning_rate=0.5", "tensorboard=true", "concepts.0.repeats=2"])
def test_settings_that_affect_training_are_compared(change, make_config):
    assert settings_digest(make_config(change)) != settings_digest(make_config())


def test_paths_may_differ_between_machines(make_config, tmp_path):
    elsewhere = make_config(f"workspace_dir={tmp_path}/b", f"model.base={tmp_path}", f"concepts.0.path={tmp_path}")
    assert settings_digest(elsewhere) == settings_digest(make_config("node_rank=1", "num_nodes=1"))
