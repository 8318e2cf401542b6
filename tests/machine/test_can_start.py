"""Problems and warnings before a start, as a table of settings and machines."""

import re
import sys
from dataclasses import replace

import pytest

from modules.config.problems import Problem, Remedy
from modules.config.TrainConfig import TrainConfig
from modules.machine.can_start import StartFacts, blocking, can_start, device_problems
from modules.machine.devices import UNKNOWN_USAGE, GpuProcess, GpuUsage, link_matrix, list_gpus
from modules.machine.Machine import Machine
from tests.machine.test_run_shape import messages, multi_gpu
from tests.support.fake_nvml import GIB, eight_gpus
from tests.support.remedies import with_remedy


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", eight_gpus())
    return list_gpus({})


def problems_of(config: TrainConfig, gpus, cores=2, links=(), memory_bytes=None, **known) -> list[Problem]:
    machine = Machine(tuple(gpus), cores, links, memory_bytes=memory_bytes)
    return device_problems(config, StartFacts(machine, **known))


def test_a_gpu_that_does_not_exist_blocks(gpus):
    problems = problems_of(multi_gpu(device_indexes=[0, 9]), gpus)
    assert problems[0].blocking
    assert problems[0].path == "device_indexes"
    assert "0 to 7" in problems[0].message


def test_nccl_without_gpus_is_a_warning():
    config = multi_gpu(distributed_backend="nccl")
    [problem] = problems_of(config, [])
    assert not problem.blocking
    assert problem.path == "distributed_backend"
    assert "so the ranks use gloo" in problem.message


@pytest.mark.parametrize(
    ("ranks", "on_gpus", "memory", "expected"),
    [
        (2, False, 64, []),
        (8, False, 64, [(False, "8 ranks share 2 CPU cores and wait for each other; use 2.")]),
        (1000, False, None, [(False, "1,000 ranks share 2 CPU cores and wait for each other; use 2.")]),
        (1000, False, 64, [(True, "the ranks need at least 429 GB of memory and this machine has 68.7 GB; use 2.")]),
        # with gloo ranks may share GPUs
        (16, True, 64, []),
        (1000, True, 64, [(True, "the ranks need at least 429 GB of memory and this machine has 68.7 GB; use 160.")]),
    ],
)
def test_more_ranks_than_cores_are_a_warning_and_more_than_memory_holds_are_refused(
    ranks, on_gpus, memory, expected, gpus
):
    config = multi_gpu(world_size=ranks, distributed_backend="gloo")
    problems = problems_of(config, gpus if on_gpus else [], memory_bytes=memory and memory * GIB)
    found = [(problem.blocking, problem.message) for problem in problems if problem.path == "world_size"]
    assert found == [(blocking, f"world_size {ranks}: {text}") for blocking, text in expected]


def test_what_is_trained_on_the_cpu_counts_on_each_rank_and_on_gpus_it_does_not(gpus):
    config = multi_gpu(family="sdxl", method="full", world_size=2, distributed_backend="gloo")
    options = {"memory_bytes": 24 * GIB, "base_bytes": 14 * 10**9}
    [problem] = problems_of(config, [], **options)
    assert problem.blocking
    assert problem.message.endswith("this machine has 25.8 GB; use 1.")
    assert problems_of(config, gpus[:2], **options) == []


def test_gpus_share_a_model_with_nccl_only(gpus):
    shared = {"distributed_strategy": "fsdp", "world_size": 2}
    [problem] = problems_of(multi_gpu(distributed_backend="gloo", **shared), gpus)
    assert problem.blocking
    assert (problem.path, problem.remedy.values) == ("distributed_strategy", {"distributed_strategy": "ddp"})
    assert problems_of(multi_gpu(distributed_backend="gloo", **shared), []) == []
    if sys.platform != "win32":  # where PyTorch has no NCCL
        assert problems_of(multi_gpu(distributed_backend="nccl", **shared), gpus) == []


def test_groups_that_share_a_model_must_come_out_even(gpus):
    config = multi_gpu(distributed_strategy="hsdp", sharding_group_size=3, distributed_backend="nccl")
    [problem] = [one for one in problems_of(config, gpus[:4]) if one.path == "sharding_group_size"]
    assert problem.message.startswith("sharding_group_size 3: 4 GPUs can't be divided into groups of 3; choose")
    assert problem.remedy.values == {"sharding_group_size": None}


