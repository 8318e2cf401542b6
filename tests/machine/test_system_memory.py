"""System memory that ranks on GPUs keep weights, state and activations in: estimated, and looked at before a start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modules.config.files import config_from_values
from modules.config.presets import load_preset, merge_values
from modules.config.TrainConfig import TrainConfig
from modules.machine import system_memory
from modules.machine.architectures import load_architectures
from modules.machine.can_start import StartFacts, device_problems
from modules.machine.devices import Gpu
from modules.machine.Machine import Machine
from modules.machine.machine_memory import pinnable_bytes
from modules.machine.memory_estimate import GIB, blocks_to_swap, needed_bytes
from modules.machine.memory_remedy import memory_remedy
from modules.machine.system_memory import (
    kept_bytes,
    kept_in_ram,
    most_swapped,
    needed_in_ram,
    passing_in_ram,
    room_in_ram,
)
from tests.support.remedies import with_remedy

FLUX1 = load_architectures()["flux1"]
SWAPPED = {"blocks_to_swap": FLUX1.blocks.count, "gradient_checkpointing": True, "weight_dtype": "bfloat16"}


def config_of(preset: str = "flux1-lora", **over) -> TrainConfig:
    values = merge_values(load_preset(preset), {"batch_size": 1, "model": {"denoiser_quantization": "none"}})
    return config_from_values(merge_values(values, over))


def machine_of(ram: float, num_gpus: int = 1, system: str = "linux", is_wsl: bool = False, gpu: float = 24) -> Machine:
    gpus = tuple(Gpu(number, "GPU", f"GPU-{number}", round(gpu * GIB), number) for number in range(num_gpus))
    pinnable = pinnable_bytes(round(ram * GIB), system, is_wsl)
    return Machine(gpus, cores=16, system=system, ram_bytes=round(ram * GIB), pinnable_bytes=pinnable)


def found_by(config: TrainConfig, machine: Machine, **facts):
    problems = device_problems(config, StartFacts(machine, **facts))
    return [problem for problem in problems if "system memory" in problem.message]


def test_what_is_kept_is_the_weights_the_state_and_the_inputs_of_blocks():
    every = kept_in_ram(config_of(model=SWAPPED))
    assert every == {"model.blocks_to_swap": pytest.approx(2 * FLUX1.blocks.weights)}
    half = kept_in_ram(config_of(model={**SWAPPED, "blocks_to_swap": 19, "denoiser_quantization": "int8"}))
    assert half["model.blocks_to_swap"] == pytest.approx(FLUX1.blocks.weights / 3, rel=0.03)
    assert kept_bytes(config_of(model={"blocks_to_swap": 0})) == 0
    offloading = {"gradient_checkpointing": True, "activation_offloading": True, "blocks_to_swap": 0}
    one, two = (kept_bytes(config_of(model=offloading, batch_size=size)) for size in (1, 2))
    assert two == 2 * one > GIB
    full = config_of("sd15-full", optimizer={"name": "adamw", "state_in_ram": True}, model={"weight_dtype": "float32"})
    assert kept_bytes(full) == pytest.approx(8 * load_architectures()["sd15"].denoiser, rel=0.3)
    divided = replace(full, ddp_shard_optimizer=True)
    assert kept_bytes(divided, num_ranks=4) == kept_bytes(full, num_ranks=4) / 4


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_loading_takes_a_layer_and_of_a_single_file_what_stays_there(quantization):
    model = {"text_encoder_quantization": quantization, "weight_dtype": "bfloat16"}
    folder, file = (
        passing_in_ram(config_of("sd3-lora", model={**model, "base": base}))["model.base"]
        for base in ("folder", "folder/sd3.safetensors")
    )
    whole = 2 * sum(load_architectures()["sd3"].text_encoders)
    assert 0 < folder < 0.3 * whole
    assert file - folder == pytest.approx(whole if quantization == "none" else whole / 2, rel=0.1)


def test_ranks_that_share_a_model_each_load_all_of_one_that_gets_dora():
    values = {"enable_multi_gpu": True, "world_size": 4, "distributed_strategy": "fsdp"}
    plain, dora = (passing_in_ram(config_of(**values, lora={"dora": dora}), 4)["model.base"] for dora in (False, True))
    assert plain < 2 * GIB < 2 * FLUX1.denoiser == dora


def test_a_backup_is_written_from_a_copy_of_the_weights_their_state_and_their_average():
    config = config_of("sd15-full", model={"weight_dtype": "float32"}, ema={"enabled": True})
    weights = 4 * load_architectures()["sd15"].denoiser
    at_intervals = passing_in_ram(config)["backup.every"]
    assert at_intervals == pytest.approx(4 * weights, rel=0.01)
    in_ram = replace(config, optimizer=replace(config.optimizer, state_in_ram=True))
    assert passing_in_ram(in_ram)["backup.every"] == at_intervals
    at_the_end = replace(config, backup=replace(config.backup, unit="never"))
    assert passing_in_ram(at_the_end)["backup.every"] == pytest.approx(2 * weights, rel=0.01)
    assert "backup.every" not in passing_in_ram(replace(config, backup=replace(at_the_end.backup, at_end=False)))
    # which is the first rank's, but for what the ranks have divided among them
    others = [
        passing_in_ram(replace(config, enable_multi_gpu=True, **values), 4, is_first=False).get("backup.every", 0)
        for values in ({}, {"ddp_shard_optimizer": True}, {"distributed_strategy": "fsdp"})
    ]
    assert others == [0, pytest.approx(2 * weights / 4, rel=0.01), pytest.approx(at_intervals / 4, rel=0.01)]


@pytest.mark.parametrize(
    ("preset", "values", "ram", "num_gpus", "path", "expected"),
    [
        (
            "sd15-full",
            {"model": {"weight_dtype": "float32"}},
            12,
            1,
            "backup.every",
            "The first rank backs up what trains from a copy of about 12.8 GiB in system memory, and this machine has "
            "12.0: choose an optimizer with a smaller state, or a smaller precision.",
        ),
        (
            "sd3-lora",
            {"model": {"base": "sd3.safetensors"}},
            64,
            8,
            "model.base",
            "Each of the 8 ranks on this machine takes about 11.6 GiB of system memory to load the model, and this "
            "machine has 64.0: convert it to a diffusers folder, of which no part stays there.",
        ),
    ],
)
def test_what_is_taken_for_a_time_and_does_not_fit_is_a_problem(preset, values, ram, num_gpus, path, expected):
    config = config_of(preset, enable_multi_gpu=num_gpus > 1, **values)
    (problem,) = found_by(config, machine_of(ram, num_gpus))
    assert (problem.path, problem.message, problem.blocking) == (path, expected, False)
    needed = needed_in_ram(config, num_gpus, num_gpus) / GIB
    assert ram < needed + 2
    assert found_by(config, machine_of(needed + 2.01, num_gpus)) == []


def test_what_stays_there_is_no_remedy_where_a_backup_alone_takes_more():
    model, optimizer = {"weight_dtype": "float32"}, {"name": "adamw", "state_in_ram": True}
    (problem,) = found_by(config_of("sd15-full", model=model, optimizer=optimizer), machine_of(12))
    assert problem.path == "backup.every"
    assert problem.message.endswith(": choose an optimizer with a smaller state, or a smaller precision.")
    assert problem.remedy is None


def test_a_small_base_keeps_little_in_system_memory():
    config = config_of(model=SWAPPED)
    assert kept_bytes(config, base_bytes=10**6) < 10**7
    assert found_by(config, machine_of(16), base_bytes=10**6) == []


@pytest.mark.parametrize(
    ("ram", "num_gpus", "shares", "expected"),
    [
        (64, 1, True, ""),
        (
            16,
            1,
            True,
            "The run keeps about 22.0 GiB in system memory (model.blocks_to_swap), and this machine has 16.0",
        ),
        (24, 2, True, "The 2 ranks on this machine keep about 22.0 GiB in system memory (model.blocks_to_swap), and "),
        (30, 2, True, ""),
        (44, 2, False, "The 2 ranks on this machine keep about 44.1 GiB in system memory (model.blocks_to_swap), and "),
        (60, 2, False, ""),
    ],
)
def test_swapped_weights_of_all_ranks_that_the_machine_does_not_hold_are_a_problem(
    ram, num_gpus, shares, expected, monkeypatch
):
    monkeypatch.setattr(system_memory, "RANKS_SHARE_SWAPPED", shares)
    config = config_of(model=SWAPPED, enable_multi_gpu=num_gpus > 1)
    machine = machine_of(ram, num_gpus)
    problems = found_by(config, machine)
    assert [problem.path for problem in problems] == (["model.blocks_to_swap"] if expected else [])
    for problem in problems:
        assert problem.message.startswith(expected)
        assert not problem.blocking
        assert found_by(with_remedy(config, problem.remedy), machine) == []
        (count,) = problem.remedy.values.values()
        room = room_in_ram(config, machine.ram_bytes, num_gpus, num_gpus)
        assert 0 < count == most_swapped(config, num_gpus, num_gpus, room)


@pytest.mark.parametrize(
    ("system", "is_wsl", "ram", "expected"),
    [
        ("linux", False, 32, ""),
        ("win32", False, 64, ""),
        ("win32", False, 32, "Windows lets programs pin only about 16.0 of its 32.0 GiB"),
        ("linux", True, 64, "WSL lets programs pin only about 1.0 of its 64.0 GiB"),
    ],
)
def test_what_fits_and_can_not_all_be_pinned_is_a_warning(system, is_wsl, ram, expected):
    problems = found_by(config_of(model=SWAPPED), machine_of(ram, 1, system, is_wsl))
    assert len(problems) == bool(expected)
    for problem in problems:
        assert expected in problem.message
        assert not problem.blocking


def test_an_open_number_of_swapped_blocks_is_limited_by_system_memory():
    config = config_of(model={**SWAPPED, "blocks_to_swap": None})
    free, room = 6 * GIB, room_in_ram(config, 16 * GIB)
    limited = blocks_to_swap(config, free, 1, room=room)
    assert 0 < limited < blocks_to_swap(config, free, 1)
    swapping = replace(config, model=replace(config.model, blocks_to_swap=limited))
    one_more = replace(config, model=replace(config.model, blocks_to_swap=limited + 1))
    assert kept_bytes(swapping) <= room < kept_bytes(one_more)
    # which is too little for this GPU, and said before the start
    problems = device_problems(config, StartFacts(machine_of(16, gpu=12)))
    assert any("GiB on each GPU" in problem.message for problem in problems)
    assert not device_problems(config, StartFacts(machine_of(64, gpu=12)))


def test_a_remedy_for_the_gpu_keeps_no_more_in_system_memory_than_there_is_room_for():
    config = config_of(model={"weight_dtype": "bfloat16", "gradient_checkpointing": True, "blocks_to_swap": 0})
    by_swapping = memory_remedy(config, 1, 12 * GIB)
    assert "model.blocks_to_swap" in by_swapping.values
    for ram in (4, 9, 14):
        room = room_in_ram(config, ram * GIB)
        remedy = memory_remedy(config, 1, 12 * GIB, None, room)
        mended = with_remedy(config, remedy)
        assert kept_bytes(mended) <= room
        assert needed_bytes(mended, 1) <= 12 * GIB
        assert remedy.values != by_swapping.values
