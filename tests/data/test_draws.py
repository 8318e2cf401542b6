"""Draws depend on what they are for, and on nothing else."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.data.draws import hash64, hash64_array, torch_seed, uniform, uniform_array


def test_the_values_never_change():
    """A change here changes every run that is resumed: there is no reason good enough."""
    assert hash64(0) == 16294208416658607535  # splitmix64's first output from state 0
    assert hash64(42, 3, 7, 0, "timestep") == 15539449977091767220
    assert hash64(-1, 2**64) == 6755974106381971767
    assert uniform(42, 3, 7, 0, "timestep") == 0.8423952712196358
    assert torch_seed(42, 3, 7, 0, "noise") == 3332112229216326017


def test_another_process_draws_the_same():
    code = "from modules.data.draws import hash64; print(hash64(1, 'noise'))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(output) == hash64(1, "noise")


integers = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(st.lists(integers, min_size=1, max_size=5), integers, st.text(max_size=5))
def test_an_array_draws_what_its_elements_draw(values, seed, purpose):
    array = np.array(values, dtype=np.int64)
    hashes = hash64_array(seed, array, purpose, array)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [hash64(seed, value, purpose, value) for value in values]
    assert uniform_array(seed, array, purpose).tolist() == [uniform(seed, value, purpose) for value in values]


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.uint32, np.uint64])
def test_the_integer_type_does_not_matter(dtype):
    assert hash64_array(np.arange(5, dtype=dtype)).tolist() == [hash64(i) for i in range(5)]
    assert hash64(dtype(3)) == hash64(3)
    assert hash64(np.array(3, dtype)) == hash64(3)


def test_small_negative_integers_in_narrow_arrays_are_the_same_numbers():
    assert hash64_array(np.array([-2], np.int8))[0] == hash64(-2)


def test_arrays_broadcast():
    table = hash64_array(7, np.arange(3)[:, None], np.arange(4))
    assert table.shape == (3, 4)
    assert table[2, 3] == hash64(7, 2, 3)


def test_each_part_and_its_place_matter():
    parts = [(), (0,), (0, 0), (1, 0), (0, 1), ("a",), ("b",), (0, "a"), ("a", 0), (0, "")]
    assert len({hash64(*p) for p in parts}) == len(parts)


@pytest.mark.parametrize("part", [0.5, np.array([0.5]), np.array([True]), None])
def test_floats_and_other_parts_are_refused(part):
    with pytest.raises(TypeError):
        hash64(1, part)


def test_uniform_numbers_are_uniform():
    numbers = uniform_array(1, np.arange(100_000), "timestep")
    counts, _ = np.histogram(numbers, bins=50, range=(0, 1))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    # chi square with 49 degrees of freedom: 99.9 % lie below 85
    assert ((counts - 2000) ** 2 / 2000).sum() < 85


def test_neighbouring_ids_and_epochs_are_uncorrelated():
    ids = np.arange(50_000)
    one = uniform_array(1, 0, ids, "noise")
    for parts in ((1, 1, ids, "noise"), (1, 0, ids + 1, "noise"), (1, 0, ids, "timestep")):
        other = uniform_array(*parts)
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.02


def test_torch_takes_every_seed():
    assert all(0 <= torch_seed(i, "noise") < 2**63 for i in range(1000))
    assert len({torch_seed(i, "noise") for i in range(1000)}) == 1000


def test_any_string_that_python_holds_can_be_a_part():
    assert hash64("caf\udce9") != hash64("caf\udcff")
