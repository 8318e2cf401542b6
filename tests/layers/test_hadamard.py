"""The rotation of inputs: ComfyUI's matrix, its own inverse, and in groups that divide a row."""

import pytest
import torch

from modules.layers.hadamard import GROUP_SIZES, group_size, rotate

LEAST = torch.tensor([[1.0, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]])


def test_the_matrix_is_the_kronecker_power_of_the_regular_one_of_size_4_and_its_own_inverse():
    expected = LEAST
    for size in GROUP_SIZES:
        matrix = rotate(torch.eye(size, dtype=torch.bfloat16), size)
        assert torch.equal(matrix.float(), expected / size**0.5)
        assert torch.equal(matrix.float() @ matrix.float(), torch.eye(size))
        expected = torch.kron(expected, LEAST)


def test_each_group_of_a_row_is_rotated_by_itself():
    values = torch.randn(2, 3, 32)
    first, second = (rotate(part.contiguous(), 16) for part in values.split(16, dim=-1))
    torch.testing.assert_close(rotate(values, 16), torch.cat([first, second], dim=-1))
    assert rotate(values, 0) is values


@pytest.mark.parametrize(("width", "size"), [(3072, 256), (1024, 256), (320, 64), (48, 16)])
def test_groups_are_as_large_as_the_inputs_allow(width, size):
    assert group_size(width) == size
