"""Sums and approximations of LoRAs add what they should to the weights."""

import pytest
import torch

from modules.weights.errors import WeightsError
from modules.weights.lora_layers import LoraLayer
from modules.weights.lora_math import approximated, combined, difference_of, resized

SHAPES = {"linear": ((24,), ()), "convolution": ((8, 3, 3), (1, 1))}  # of one row of down, and of up behind [out, r]


def layer(seed, kind="linear", rank=4, alpha=10.0):
    generator = torch.Generator().manual_seed(seed)
    inputs, behind = SHAPES[kind]
    down = torch.randn(rank, *inputs, generator=generator)
    return LoraLayer(down, torch.randn(16, rank, *behind, generator=generator), alpha)


def test_the_difference_is_the_product_scaled_by_alpha_over_rank():
    one = layer(0)
    torch.testing.assert_close(difference_of(one), 2.5 * one.up @ one.down)
    many = layer(0, "convolution")
    expected = 2.5 * torch.einsum("orxy,rihw->oihw", many.up, many.down)
    torch.testing.assert_close(difference_of(many), expected)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_combination_adds_what_its_parts_add_at_their_strengths(kind):
    first, second, alone = layer(0, kind), layer(1, kind, rank=2, alpha=1.0), layer(2, kind)
    parts = [({"unet": {"a": first}}, 0.5), ({"unet": {"a": second, "b": alone}}, -2.0)]
    total = combined(parts)["unet"]
    expected = 0.5 * difference_of(first) - 2 * difference_of(second)
    torch.testing.assert_close(difference_of(total["a"]), expected)
    torch.testing.assert_close(difference_of(total["b"]), -2 * difference_of(alone))
    assert (total["a"].rank, total["b"].rank) == (6, 4)


def test_a_product_that_is_infinite_is_refused_by_its_layer():
    huge = LoraLayer(torch.full((4, 24), 1e30), torch.full((16, 4), 1e30), 4.0)
    with pytest.raises(WeightsError, match=r"^The layer 'unet\.a' has values too large"):
        resized({"unet": {"a": huge}}, 2)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("rank", [1, 3, 4, 9])
def test_a_resized_layer_is_the_best_approximation_of_its_rank(kind, rank):
    whole = layer(0, kind)
    small = resized({"unet": {"a": whole}}, rank)["unet"]["a"]
    values = torch.linalg.svdvals(difference_of(whole).flatten(1))
    error = (difference_of(small) - difference_of(whole)).norm()
    assert small.rank == min(rank, 4)
    assert small.down.shape[1:] == whole.down.shape[1:]
    assert error.item() == pytest.approx(values[rank:].norm().item(), abs=1e-4)


def test_as_many_singular_values_are_kept_as_have_their_share():
    u, _ = torch.linalg.qr(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)))
    whole = LoraLayer(torch.eye(4, 24), u * torch.tensor([4.0, 2.0, 1.0, 0.0]), 4.0)  # squared: 16, 4, 1, 0 of 21
    ranks = [resized({"unet": {"a": whole}}, None, share)["unet"]["a"].rank for share in (0.5, 0.9, 0.96, 1.0)]
    assert ranks == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", SHAPES)
def test_what_two_models_differ_by_is_found_exactly_at_its_rank(kind):
    difference = difference_of(layer(0, kind))
    torch.testing.assert_close(difference_of(approximated(difference, 4)), difference, atol=1e-4, rtol=1e-5)
    values = torch.linalg.svdvals(difference.flatten(1))
    assert (difference_of(approximated(difference, 2)) - difference).norm() <= 1.001 * values[2:].norm()
    assert torch.equal(approximated(difference, 2).down, approximated(difference, 2).down)


def test_layers_of_unlike_models_and_dora_are_refused():
    wide = LoraLayer(torch.zeros(4, 25), torch.zeros(16, 4), 4.0)
    with pytest.raises(WeightsError, match=r"^Their layers 'unet\.a' differ in size"):
        combined([({"unet": {"a": layer(0)}}, 1.0), ({"unet": {"a": wide}}, 1.0)])
    dora = LoraLayer(torch.zeros(4, 24), torch.zeros(16, 4), 4.0, torch.ones(16))
    for change in (lambda: combined([({"unet": {"a": dora}}, 1.0)]), lambda: resized({"unet": {"a": dora}}, 2)):
        with pytest.raises(WeightsError, match=r"has a DoRA, whose size can't be changed; merge it instead\.$"):
            change()
