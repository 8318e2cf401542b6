"""LoRAs of the published models, key by key, against the layers that ComfyUI's models have.

`tests/support/comfyui_layers.json` lists these: name in a LoRA, with {} for the number of the block -> [number of
blocks, outputs, inputs] of each shape. It was made from ComfyUI's own models in their published sizes, on meta, and
from its map of names (xmarre/ComfyUI 6d4f9e86, a copy of April 2026; comfy/lora.py: model_lora_keys_unet), which says
what part of its layer a name stands for.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from modules.families.registry import FAMILIES
from modules.methods.layers import preset_layers
from modules.weights.foreign_names import with_whole_groups
from modules.weights.lora_layers import LoraLayer, kohya_tensors
from modules.weights.LoraSource import LoraSource
from scripts.published_models import build_denoiser

LAYERS = json.loads((Path(__file__).parents[1] / "support" / "comfyui_layers.json").read_bytes())
NUMBER = re.compile(r"(?<=[._])\d+(?=[._])")  # the first is that of the block


class HeldFile(LoraSource):
    """A LoRA file that is not on disk."""

    def __init__(self, tensors):
        self.path, self.metadata, self.tensors = "held.safetensors", {}, tensors
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def lora(family):
    """The file for ComfyUI of a LoRA of rank 1 on all linear layers in the blocks of the published model."""
    module, first = build_denoiser(family), family.denoisers[0]
    sizes = {path: module.get_submodule(path).weight.shape for path in preset_layers(family, first, module, "linear")}
    layers = {path: LoraLayer(torch.ones(1, size[1]), torch.ones(size[0], 1), 1.0) for path, size in sizes.items()}
    if names := family.layer_names.get(first):
        layers = with_whole_groups(layers, module, names)
    return HeldFile(kohya_tensors({first: layers}, family))


@pytest.mark.parametrize("name", LAYERS)
def test_comfyui_has_a_layer_of_each_name_and_shape(name):
    file, found = lora(FAMILIES[name]), {}
    for layer, tensors in file.layers.items():
        shape = file.shapes[tensors["up"]][0], file.shapes[tensors["down"]][1]
        found.setdefault(NUMBER.sub("{}", layer, count=1), Counter())[shape] += 1
    expected = {layer: {(*shape,): count for count, *shape in shapes} for layer, shapes in LAYERS[name].items()}
    assert found == expected
