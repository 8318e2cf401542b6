"""LoRA+, the limit of an adapter's norm, and the ranks of convolutions: by hand and in the trainer's own parts."""

from __future__ import annotations

import math

import pytest
import torch

from modules.methods.registry import METHODS
from modules.trainer.LoopOptimizer import ScheduledOptimizer
from modules.trainer.param_groups import param_groups
from modules.weights.lora_files import adapter_layers
from tests.support.prepared import prepared
from tests.support.short_training import a_batch, our_picture, train

LORA = METHODS["lora"]


def optimizer_of(base, config, after_step=None):
    parts = LORA.components(base.family, config)
    groups = param_groups(base, parts, math.ceil, 10, lambda name: LORA.rate_factor(name, config))
    return ScheduledOptimizer(config.optimizer, config.schedule, groups, 10, after_step=after_step)


def test_lora_plus_equals_a_loop_with_two_groups(tiny_sd15):
    settings = {"lora": {"rank": 2, "plus_ratio": 16.0}, "text_encoder": {"train": True, "learning_rate": 2e-4}}
    schedule = {"name": "linear"}
    base, config = prepared(tiny_sd15, "lora", **settings, schedule=schedule, optimizer={"learning_rate": 1e-3})
    other, _ = prepared(tiny_sd15, "lora", **settings)
    losses = [LORA.loss(base, config), LORA.loss(other, config)]
    for own, copy in zip(losses[0].parameters(), losses[1].parameters(), strict=True):
        copy.data.copy_(own)
    optimizer = optimizer_of(base, config)
    named = [(name, param) for name, param in losses[1].named_parameters() if param.requires_grad]
    by_hand = [
        {"params": [p for n, p in named if n.startswith(part) and matrix in n], "lr": rate, "initial_lr": rate}
        for part, base_rate in (("unet.", 1e-3), ("text_encoder.", 2e-4))
        for matrix, rate in (("lora_A", base_rate), ("lora_B", 16 * base_rate))
    ]
    reference = torch.optim.AdamW(by_hand, weight_decay=config.optimizer.weight_decay, fused=True)
    for step in range(3):
        rates = optimizer.set_learning_rates(step)
        assert rates["unet_x16"] == pytest.approx(16 * rates["unet"])
        for group in reference.param_groups:
            group["lr"] = group["initial_lr"] * rates["unet"] / 1e-3
        for loss, stepped in zip(losses, (optimizer.torch, reference), strict=True):
            loss(a_batch())[0].backward()
            stepped.step()
            stepped.zero_grad()
    for own, copy in zip(losses[0].parameters(), losses[1].parameters(), strict=True):
        assert torch.equal(own, copy)


def test_without_these_settings_each_part_has_one_group_and_nothing_is_limited(tiny_sd15):
    base, config = prepared(tiny_sd15, "lora", text_encoder={"train": True})
    assert [group["name"] for group in optimizer_of(base, config).torch.param_groups] == ["unet", "text_encoder"]
    assert LORA.norm_limit(base, config) is None


@pytest.mark.parametrize("adapter", ["lora", "loha", "lokr"])
def test_no_difference_is_larger_than_its_limit_and_smaller_ones_stay(adapter, tiny_sd15):
    lora = {"rank": 2, "alpha": 3.0, "adapter": adapter, "targets": "linear_conv", "conv_rank": 1, "max_norm": 0.5}
    base, config = prepared(tiny_sd15, "lora", lora=lora)
    train(base, config, 2)
    adapted = [layer for layer in base.module("unet").modules() if hasattr(layer, "get_delta_weight")]
    large = [layer for layer in adapted if getattr(layer.get_base_layer(), "kernel_size", (1, 1)) == (3, 3)]
    assert {layer.r["default"] for layer in large} == {1}
    before = [layer.get_delta_weight("default").detach().clone() for layer in adapted]
    norms = torch.stack([difference.norm() for difference in before])
    config.lora.max_norm = float(norms.median())
    limit = LORA.norm_limit(base, config)
    limit.apply(limit.ratios())
    assert 0 < (norms < config.lora.max_norm).sum() < len(norms)
    for difference, norm, layer in zip(before, norms, adapted, strict=True):
        expected = difference * min(1.0, config.lora.max_norm / float(norm))
        torch.testing.assert_close(layer.get_delta_weight("default"), expected, rtol=1e-4, atol=1e-6)


def test_large_convolutions_have_their_own_rank_in_the_trained_and_the_saved_lora(tiny_sd15, tmp_path):
    lora = {"rank": 4, "alpha": 2.0, "conv_rank": 2, "conv_alpha": 0.5, "targets": "linear_conv"}
    base, config = prepared(tiny_sd15, "lora", lora=lora, output={"format": "both"})
    train(base, config, 1)
    layers = adapter_layers(base.module("unet"))
    shapes = {path: (layer.rank, layer.alpha) for path, layer in layers.items()}
    large = {path for path, layer in layers.items() if layer.down.shape[2:] == (3, 3)}
    assert {path: shapes[path] for path in large} == dict.fromkeys(large, (2, 0.5))
    assert large
    assert {shapes[path] for path in shapes.keys() - large} == {(4, 2.0)}
    for file in LORA.save(base, config, tmp_path, "trained", {}):
        again, _ = prepared(tiny_sd15, "lora", lora={"start_from": str(file)})
        assert abs(our_picture(again.pipe) - our_picture(base.pipe)).max() <= 1e-5
