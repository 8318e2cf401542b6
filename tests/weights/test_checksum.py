from __future__ import annotations

import pytest
import torch

from modules.weights.checksum import checksum

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool]


class OnGpu(torch.Tensor):
    """A tensor of the CPU that passes for one of a GPU: it can't be stacked with one of the CPU."""

    device = torch.device("cuda", 0)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.stack and len({tensor.device for tensor in args[0]}) > 1:
            raise RuntimeError("Expected all tensors to be on the same device, but found cuda:0 and cpu")
        return super().__torch_function__(func, types, args, kwargs)


def values(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 3, 2, 2).mul(9).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_tensors_have_one_checksum_and_any_other_value_another(dtype):
    first = checksum({"a": values(dtype)})
    assert first == checksum({"a": values(dtype)})
    assert len(first) == 16
    assert int(first, 16) >= 0
    other = values(dtype)
    other[3, 2, 1, 1] = ~other[3, 2, 1, 1] if dtype == torch.bool else other[3, 2, 1, 1] + 1
    assert checksum({"a": other}) != first


def test_the_last_bit_of_one_value_counts():
    other = values()
    other[0, 0, 0, 0] = torch.nextafter(other[0, 0, 0, 0], torch.tensor(torch.inf))
    assert checksum({"a": other}) != checksum({"a": values()})


def test_names_shapes_types_and_order_count():
    tensor = torch.ones(6)
    sums = {
        checksum(tensors)
        for tensors in (
            {"a": tensor},
            {"b": tensor},
            {"a": tensor.reshape(2, 3)},
            {"a": tensor.view(torch.int32)},
            {"a": tensor, "b": tensor * 2},
            {"a": tensor * 2, "b": tensor},
            {},
        )
    }
    assert len(sums) == 7


def test_the_layout_in_memory_does_not_count():
    assert checksum({"a": values().to(memory_format=torch.channels_last)}) == checksum({"a": values()})


def test_scalars_and_empty_tensors_and_what_requires_a_gradient():
    tensors = {"scalar": torch.tensor(2.0), "empty": torch.empty(0), "trained": torch.ones(2, requires_grad=True)}
    assert checksum(tensors) == checksum({name: tensor.detach().clone() for name, tensor in tensors.items()})
    assert checksum(tensors) != checksum({**tensors, "scalar": torch.tensor(3.0)})


def test_values_that_are_not_finite_can_be_compared():
    spoiled = values()
    spoiled[0, 0, 0, 0] = torch.nan
    assert checksum({"a": spoiled}) == checksum({"a": spoiled.clone()}) != checksum({"a": values()})


def test_a_model_that_lies_partly_on_the_gpu_has_the_checksum_of_one_on_the_cpu():
    on_cpu = {"vae": values(), "unet": 2 * values(), "text_encoder": 3 * values()}
    assert checksum({**on_cpu, "unet": on_cpu["unet"].as_subclass(OnGpu)}) == checksum(on_cpu)
