"""LoHa, LoKr, OFT, IA3: others see what was trained, training goes on from files, and misfits are refused."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from lycoris.functional import diag_oft, loha, lokr
from lycoris.modules.ia3 import _ia3_weight
from lycoris.modules.loha import LohaModule
from lycoris.modules.norms import NormModule
from peft.tuners.lycoris_utils import LycorisLayer

from modules.config.errors import UserError
from modules.families.registry import FAMILIES
from modules.methods.registry import METHODS
from modules.weights.errors import WeightsError
from modules.weights.kohya_names import kohya_name
from modules.weights.load_pipeline import load_pipeline
from modules.weights.lora_files import load_lora
from modules.weights.lycoris_files import is_lycoris, lycoris_layers, read_lycoris
from modules.weights.safe import load_tensors, save_tensors
from tests.support.prepared import prepared
from tests.support.short_training import our_picture, train

LORA, CPU = METHODS["lora"], torch.device("cpu")
TEXT = {"text_encoder": {"train": True}}
# With alpha other than the rank; of LoKr also such that both matrices are whole, and neither is.
KINDS = [
    ("sd15", {"adapter": "loha", "rank": 3, "alpha": 2.0, "targets": "linear_conv"}),
    ("sd15", {"adapter": "lokr", "rank": 1, "alpha": 2.0, "targets": "linear_conv"}),
    ("sd15", {"adapter": "lokr", "rank": 64, "alpha": 16.0, "lokr_factor": 4}),
    ("sd15", {"adapter": "oft", "rank": 4, "targets": "linear_conv", "conv_rank": 2}),
    ("sdxl", {"adapter": "loha", "rank": 2, "alpha": 1.0}),
    ("flux1", {"adapter": "lokr", "rank": 1, "alpha": 1.0, "lokr_factor": 2, "targets": "linear"}),
    ("flux1", {"adapter": "oft", "rank": 8, "targets": "linear"}),
    ("sd15", {"adapter": "ia3", "targets": "linear_conv"}),
    ("sd15", {"adapter": "ia3", "ia3_on_input": True, "targets": "linear_conv"}),
    ("sd15", {"adapter": "loha", "rank": 3, "alpha": 2.0, "targets": "linear_conv", "tucker": True}),
    ("sd15", {"adapter": "loha", "rank": 2, "train_norms": True}),
    ("flux1", {"adapter": "lokr", "rank": 1, "train_norms": True}),
    ("sd15", {"adapter": "lokr", "rank": 1, "lokr_factor": 8, "lokr_decompose_both": True, "targets": "linear_conv",
              "tucker": True}),
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tiny_model, tmp_path_factory):
    """`made(family, lora)`: a trained model, its settings and its file. Tests share and do not change them."""

    @functools.cache
    def made_once(family, options):
        lora, text = json.loads(options), TEXT if family == "sd15" else {}
        torch.manual_seed(0)  # new adapters are random
        base, config = prepared(tiny_model(family), "lora", family, lora=lora, **text)
        if family == "flux1":  # its latents are packed, so that nothing but the adapters is checked here
            move(base.module("transformer"))
        else:
            train(base, config, 2)
        [file] = LORA.save(base, config, tmp_path_factory.mktemp("made"), "trained", {"made_by": "a test"})
        return base, config, file

    return lambda family, lora: made_once(family, json.dumps(lora))


def move(module):
    """Gives the trained weights other values."""
    torch.manual_seed(0)
    for param in module.parameters():
        if param.requires_grad:
            param.data += 0.05 * torch.randn_like(param)


def plain(folder):
    pipe = DiffusionPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.parametrize(("family", "lora"), KINDS, ids=lambda value: value if isinstance(value, str) else "")
def test_the_reference_implementation_and_our_own_reader_see_what_was_trained(family, lora, made, tiny_model):
    base, _, file = made(family, lora)
    tensors = load_tensors(file)
    assert is_lycoris(tensors)
    expected = our_picture(base.pipe)
    ours = plain(tiny_model(family))
    before = our_picture(ours)
    load_lora(ours, file)
    assert np.abs(our_picture(ours) - expected).max() <= 1e-5
    assert np.abs(before - expected).max() > 1e-3
    layers = {**adapted(base, "unet"), **adapted(base, "transformer"), **adapted(base, "text_encoder")}
    added = {name: layer.get_delta_weight("default").detach() for name, layer in layers.items()}
    weights = {name: layer.get_base_layer().weight for name, layer in layers.items()}
    assert added.keys() == {name.rpartition(".")[0] for name in tensors}
    for name, delta in added.items():
        reference = by_reference(tensors, name, layers[name], weights[name]).reshape(delta.shape)
        torch.testing.assert_close(reference, delta, rtol=1e-4, atol=1e-7)


def adapted(base, component):
    """Name in the file -> the layer."""
    if component not in base.component_names:
        return {}
    found = {}
    for path, layer in base.module(component).named_modules():
        if isinstance(layer, LycorisLayer):
            in_file = f"text_model.{path.removeprefix('text_model.')}" if component == "text_encoder" else path
            has_name = component in base.family.kohya_prefixes
            name = kohya_name(base.family, component, in_file) if has_name else f"{component}.{path}"
            found[name] = layer
    return found


def by_reference(tensors, name, layer, weight):
    """What an adapter in a file adds to the weight, as the LyCORIS package computes it."""
    parts = {key.rpartition(".")[2]: tensor for key, tensor in tensors.items() if key.rpartition(".")[0] == name}
    if "w_norm" in parts:
        return by_norm_module(parts, layer)
    if "hada_w1_a" in parts:
        weights = [parts.get(f"hada_{part}") for part in ("w1_b", "w1_a", "w2_b", "w2_a", "t1", "t2")]
        return loha.diff_weight(*weights, gamma=float(parts["alpha"]) / len(parts["hada_w1_b"]))
    if "oft_blocks" in parts:
        assert float(parts["alpha"]) == 0  # else ComfyUI would limit the rotation
        return diag_oft.diff_weight(weight.detach(), parts["oft_blocks"], None, constraint=0)
    if "on_input" in parts:
        assert "alpha" not in parts
        return _ia3_weight(weight.detach(), parts["weight"], bool(parts["on_input"]), 1.0, diff=True)
    weights = [parts.get(f"lokr_{part}") for part in ("w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b", "t2")]
    rank = next((len(factor) for factor in (weights[2], weights[5]) if factor is not None), 1)
    return lokr.diff_weight(*weights, gamma=float(parts["alpha"]) / rank)


def by_norm_module(parts, layer):
    """What LyCORIS's own layer adds to a norm's weight. Where it has such a layer, its outputs are compared, too."""
    norm = layer.get_base_layer()
    if isinstance(norm, torch.nn.LayerNorm | torch.nn.GroupNorm):
        with torch.no_grad():
            theirs = NormModule.make_module_from_state_dict("norm", norm, parts["w_norm"], parts["b_norm"])
            inputs = torch.randn(2, len(norm.weight), 4, 4)
            inputs = inputs if isinstance(norm, torch.nn.GroupNorm) else inputs.movedim(1, -1)
            torch.testing.assert_close(layer(inputs), theirs(inputs))
    return parts["w_norm"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_strength_of_a_file_scales_what_it_adds(dtype, made, tiny_sd15):
    base, _, file = made("sd15", KINDS[0][1])
    half, whole = (load_pipeline(tiny_sd15, {file: strength}, CPU, dtype=dtype) for strength in (0.5, 1.0))
    layers = lycoris_layers(whole.unet, "default_0")
    assert {layer.scale for layer in layers.values()} == {2 / 3}
    assert {layer.scale for layer in lycoris_layers(half.unet, "default_0").values()} == {1 / 3}
    if dtype == "float32":
        assert np.abs(our_picture(whole) - our_picture(base.pipe)).max() <= 1e-5


@pytest.mark.parametrize(
    ("family", "lora"), [*KINDS[:4], KINDS[8]], ids=["loha", "small lokr", "whole lokr", "oft", "ia3"]
)
def test_training_goes_on_from_a_file_with_its_own_rank(family, lora, made, tiny_model):
    before, _, file = made(family, lora)
    settings = {"adapter": lora["adapter"], "rank": 16, "start_from": str(file)}
    base, config = prepared(tiny_model(family), "lora", family, lora=settings, **TEXT)
    assert np.abs(our_picture(base.pipe) - our_picture(before.pipe)).max() <= 1e-5
    trained = [param for param in LORA.loss(base, config).parameters() if param.requires_grad]
    old = [param.detach().clone() for param in trained]
    train(base, config, 1)
    assert any(not torch.equal(param, other) for param, other in zip(trained, old, strict=True))
    own, others = (lycoris_layers(one.module("unet"), "default") for one in (base, before))
    assert {path: layer.rank for path, layer in own.items()} == {path: layer.rank for path, layer in others.items()}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"adapter": "lora"}, "holds loha: set lora.adapter to it"),
        ({"adapter": "lokr"}, "holds loha: set lora.adapter to it"),
    ],
)
def test_a_file_of_another_kind_is_not_gone_on_from(settings, reason, made, tiny_sd15):
    _, _, file = made("sd15", KINDS[0][1])
    with pytest.raises(UserError, match=reason):
        prepared(tiny_sd15, "lora", "sd15", lora={**settings, "start_from": str(file)}, **TEXT)


def test_a_file_that_does_not_fit_is_refused_and_adds_nothing(made, tiny_sd15, tmp_path):
    _, _, file = made("sd15", KINDS[0][1])
    tensors = load_tensors(file)
    wide, lacking = dict(tensors), dict(tensors)
    name = next(name for name in tensors if name.startswith("lora_unet") and name.endswith("hada_w1_b"))
    wide[name] = wide[name].repeat(1, 2)
    del lacking[name]
    pipe = plain(tiny_sd15)
    for values, reason in ((wide, "does not fit"), (lacking, "lacks a part of")):
        save_tensors(tmp_path / "other.safetensors", values)
        with pytest.raises(WeightsError, match=reason):
            load_lora(pipe, tmp_path / "other.safetensors")
    assert not hasattr(pipe.unet, "peft_config")


def test_oft_turns_outputs_without_changing_their_length(made, tiny_sd15):
    """At a strength of 1; a smaller one goes a part of the way, as in LyCORIS and ComfyUI."""
    base, _, file = made("sd15", KINDS[3][1])
    layer = base.module("unet").get_submodule("down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q")
    inputs = torch.randn(2, 7, layer.in_features)
    with torch.no_grad():
        turned, plain_outputs = layer(inputs), layer.get_base_layer()(inputs)
    blocks = layer.oft_blocks["default"].shape[:2]
    lengths = [outputs.unflatten(-1, blocks).norm(dim=-1) for outputs in (turned, plain_outputs)]
    torch.testing.assert_close(*lengths)
    assert (turned - plain_outputs).abs().max() > 1e-4
    half = load_pipeline(tiny_sd15, {file: 0.5}, CPU).unet.get_submodule(
        "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    )
    with torch.no_grad():
        torch.testing.assert_close(half(inputs), (turned + plain_outputs) / 2)


@pytest.mark.parametrize("alpha", [None, 0.0, 1.5])
def test_an_alpha_of_0_is_the_rank_as_in_lycoris(alpha, tmp_path):
    layer = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    shapes = {"w1_a": (8, 3), "w1_b": (3, 8), "w2_a": (8, 3), "w2_b": (3, 8)}
    tensors = {f"{layer}.hada_{name}": torch.ones(shape) for name, shape in shapes.items()}
    tensors |= {} if alpha is None else {f"{layer}.alpha": torch.tensor(alpha)}
    save_tensors(tmp_path / "x.safetensors", tensors)
    [read] = read_lycoris(tmp_path / "x.safetensors", FAMILIES["sd15"])["unet"].values()
    assert read.scale == LohaModule("x", torch.nn.Linear(8, 8), lora_dim=3, alpha=alpha).scale


def test_a_file_of_oft_with_a_limit_is_refused(made, tiny_sd15, tmp_path):
    _, _, file = made("sd15", KINDS[3][1])
    tensors = {name: torch.tensor(0.5) if name.endswith("alpha") else t for name, t in load_tensors(file).items()}
    save_tensors(tmp_path / "other.safetensors", tensors)
    with pytest.raises(WeightsError, match="limit of the rotation"):
        load_lora(plain(tiny_sd15), tmp_path / "other.safetensors")


@pytest.mark.parametrize("adapter", ["oft", "ia3"])
def test_adapters_of_activations_are_added_to_weights_in_4_bits_too(adapter, tiny_model):
    settings = {"lora": {"adapter": adapter, "rank": 4}, "model": {"denoiser_quantization": "nf4"}}
    base, _ = prepared(tiny_model("flux1"), "lora", "flux1", **settings)
    before = our_picture(base.pipe)
    move(base.module("transformer"))
    assert 1e-4 < np.abs(our_picture(base.pipe) - before).max() < 1


@pytest.mark.parametrize("adapter", ["loha", "lokr"])
def test_adapters_are_added_to_weights_in_8_bits_and_not_in_4(adapter, tiny_model):
    settings = {"lora": {"adapter": adapter, "rank": 2}, "model": {"denoiser_quantization": "int8"}}
    base, _ = prepared(tiny_model("flux1"), "lora", "flux1", **settings)
    move(base.module("transformer"))
    assert all(torch.isfinite(torch.from_numpy(our_picture(base.pipe))).ravel())
    settings["model"]["denoiser_quantization"] = "nf4"
    with pytest.raises(UserError, match="quantized to 4 bits"):
        prepared(tiny_model("flux1"), "lora", "flux1", **settings)
