"""Runs with compiled blocks, from start to end."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from modules.config.files import save_config
from modules.trainer.compile_cache import VARIABLE
from modules.weights.safe import load_tensors
from tests.support import sharding_scenarios
from tests.support.fitted_kernels import fitted
from tests.support.rank_scenarios import train as train_on_ranks
from tests.support.StartedRun import StartedRun


@pytest.fixture
def compiler():
    """Forgets, when called, what is compiled, as a new process has."""
    with torch.compiler.set_stance(force_backend=fitted):
        torch._dynamo.reset()
        yield torch._dynamo.reset
    torch._dynamo.reset()


def test_a_resumed_run_with_compiled_blocks_ends_bit_for_bit_as_one_without_a_break(
    compiler, make_config, train, tiny_model
):
    """Though it resumes with another size than the first, and kernels depend on the size that they are made for."""
    base = ("family=flux1", f"model.base={tiny_model('flux1')}", "data.bucket_step=16", "batch_size=6")
    settings = ("model.compile=blocks", "model.compile_sizes=all", "backup.every=1", "backup.unit=steps")
    config = make_config(*base, *settings, "max_steps=2")
    whole = train(config)
    expected = load_tensors(whole.run_folder.models_dir / "model.safetensors")
    assert [info.samples for info in whole.callbacks.steps] == [6, 5]
    newest, *_ = whole.backups.paths()
    shutil.rmtree(newest)
    compiler()
    resumed = train(config, resume=True)
    assert resumed.callbacks.losses == whole.callbacks.losses[1:]
    own = load_tensors(resumed.run_folder.models_dir / "model.safetensors")
    assert all(torch.equal(own[name], expected[name]) for name in expected)


@pytest.mark.proof
@pytest.mark.parametrize("more", [(), ("model.denoiser_quantization=int8",)], ids=["plain", "int8"])
def test_a_run_that_is_killed_and_resumed_by_a_new_process_with_cached_kernels_ends_bit_for_bit_as_another(
    more, make_config, tiny_model, tmp_path
):
    """With torch's own compiler."""
    options = ("family=flux1", f"model.base={tiny_model('flux1')}", "data.bucket_step=16", "batch_size=6", *more)
    options += ("model.compile=blocks", "model.compile_sizes=all", "model.mixed_precision=bf16", "max_steps=4")
    options += ("model.gradient_checkpointing=true", "backup.every=1", "backup.unit=steps")
    cache = tmp_path / "compiled"

    def run(name: str, *arguments: str, fault: str = "") -> tuple[list[int], dict[int, float]]:
        folder, file = tmp_path / name, tmp_path / f"{name}.yaml"
        save_config(make_config(*options, f"workspace_dir={folder}"), file)
        variables = {VARIABLE: str(cache), **({"CHORUS_FAULT": fault} if fault else {})}
        with StartedRun("alone", file, folder, *arguments, variables=variables) as started:
            return started.wait(1500), started.losses()

    def kernels() -> set[Path]:
        return {path for path in cache.rglob("*") if path.suffix in (".cpp", ".so")}

    codes, expected = run("straight")
    assert codes == [0]
    made = kernels()
    assert made
    codes, losses = run("killed", fault="kill@0:3")
    assert codes != [0]
    assert len(losses) < 4
    codes, losses = run("killed", "--resume")
    assert codes == [0]
    assert kernels() == made
    assert losses == expected
    own, others = (load_tensors(tmp_path / name / "models" / "model.safetensors") for name in ("killed", "straight"))
    assert own.keys() == others.keys() != set()
    assert all(torch.equal(own[name], others[name]) for name in others)


COMPILED = ("model.compile=blocks", "model.gradient_checkpointing=true")


def test_blocks_that_are_swapped_and_compiled_give_the_results_of_those_that_stay(
    make_config, train, tiny_model, tmp_path
):
    """On a model of which diffusers names no blocks for the compiler."""
    base = ("family=sana", f"model.base={tiny_model('sana')}", "data.resolution=64", "data.bucketing=false")
    base += ("model.denoiser_quantization=int8", "batch_size=11", "max_steps=2")

    def run(count: int):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        folder = f"workspace_dir={tmp_path / str(count)}"
        with torch.compiler.set_stance(force_backend="aot_eager"):
            trainer = train(make_config(*base, *COMPILED, f"model.blocks_to_swap={count}", folder))
        torch._dynamo.reset()
        return trainer, torch._dynamo.utils.counters["stats"]["unique_graphs"]

    (plain, num_plain), (swapped, num_graphs) = run(0), run(1000)
    assert all(swap.on_device for swap in swapped.prepared.base.swaps.values())
    assert num_graphs == num_plain > 0
    assert swapped.callbacks.losses == plain.callbacks.losses
    for name, weight in plain.loop.trainable.items():
        assert torch.equal(swapped.loop.trainable[name], weight), name


FSDP, HSDP = {"strategy": "fsdp"}, {"strategy": "hsdp", "sharing_ranks": 2}


@pytest.mark.parametrize(
    ("all_sizes", "num_graphs", "sync"),
    [(False, 6, FSDP), (True, 3, FSDP), (False, 6, {**HSDP, "sharing_ranks": 1})],
    ids=["each size", "all sizes", "hsdp"],
)
def test_compiled_blocks_that_ranks_share_give_the_curve_of_plain_ones(all_sizes, num_graphs, sync, two_ranks):
    """Each in a graph of its own, with nothing in it that waits for ranks."""
    expected, _ = two_ranks.run(sharding_scenarios.train_blocks)
    for rank in two_ranks.run(sharding_scenarios.train_blocks, all_sizes=all_sizes, sync=sync):
        assert rank["losses"] == pytest.approx(expected["losses"], rel=1e-9)
        assert rank["norms"] == pytest.approx(expected["norms"], rel=1e-9)
        assert rank["graphs"] == num_graphs
        assert rank["breaks"] == 0


@pytest.mark.proof
@pytest.mark.parametrize(
    ("backend", "pool", "sync"),
    [("aot_eager", "two", FSDP), ("inductor", "two", FSDP), ("aot_eager", "four", HSDP)],
    ids=["aot_eager", "inductor", "hsdp"],
)
def test_compiled_blocks_of_ranks_that_share_a_model_give_its_curve_also_resumed(
    backend, pool, sync, settings, two_ranks, four_ranks, tmp_path
):
    ranks = {"two": two_ranks, "four": four_ranks}[pool]
    options = ("optimizer.learning_rate=1e-3", "model.weight_dtype=float64", "max_steps=2")
    options += ("data.bucketing=false", "batch_size=4", "gradient_accumulation_steps=1")  # a single shape
    expected, *_ = ranks.run(train_on_ranks, config=settings("plain", *options, family="flux1"), sync=sync)
    options = (*options, *COMPILED, "model.compile_sizes=each", "backup.every=1", "backup.unit=steps")
    config = settings("compiled", *options, family="flux1")
    run = partial(ranks.run, sharding_scenarios.train_compiled, 900, config=config, sync=sync, backend=backend)
    first, *others = run()
    assert first["losses"] == pytest.approx(expected["losses"], rel=1e-9)
    assert all(other["digest"] == first["digest"] for other in others)
    assert first["graphs"] > 0
    shutil.rmtree(tmp_path / "compiled" / "backup" / "step-000000002")
    resumed, *_ = run(resume=True)
    assert resumed["losses"] == first["losses"][1:]
    assert resumed["digest"] == first["digest"]