def test_nccl_is_no_matter_for_one_rank():
    config = multi_gpu(distributed_backend="nccl")
    assert problems_of(config, [], cores=1) == []


def test_a_batch_that_can_not_be_shared_blocks(gpus):
    config = multi_gpu(batch_size=18, batch_size_mode="global", world_size=4)
    problem = problems_of(config, gpus)[0]
    assert problem.blocking
    assert "use 16 or 20" in problem.message


def test_devices_that_differ_or_have_no_link_are_named(gpus):
    links = link_matrix(gpus)
    config = multi_gpu(device_indexes=[0, 4, 5])
    text = messages(problems_of(config, gpus, links=links))
    assert "Different devices" in text
    assert "0 and 4, 0 and 5, 4 and 5" in text
    config = multi_gpu(device_indexes=[0, 1])
    assert problems_of(config, gpus, links=links) == []


def test_a_model_that_does_not_fit_is_said_with_who_holds_the_memory(gpus):
    usage = [UNKNOWN_USAGE] * 8
    usage[4] = GpuUsage(23 * GIB, 97, 60, (GpuProcess(4121, "python", 22 * GIB),))
    config = multi_gpu(device_indexes=[4, 5])
    problems = problems_of(config, gpus, usage=usage)
    assert re.search(r"needs about \d+\.\d GiB and GPU 4 has 1\.0 free \(python 4121\)", messages(problems))


def test_a_run_that_no_gpu_of_its_size_holds_is_said_whatever_is_free(gpus):
    """Of the eight GPUs, those from number 4 on have 24 GiB."""
    config = multi_gpu(family="sdxl", device_indexes=[4, 5], batch_size=32, model={"gradient_checkpointing": False})
    [problem] = [one for one in problems_of(config, gpus) if "GiB on each GPU" in one.message]
    assert (problem.path, problem.blocking) == ("batch_size", False)
    assert "and GPU 4 has 24.0: use gradient checkpointing" in problem.message


def test_what_was_found_of_files_folders_and_the_port_is_a_problem_of_its_setting():
    config = multi_gpu(num_nodes=2, initial_port="12355", workspace_dir="runs/run")
    facts = StartFacts(
        machine=None,
        base_error="model.base 'x' is gone: choose another.",
        found=[Problem("concepts.1.path", "concepts.1.path /x: it does not exist; choose a folder of images.")],
        free_port=12357,
        free_workspace="runs/run-2",
    )
    found = {one.path: one for one in can_start(config, facts)}
    assert {"model.base", "concepts.1.path", "workspace_dir", "initial_port"} <= found.keys()
    assert found["workspace_dir"].remedy == Remedy("Use run-2", {"workspace_dir": "runs/run-2"})
    assert found["initial_port"].remedy == Remedy("Set to 12357", {"initial_port": "12357"})


def test_a_port_in_use_is_no_problem_where_the_run_takes_the_next_one_itself():
    busy = StartFacts(machine=None, free_port=12357)
    for config in (multi_gpu(), multi_gpu(num_nodes=2, node_rank=1), TrainConfig(num_nodes=2)):
        assert "initial_port" not in {one.path for one in can_start(config, busy)}
    assert "initial_port" in {one.path for one in can_start(multi_gpu(num_nodes=2), busy)}


