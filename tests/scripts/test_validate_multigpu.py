"""scripts/validate_multigpu.py: the table, the exit code and the devices; test_trial_runs.py has the trainings."""

import pytest

from modules.machine.devices import Gpu
from modules.machine.doctor.CheckResult import CheckResult
from modules.machine.doctor.hardware import Hardware
from scripts import validate_multigpu
from scripts.validate_multigpu import choose_devices, main, table_lines

BAD = CheckResult("same EMA", "fails", "they differ", "Try gloo.")


@pytest.mark.parametrize(("result", "code"), [(CheckResult("GPUs", "ok", "2"), 0), (BAD, 1)])
def test_the_exit_code_says_whether_a_check_failed_and_only_a_failure_leaves_its_runs(
    result, code, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(validate_multigpu.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setattr(validate_multigpu, "make_checks", lambda args, folder: iter([result]))
    assert main([]) == code
    assert tmp_path.exists() == bool(code)
    assert ("Several ranks train like one" in capsys.readouterr().out) == (not code)


def test_a_failed_check_says_what_to_do_below_its_row(monkeypatch):
    monkeypatch.setattr(validate_multigpu, "can_print", lambda text: True)
    assert table_lines(BAD) == [f"✗ {'same EMA':<24}they differ", "  --> Try gloo."]
    monkeypatch.setattr(validate_multigpu, "can_print", lambda text: False)
    assert table_lines(BAD)[0].startswith("FAILS same EMA")


def hardware(*indexes: int) -> Hardware:
    from dataclasses import fields

    gpus = []
    for index in indexes:
        values = {field.name: None for field in fields(Gpu)}
        gpus.append(Gpu(**{**values, "index": index}))
    size = len(gpus)
    nothing = [[None] * size for _ in range(size)]
    return Hardware(gpus=tuple(gpus), usage=(None,) * size, links=nothing, speeds=nothing)


def test_a_single_gpu_is_not_shared_by_two_ranks():
    assert choose_devices(hardware(0), None).gpus == ()
    assert len(choose_devices(hardware(0, 1), None).gpus) == 2


def test_chosen_gpus_are_taken_and_those_that_are_not_there_refused(capsys, monkeypatch):
    assert [gpu.index for gpu in choose_devices(hardware(0, 1, 2), [0, 2]).gpus] == [0, 2]
    monkeypatch.setattr(validate_multigpu, "read_hardware", lambda: hardware(0, 1))
    monkeypatch.setattr(validate_multigpu, "read_torch", lambda: pytest.fail("takes long"))
    assert main(["--devices", "1,5"]) == 2
    assert "--devices 1,5: name at least two GPUs of this machine (it has 0, 1)" in capsys.readouterr().err


def test_nccl_without_two_gpus_is_refused_at_once(capsys, monkeypatch):
    monkeypatch.setattr(validate_multigpu, "read_hardware", lambda: hardware(0))
    monkeypatch.setattr(validate_multigpu, "read_torch", lambda: pytest.fail("takes long"))
    assert main(["--backend", "nccl"]) == 2
    assert "NCCL needs GPUs" in capsys.readouterr().err
