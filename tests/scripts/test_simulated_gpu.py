"""The simulated GPU computes as CUDA does what CUDA has kernels, rules and workspaces for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torchgen

from scripts import python_device
from tests.support import simulated_runs
from tests.support.RankPool import RankPool

DECLARATIONS = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    pool = RankPool(1, tmp_path_factory.mktemp("simulated"))
    yield pool
    pool.close()


def test_every_operation_with_a_kernel_on_cuda_and_steps_elsewhere_is_known():
    found = set()
    for declared in re.split(r"\n(?=- func: )", DECLARATIONS.read_text(encoding="utf-8")):
        keys = {key for row in re.findall(r"^    ([\w, ]+):", declared, re.MULTILINE) for key in row.split(", ")}
        if "CompositeImplicitAutograd" in keys and ("CUDA" in keys or "structured_delegate" in declared):
            found.add(declared.removeprefix("- func: ").partition("(")[0])
    assert found == set(python_device._FUSED.split())


def test_what_has_a_kernel_on_cuda_is_one_operation_forward_and_backward(process):
    (seen,) = process.run(simulated_runs.operations_of_layers)
    passes = [name for name in seen if any(part in name for part in ("rms_norm", "silu", "mish"))]
    expected = ["_fused_rms_norm", "silu", "mish", "mish_backward", "silu_backward", "_fused_rms_norm_backward"]
    assert passes == expected
    steps = {"mul.Tensor", "sigmoid", "rsqrt", "pow.Tensor_Scalar", "mean.dim", "exp", "tanh"}
    assert not steps & set(seen)


def test_autocast_computes_in_the_precisions_of_cuda(process):
    (found,) = process.run(simulated_runs.dtypes_under_autocast)
    low = {name for name, dtype in found.items() if dtype == "bfloat16"}
    assert low == {"linear", "mean", "silu"}
    assert set(found.values()) == {"bfloat16", "float32"}


def test_a_convolution_takes_a_share_of_its_input_beside_unless_it_is_one_for_each_channel(process):
    ((whole, each),) = process.run(simulated_runs.workspaces_of_convolutions)
    assert (whole, each) == (8 * 128 * 128 * 4 * 3 / 4, 0)


@pytest.mark.parametrize(("num_micro_batches", "share"), [(1, 0), (2, 1)])
def test_the_last_micro_batch_begins_beside_the_gradients_of_those_before(process, num_micro_batches, share):
    assert process.run(simulated_runs.gradients_before_a_step, num_micro_batches=num_micro_batches) == [share]
