"""Problems and warnings before a start, as a table of settings and machines."""

import sys

import pytest

from modules.config.TrainConfig import TrainConfig
from modules.config.validation import Problem
from modules.machine.can_start import StartFacts, blocking, can_start, device_problems
from modules.machine.devices import UNKNOWN_USAGE, GpuProcess, GpuUsage, link_matrix, list_gpus
from modules.machine.Machine import Machine
from tests.machine.test_run_shape import messages, multi_gpu
from tests.support.fake_nvml import GIB, eight_gpus


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
        (1000, False, None, [(False, "1000 ranks share 2 CPU cores and wait for each other; use 2.")]),
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
    assert (problem.path, problem.offer) == ("distributed_strategy", "ddp")
    assert problems_of(multi_gpu(distributed_backend="gloo", **shared), []) == []
    if sys.platform != "win32":  # where PyTorch has no NCCL
        assert problems_of(multi_gpu(distributed_backend="nccl", **shared), gpus) == []


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
    usage[4] = GpuUsage(15 * GIB, 97, 60, (GpuProcess(4121, "python", 14 * GIB),))
    config = multi_gpu(device_indexes=[4, 5])
    problems = problems_of(config, gpus, usage=usage, needed_bytes=17 * GIB)
    assert "needs about 17.0 GiB and GPU 4 has 9.0 free (python 4121)" in messages(problems)


def test_fewer_samples_than_a_step_and_a_batch_that_grew_are_said():
    config = multi_gpu(world_size=6, batch_size=4, gradient_accumulation_steps=2, lr_scaling="none")
    text = messages(problems_of(config, [], num_samples=40))
    assert "40 samples < 48 per step (4 x 6 x 2): every step is a whole epoch" in text
    assert "grew 6x and lr_scaling is none" in text


def test_what_is_wrong_with_the_settings_comes_with_what_is_wrong_with_the_devices_once_and_first(gpus):
    config = multi_gpu(device_indexes=[0, 9], batch_size=18, batch_size_mode="global", gradient_accumulation_steps=4)
    found = can_start(config, StartFacts(Machine(tuple(gpus), cores=2)))
    paths = [problem.path for problem in found if problem.blocking]
    assert set(paths) >= {"concepts", "device_indexes", "batch_size"}
    assert len(found) == len(set(found))
    assert [problem.blocking for problem in found] == sorted((problem.blocking for problem in found), reverse=True)
    [refusal] = blocking(found, "device_indexes")
    assert refusal.startswith("device_indexes [0, 9]: only 0 to 7 exist")


def test_the_batch_of_a_run_that_goes_on_is_that_of_its_backup(gpus):
    config = multi_gpu(batch_size=18, batch_size_mode="global")
    facts = StartFacts(Machine(tuple(gpus[:4]), cores=2))
    assert blocking(can_start(config, facts), "batch_size")
    assert not blocking(can_start(config, facts, resume=True), "batch_size")
