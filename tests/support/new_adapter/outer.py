"""A kind of adapters as docs/contributing.md describes it: the outer product of two vectors is added to a weight."""

from __future__ import annotations

import torch
from torch import nn

from modules.weights.adapters.kinds import (
    ADAPTER,
    AdapterKind,
    LycorisKind,
    adaptable_shape,
    declare_adapter,
    fill,
    replace_layer,
)
from modules.weights.peft_layers import LycorisLayer as AdaptedLayer


class Outer(AdapterKind, LycorisKind):
    name = "outer"

    def add_new(self, module, targets, settings, patterns):
        _add(module, targets, ADAPTER)

    def fits(self, parts, module):
        shape = adaptable_shape(module)
        return shape is not None and (len(parts["outer_out"]), len(parts["outer_in"])) == (shape[0], shape[1:].numel())

    def add(self, module, layers, adapter, dtype=None):
        _add(module, layers, adapter)
        fill(module, layers, adapter, dtype)


def _add(module, paths, adapter):
    for path in paths:
        layer = replace_layer(module, path, OuterLayer)
        layer.update_layer(adapter, 1, 1.0)
        layer.set_adapter(adapter)
    declare_adapter(module, adapter)


class OuterLayer(nn.Module, AdaptedLayer):
    adapter_layer_names = ("outer_out", "outer_in")

    def __init__(self, base_layer):
        super().__init__()
        AdaptedLayer.__init__(self, base_layer)
        self.outer_out, self.outer_in = nn.ParameterDict(), nn.ParameterDict()

    @property
    def _available_adapters(self):
        return {*self.outer_out}

    def update_layer(self, adapter_name, r, alpha, **kwargs):
        self.r[adapter_name], self.alpha[adapter_name], self.scaling[adapter_name] = r, alpha, alpha / r
        self.create_adapter_parameters(adapter_name, r)

    def create_adapter_parameters(self, adapter_name, r, **kwargs):
        weight = self.get_base_layer().weight
        self.outer_out[adapter_name] = nn.Parameter(torch.zeros(len(weight), device=weight.device))
        self.outer_in[adapter_name] = nn.Parameter(torch.ones(weight[0].numel(), device=weight.device))

    def reset_adapter_parameters(self, adapter_name):
        nn.init.zeros_(self.outer_out[adapter_name])

    def get_delta_weight(self, adapter_name, *, apply_rank_dropout=False):
        product = torch.outer(self.outer_out[adapter_name], self.outer_in[adapter_name]) * self.scaling[adapter_name]
        return product.view(self.get_base_layer().weight.shape)

    def _get_delta_activations(self, adapter_name, x, *args, **kwargs):
        return nn.functional.linear(x, self.get_delta_weight(adapter_name).to(x.dtype))

    def forward(self, x, *args, **kwargs):
        output = self.base_layer(x, *args, **kwargs)
        for adapter in [] if self.disable_adapters or self.merged else self.active_adapters:
            if adapter in self.outer_out:
                output = output + self._get_delta_activations(adapter, x)
        return output


KIND = Outer()
