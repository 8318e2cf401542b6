"""Denoisers whose weights stay in their files are those that diffusers loads."""

from __future__ import annotations

import json
import shutil

import diffusers
import pytest
import torch

from modules.distributed.placeholders import move_to_meta, placeholder, reader_of
from modules.families.registry import FAMILIES
from modules.weights import deferred_casts
from modules.weights.lazy_loading import load_lazily
from modules.weights.safe import load_tensors, save_tensors
from tests.support import alike_families
from tests.support.alike_families import once_for_each

WEIGHTS = "diffusion_pytorch_model.safetensors"


def class_of(folder):
    return getattr(diffusers, json.loads((folder / "config.json").read_text(encoding="utf-8"))["_class_name"])


@once_for_each(alike_families.denoiser_class, "name")
def test_it_is_the_denoiser_that_diffusers_loads(name, tiny_model):
    folder = tiny_model(name) / FAMILIES[name].denoisers[0]
    component_class = class_of(folder)
    for dtype in (torch.float32, torch.bfloat16):
        loaded = component_class.from_pretrained(str(folder), torch_dtype=dtype)
        lazy = load_lazily(component_class, folder, dtype)
        assert (type(lazy), lazy.training, dict(lazy.config)) == (type(loaded), False, dict(loaded.config))
        params, expected = dict(lazy.named_parameters()), dict(loaded.named_parameters())
        assert params.keys() == expected.keys()
        for key, param in params.items():
            values = expected[key]
            assert (param.shape, param.dtype, param.untyped_storage().nbytes()) == (
                values.shape,
                values.dtype,
                values.element_size(),
            )
            assert torch.equal(reader_of(param)(0, len(values)), values)
            assert torch.equal(reader_of(param)(1, 2), values[1:2])
        buffers = dict(lazy.named_buffers())
        assert buffers.keys() == dict(loaded.named_buffers()).keys()
        for key, buffer in loaded.named_buffers():
            assert buffers[key].dtype == buffer.dtype
            assert torch.equal(buffers[key], buffer)


@once_for_each(alike_families.denoiser_class, "name")
def test_so_is_one_whose_casts_wait(name, tiny_model, monkeypatch):
    monkeypatch.setattr(deferred_casts, "LEAST_BYTES", 0)
    folder = tiny_model(name) / FAMILIES[name].denoisers[0]
    loaded = class_of(folder).from_pretrained(str(folder), torch_dtype=torch.bfloat16)
    with deferred_casts.deferred_casts():
        waiting = class_of(folder).from_pretrained(str(folder), torch_dtype=torch.bfloat16)
    deferred_casts.compute(waiting)
    expected = {**loaded.state_dict(), **dict(loaded.named_buffers())}
    found = {**waiting.state_dict(), **dict(waiting.named_buffers())}
    assert found.keys() == expected.keys()
    for key, value in found.items():
        assert (type(value), value.dtype, value.stride()) == (torch.Tensor, expected[key].dtype, expected[key].stride())
        assert torch.equal(value, expected[key])


def test_weights_in_several_files_are_read_from_each(tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model("flux1") / "transformer", tmp_path / "transformer")
    expected = load_tensors(folder / WEIGHTS)
    names = sorted(expected)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_tensors(folder / file, {name: expected[name].clone() for name in part})
    (folder / WEIGHTS).unlink()
    index = {"metadata": {}, "weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    lazy = load_lazily(class_of(folder), folder, torch.float32)
    for name, param in lazy.named_parameters():
        assert torch.equal(reader_of(param)(0, len(param)), expected[name])


@pytest.mark.parametrize("change", ["without a tensor", "without a file", "of another shape"])
def test_other_files_are_left_to_diffusers(change, tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model("flux1") / "transformer", tmp_path / "transformer")
    tensors = {name: value.clone() for name, value in load_tensors(folder / WEIGHTS).items()}
    if change == "without a file":
        (folder / WEIGHTS).unlink()
    else:
        taken = tensors.pop("proj_out.weight")
        save_tensors(
            folder / WEIGHTS, tensors if change == "without a tensor" else {**tensors, "proj_out.weight": taken.T}
        )
    assert load_lazily(class_of(folder), folder, torch.float32) is None


def test_a_value_that_is_used_before_it_is_read_is_not_a_number():
    layer = torch.nn.Linear(2, 3)
    layer.weight = placeholder((3, 2), torch.float32, lambda start, stop: torch.ones(stop - start, 2))
    assert layer(torch.ones(1, 2)).isnan().all()
    readers = move_to_meta(torch.nn.Sequential(layer))
    assert list(readers) == ["0.weight"]
    assert (layer.weight.is_meta, layer.weight.shape) == (True, (3, 2))
    assert torch.equal(readers["0.weight"](1, 3), torch.ones(2, 2))
