"""The layouts in which attentions get their gradients: PyTorch keeps cuDNN's plans by a key that lacks them.

Recorded on the CPU in runs of tiny models: layouts follow from the code of a model, not from its size or the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from torch import Tensor
from torch.nn import functional

from modules.distributed.gradient_layouts import match_gradient_layouts
from modules.families.registry import FAMILIES
from tests.support.small_inputs import shrink_inputs

# In blocks with one stream, the output of an attention is joined with that of an MLP, in blocks with two it is not.
WITH_TWO_LAYOUTS = {
    "bria_fibo",
    "chroma",
    "flux1",
    "flux1_fill",
    "flux1_kontext",
    "longcat_image",
    "longcat_image_edit",
    "ovis_image",
}
ALWAYS = ("flux1", "sd15")

Layout = tuple[int, ...]


def layout_of(tensor: Tensor) -> Layout:
    """The strides, of dimensions that have more than one element."""
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


class Recorder:
    """Calls `attend` and records the layouts of its gradients, by what PyTorch's key of cuDNN's plans has."""

    def __init__(self, attend: Callable[..., Tensor]):
        self._attend = attend
        self._layouts: dict[tuple, set[Layout]] = defaultdict(set)

    def __call__(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options) -> Tensor:
        output = self._attend(query, key, value, attn_mask, dropout_p, is_causal, **options)
        if output.requires_grad:
            inputs = [each for each in (query, key, value, attn_mask) if each is not None]
            described = (*((each.shape, layout_of(each)) for each in inputs), query.dtype, is_causal, dropout_p)
            output.register_hook(lambda gradient: self._layouts[described].add(layout_of(gradient)))
        return output

    @property
    def most_layouts(self) -> int:
        """With one key; 0 if there was no gradient."""
        return max(map(len, self._layouts.values()), default=0)


@pytest.fixture
def recorders(monkeypatch) -> tuple[Recorder, Recorder]:
    """Of the gradients as models give them, and as attentions get them once they are matched."""
    name = "scaled_dot_product_attention"
    matched = Recorder(functional.scaled_dot_product_attention)
    monkeypatch.setattr(functional, name, matched)
    match_gradient_layouts(True)
    given = Recorder(functional.scaled_dot_product_attention)
    monkeypatch.setattr(functional, name, given)
    return given, matched


@pytest.fixture
def train_family(make_config, family_data, tiny_model, start):
    """Returns a function that makes a step of a family, with weights in bfloat16."""

    def run(name: str) -> None:
        shrink_inputs(name)
        family = FAMILIES[name]
        side = max(32, 2 * family.align)
        data = [f"{path}={value}" for path, value in family_data(name).items()]
        config = make_config(
            f"family={name}",
            f"model.base={tiny_model(name)}",
            f"method={'lora' if 'lora' in family.methods else 'full'}",
            "model.mixed_precision=bf16",
            "model.weight_dtype=bfloat16",
            "optimizer.stochastic_rounding=true",
            f"data.resolution={side}",
            f"data.bucket_step={side // 2}",
            *data,
            "max_steps=1",
        )
        start(config).train()

    return run


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.proof) for name in FAMILIES]
)
def test_once_gradients_are_matched_each_plan_of_cudnn_gets_one_layout(name, train_family, recorders):
    given, matched = recorders
    train_family(name)
    assert given.most_layouts == (2 if name in WITH_TWO_LAYOUTS else 1)
    assert matched.most_layouts == 1
