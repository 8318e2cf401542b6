"""Runs with swapped blocks and offloaded activations: they train, sample and resume exactly as without."""

from __future__ import annotations

import hashlib

import pytest
import torch

from modules.config.errors import ConfigError
from modules.config.files import config_from_values, save_config
from modules.config.presets import load_preset, merge_values
from modules.layers import ActivationOffload
from modules.machine.memory_estimate import GIB
from modules.machine.system_memory import RANKS_SHARE_SWAPPED
from modules.trainer import attach_method
from modules.weights.safe import load_tensors
from tests.support import rank_scenarios

OPTIONS = (
    "model.gradient_checkpointing=true",
    "model.weight_dtype=bfloat16",
    "model.mixed_precision=bf16",
    "lora.targets=linear",
    "ema.enabled=true",
    "data.validation_share=0.2",
    "validation.unit=steps",
    "validation.every=2",
    "sampling.at_end=true",
    "sampling.samples.0.width=32",
    "sampling.samples.0.height=32",
    "sampling.samples.0.steps=1",
)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("sd15", ()),
        ("flux1", ("model.denoiser_quantization=int8", "data.bucket_step=16")),
        ("flux1", ("model.denoiser_quantization=nf4", "data.bucket_step=16")),
    ],
)
def test_a_run_with_swapped_blocks_and_offloaded_activations_gives_the_results_of_one_without(
    family, more, make_config, train, tiny_model, tmp_path, monkeypatch
):
    monkeypatch.setattr(ActivationOffload, "LEAST_BYTES", 1)
    if "model.denoiser_quantization=nf4" in more:
        pytest.importorskip("bitsandbytes", reason="an optional package")

    def run(count, steps, name, resume=False):
        settings = (f"family={family}", f"model.base={tiny_model(family)}", f"model.blocks_to_swap={count}", *more)
        settings += ("model.activation_offloading=true",) if count else ()
        folder = f"workspace_dir={tmp_path / name}"
        trainer = train(make_config(*settings, *OPTIONS, folder, f"max_steps={steps}"), resume)
        pictures = [hashlib.sha256(path.read_bytes()).hexdigest() for path in trainer.callbacks.samples]
        (file,) = trainer.callbacks.saved
        return trainer, pictures, load_tensors(file)

    # Exact: weights that are converted when they are loaded lie aligned, as in the memory that blocks are swapped into.
    plain, pictures, tensors = run(0, 4, "plain")
    run(2, 2, "swapped")
    swapped, other_pictures, other_tensors = run(1000, 4, "swapped", resume=True)
    assert swapped.callbacks.losses == plain.callbacks.losses[2:]
    assert other_pictures == pictures
    assert all(torch.equal(value, other_tensors[name]) for name, value in tensors.items())
    assert all(swap.on_device for swap in swapped.prepared.base.swaps.values())
    assert any("blocks of the" in text for text in swapped.callbacks.statuses)


def test_an_automatic_number_swaps_nothing_on_the_cpu(make_config, start):
    trainer = start(make_config("model.gradient_checkpointing=true", "model.blocks_to_swap="))
    assert trainer.prepared.base.swaps == {}


def test_swapping_without_checkpointing_is_refused(make_config, start):
    with pytest.raises(ConfigError, match=r"model\.gradient_checkpointing"):
        start(make_config("model.blocks_to_swap=2"))


def test_full_training_with_offloaded_activations_gives_the_losses_of_a_run_without(
    make_config, train, tmp_path, monkeypatch
):
    monkeypatch.setattr(ActivationOffload, "LEAST_BYTES", 1)
    settings = ("method=full", *OPTIONS[:3], "gradient_accumulation_steps=2", "max_steps=3", "data.bucket_step=16")

    def losses(offloads):
        folder = f"workspace_dir={tmp_path / offloads}"
        return train(make_config(*settings, folder, f"model.activation_offloading={offloads}")).callbacks.losses

    assert losses("true") == losses("false")


def test_an_open_number_of_blocks_follows_the_memory_of_gpu_and_machine(monkeypatch):
    model = {"denoiser_quantization": "none", "gradient_checkpointing": True, "blocks_to_swap": None}
    config = config_from_values(merge_values(load_preset("flux1-lora"), {"batch_size": 1, "model": model}))
    monkeypatch.setattr(attach_method, "free_bytes", lambda device: 12 * GIB)
    chosen, reports = {}, []
    for ram, ranks_here in ((64, 1), (12, 1), (12, 2)):
        monkeypatch.setattr(attach_method, "ram_bytes", lambda ram=ram: ram * GIB)
        reports.clear()
        device = torch.device("cuda")
        chosen[ram, ranks_here] = attach_method.num_swapped_blocks(
            config, device, ranks_here, ranks_here, reports.append
        )
        assert len(reports) == (1 if ram == 64 else 2)
    assert 57 > chosen[64, 1] > chosen[12, 1] > chosen[12, 2] > 0
    assert reports[1] == f"The 12.0 GiB of system memory have room for no more than {chosen[12, 2]} swapped blocks"


@pytest.mark.skipif(not RANKS_SHARE_SWAPPED, reason="ranks share memory on Linux alone")
@pytest.mark.parametrize("apart", [False, True], ids=["shared", "no rank sees files of another"])
def test_ranks_on_a_machine_share_the_memory_that_blocks_are_swapped_from(apart, make_config, two_ranks, tmp_path):
    def written(name, *more):
        config = make_config(*OPTIONS[:3], "max_steps=2", f"workspace_dir={tmp_path / name}", *more)
        save_config(config, path := tmp_path / f"{name}.yaml")
        return str(path)

    plain = two_ranks.run(rank_scenarios.train, config=written("plain"))
    swapped = two_ranks.run(
        rank_scenarios.train_swapped, config=written("swapped", "model.blocks_to_swap=1000"), apart=apart
    )
    assert [rank["losses"] for rank in swapped] == [rank["losses"] for rank in plain]
    assert swapped[0]["base"] == swapped[1]["base"]
    first, second = (rank["mapped"] for rank in swapped)
    said = [any("that the ranks on this machine share" in text for text in rank["statuses"]) for rank in swapped]
    if apart:
        assert [] in (first, second)
        assert not all(said)
    else:
        assert first == second != []
        assert all(said)