def test_half_precision_is_a_warning_on_a_cpu_that_imitates_it_and_nowhere_else(gpus):
    config = TrainConfig(model={"weight_dtype": "bfloat16", "mixed_precision": "bf16"})

    def found(machine: Machine) -> list[str]:
        return [one.path for one in device_problems(config, StartFacts(machine)) if "instructions" in one.message]

    assert found(Machine(cores=2, cpu_formats=frozenset())) == ["model.weight_dtype"]
    assert found(Machine(cores=2, cpu_formats=frozenset({"fp16"}))) == ["model.weight_dtype"]
    assert found(Machine(cores=2, cpu_formats=frozenset({"bf16"}))) == []
    assert found(Machine(cores=2, cpu_formats=None)) == []
    assert found(Machine(tuple(gpus), cores=2, cpu_formats=frozenset())) == []


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a GPU that does not exist", {"device_indexes": [0, 9]}),
        ("no GPU that exists", {"device_indexes": [8, 9]}),
        ("GPUs that do not exist, one rank on each", {"device_indexes": [0, 8, 9], "world_size": 3}),
        ("more ranks than GPUs", {"world_size": 9}),
        ("more ranks than chosen GPUs", {"world_size": 3, "device_indexes": [0, 1]}),
        ("more gloo ranks than memory holds", {"world_size": 1000, "distributed_backend": "gloo"}),
        ("a batch that can't be shared", {"batch_size": 18, "batch_size_mode": "global", "world_size": 4}),
        ("a batch below the ranks", {"batch_size": 3, "batch_size_mode": "global", "world_size": 4}),
        ("a rate that does not follow the batch", {"lr_scaling": "none"}),
        ("too large", {"family": "sdxl", "batch_size": 32, "device_indexes": [4, 5]}),
        ("too large by far", {"family": "flux1", "batch_size": 8, "device_indexes": [4, 5]}),
        ("too large with a global batch", {"family": "sdxl", "batch_size": 64, "batch_size_mode": "global",
                                           "world_size": 2, "device_indexes": [4, 5]}),
        ("a port in use", {"num_nodes": 2, "master_addr": "node0"}),
        ("a folder in use", {"workspace_dir": "runs/run"}),
    ],
)  # fmt: skip
def test_a_remedy_removes_its_problem_on_gpus(name, values, gpus):
    facts = StartFacts(Machine(tuple(gpus), cores=2, memory_bytes=64 * GIB), num_samples=5000)
    if "port" in name:
        facts = replace(facts, free_port=12360)
    if "folder" in name:
        facts = replace(facts, free_workspace="runs/run-2")
    check_remedies(multi_gpu(**values), facts)


@pytest.mark.parametrize(
    "values",
    [
        {"distributed_backend": "nccl"},
        {"world_size": 8},
        {"world_size": 1000},
        {"device_indexes": [0]},
        {"model": {"weight_dtype": "bfloat16"}},
        {"model": {"weight_dtype": "float16", "mixed_precision": "bf16"}},
        {"model": {"mixed_precision": "fp16"}},
    ],
)
def test_a_remedy_removes_its_problem_on_a_cpu(values):
    machine = Machine(cores=2, memory_bytes=64 * GIB, cpu_formats=frozenset())
    check_remedies(multi_gpu(**values), StartFacts(machine))


def check_remedies(config: TrainConfig, facts: StartFacts) -> None:
    """Applies each remedy; what was gathered for the former values no longer holds, as the window gathers it anew."""
    before = can_start(config, facts)
    found = [problem for problem in before if problem.remedy is not None]
    assert found
    for problem in found:
        after = with_remedy(config, problem.remedy)
        facts_after = replace(
            facts,
            free_port=int(after.initial_port) if facts.free_port else None,
            free_workspace=facts.free_workspace if after.workspace_dir == config.workspace_dir else "",
        )
        left = can_start(after, facts_after)
        assert problem not in left
        new = {one.message for one in blocking(left)} - {one.message for one in blocking(before)}
        assert not new, (problem, left)
        assert (problem.path, problem.message[:20]) not in {(one.path, one.message[:20]) for one in left}


def test_fewer_samples_than_a_step_and_a_batch_that_grew_are_said():
    config = multi_gpu(world_size=6, batch_size=4, gradient_accumulation_steps=2, lr_scaling="none")
    text = messages(problems_of(config, [], num_samples=40))
    assert "40 samples < 48 per step: each step is a whole epoch" in text
    assert "grew 6x and lr_scaling is none" in text


def test_what_is_wrong_with_the_settings_comes_with_what_is_wrong_with_the_devices_once_and_first(gpus):
    config = multi_gpu(device_indexes=[0, 9], batch_size=18, batch_size_mode="global", gradient_accumulation_steps=4)
    found = can_start(config, StartFacts(Machine(tuple(gpus), cores=2)))
    paths = [problem.path for problem in found if problem.blocking]
    assert set(paths) >= {"concepts", "device_indexes", "batch_size"}
    assert len(found) == len(set(found))
    assert [problem.blocking for problem in found] == sorted((problem.blocking for problem in found), reverse=True)
    [refusal] = blocking(found, "device_indexes")
    assert refusal.message.startswith("device_indexes [0, 9]: only 0 to 7 exist")


def test_the_batch_of_a_run_that_goes_on_is_that_of_its_backup(gpus):
    config = multi_gpu(batch_size=18, batch_size_mode="global")
    facts = StartFacts(Machine(tuple(gpus[:4]), cores=2))
    assert blocking(can_start(config, facts), "batch_size")
    assert not blocking(can_start(config, facts, resume=True), "batch_size")
