"""LoRA: which layers get an adapter, what trains, and that other programs see what was trained."""

import numpy as np
import pytest
import torch
from diffusers import SanaTransformer2DModel, StableDiffusion3Pipeline, StableDiffusionPipeline

from modules.config.errors import UserError
from modules.config.TrainConfig import TrainConfig
from modules.families.registry import FAMILIES
from modules.methods.lora import target_modules
from modules.methods.registry import METHODS
from modules.weights.lora_files import AdaptedModel, load_lora, save_lora
from tests.support.prepared import prepared
from tests.support.short_training import a_batch, our_picture, plain_picture, train

LORA = METHODS["lora"]
PIPELINES = {"sd15": StableDiffusionPipeline, "sd3": StableDiffusion3Pipeline}

# By component and preset: layer kinds (the end of a name) that must be adapted, and how many layers in all.
ATTENTION = {"to_q", "to_k", "to_v", "to_out.0"}
JOINT = ATTENTION | {"add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"}
FEED_FORWARD = {"ff.net.0.proj", "ff.net.2"}
CONVOLUTIONS = {"conv1", "conv2", "conv_shortcut", "proj_in", "proj_out", "downsamplers.0.conv", "upsamplers.0.conv"}
CLIP = {"q_proj", "k_proj", "v_proj", "out_proj"}
KINDS = {
    ("tiny_sd15", "unet"): {
        "attention": ATTENTION,
        "attention_mlp": ATTENTION | FEED_FORWARD,
        "linear": ATTENTION | FEED_FORWARD | {"time_emb_proj"},
        "linear_conv": ATTENTION | FEED_FORWARD | {"time_emb_proj"} | CONVOLUTIONS,
    },
    ("tiny_sd15_v", "unet"): {
        "attention": ATTENTION,
        "attention_mlp": ATTENTION | FEED_FORWARD,
        "linear": ATTENTION | FEED_FORWARD | {"time_emb_proj", "proj_in", "proj_out"},
        "linear_conv": ATTENTION | FEED_FORWARD | {"time_emb_proj"} | CONVOLUTIONS,
    },
    ("tiny_sd15", "text_encoder"): {
        "attention": CLIP,
        "attention_mlp": CLIP | {"fc1", "fc2"},
        "linear": CLIP | {"fc1", "fc2"},
        "linear_conv": CLIP | {"fc1", "fc2"},
    },
    ("tiny_sd3", "transformer"): {
        "attention": JOINT,
        "attention_mlp": JOINT | FEED_FORWARD | {"ff_context.net.0.proj", "ff_context.net.2"},
        "linear": JOINT | FEED_FORWARD | {"ff_context.net.0.proj", "ff_context.net.2"}
        | {"norm1.linear", "norm1_context.linear"},
    },
    ("tiny_sd3", "text_encoder_2"): {"attention": CLIP, "attention_mlp": CLIP | {"fc1", "fc2"}},
}  # fmt: skip
CASES = [(model, component, preset) for (model, component), presets in KINDS.items() for preset in presets]


def load(folder):
    pipe = PIPELINES[family_of(folder).name].from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def family_of(folder):
    return FAMILIES[folder.name.removesuffix("_v")]


def kind_of(name, kinds):
    return max((kind for kind in kinds if f".{name}".endswith(f".{kind}")), key=len, default=name)


@pytest.mark.parametrize(("model", "component", "preset"), CASES)
def test_a_preset_adapts_all_layers_of_its_kinds_in_the_blocks_and_no_other(model, component, preset, request):
    folder = request.getfixturevalue(model)
    module = getattr(load(folder), component)
    kinds = KINDS[model, component][preset]
    names = target_modules(family_of(folder), component, module, preset)
    assert {kind_of(name, kinds) for name in names} == kinds
    layers = dict(module.named_modules())
    everywhere = {name for name, layer in layers.items() if kind_of(name, kinds) in kinds and hasattr(layer, "weight")}
    # outside the blocks stand only layers that share a name with one inside
    outside = {name for name in everywhere - set(names) if "block" in name or ".layers." in name}
    assert outside == set()
    assert all(isinstance(layers[name], torch.nn.Linear | torch.nn.Conv2d) for name in names)


def test_peft_adapts_exactly_the_named_layers(tiny_sd15):
    base, _ = prepared(tiny_sd15, "lora", lora={"targets": "linear_conv"}, text_encoder={"train": True})
    plain = load(tiny_sd15)
    for component in ("unet", "text_encoder"):
        wanted = target_modules(base.family, component, getattr(plain, component), "linear_conv")
        adapted = {
            name.removesuffix(".lora_A.default")
            for name, _ in base.module(component).named_modules()
            if name.endswith(".lora_A.default")
        }
        assert adapted == set(wanted)


def test_layers_outside_the_blocks_stay_plain(tiny_sd15):
    names = target_modules(FAMILIES["sd15"], "unet", load(tiny_sd15).unet, "linear_conv")
    assert {"conv_in", "conv_out", "time_embedding.linear_1"}.isdisjoint(names)


def test_a_part_without_such_layers_is_refused_in_a_sentence(tiny_sd15):
    with pytest.raises(
        UserError, match=r"^lora\.targets 'attention': the unet of this model has no such layers; use l"
    ):
        target_modules(FAMILIES["sd15"], "unet", torch.nn.Sequential(torch.nn.Linear(2, 2)), "attention")


@pytest.mark.parametrize("text_trains", [False, True])
@pytest.mark.parametrize("model", ["tiny_sd15", "tiny_sd3"])
def test_only_adapters_train(model, text_trains, request):
    folder = request.getfixturevalue(model)
    family = family_of(folder)
    base, config = prepared(folder, "lora", family.name, text_encoder={"train": text_trains})
    parts = LORA.components(family, config)
    texts = [name for name in family.text.encoders if name in family.lora_targets]
    assert list(parts) == [*family.denoisers, *(texts if text_trains else [])]
    for name in (*family.denoisers, *family.text.encoders, family.vae):
        for key, parameter in base.module(name).named_parameters():
            assert parameter.requires_grad == ("lora_" in key)
        has_adapter = any("lora_" in key for key, _ in base.module(name).named_parameters())
        assert has_adapter == (name in parts)
    trained = [name for name, parameter in LORA.loss(base, config).named_parameters() if parameter.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)


def test_a_new_adapter_changes_nothing(tiny_sd15):
    base, _ = prepared(tiny_sd15, "lora", model={"channels_last": False}, text_encoder={"train": True})
    assert np.array_equal(our_picture(base.pipe), our_picture(load(tiny_sd15)))


@pytest.mark.parametrize("weight_dtype", ["bfloat16", "float16"])
def test_adapters_are_float32_beside_a_model_of_less_precision(weight_dtype, tiny_sd15):
    base, config = prepared(tiny_sd15, "lora", model={"weight_dtype": weight_dtype}, text_encoder={"train": True})
    for component in ("unet", "text_encoder"):
        for name, parameter in base.module(component).named_parameters():
            assert parameter.dtype == (torch.float32 if "lora_" in name else getattr(torch, weight_dtype))
    if weight_dtype == "bfloat16":  # float16 is for autocast only
        loss_sum, _, _ = LORA.loss(base, config)(a_batch())
        loss_sum.backward()
        gradients = [p.grad for n, p in base.module("text_encoder").named_parameters() if "lora_B" in n]
        assert any(gradient.abs().max() > 0 for gradient in gradients)


def test_dora_and_rslora_reach_the_adapters(tiny_sd15):
    base, _ = prepared(tiny_sd15, "lora", lora={"rank": 4, "alpha": 6.0, "dora": True, "rslora": True})
    layer = next(module for name, module in base.module("unet").named_modules() if name.endswith("attn1.to_q"))
    assert layer.scaling["default"] == 3.0
    magnitude = layer.lora_magnitude_vector["default"].weight
    assert magnitude.requires_grad
    torch.testing.assert_close(magnitude, layer.base_layer.weight.norm(dim=1))


def test_patterns_choose_among_the_layers_of_a_preset(tiny_sd15):
    part = {"include_layers": "*.attn2.*, up_blocks", "exclude_layers": "*.to_out.0"}
    base, config = prepared(tiny_sd15, "lora", denoiser=part)
    unet = load(tiny_sd15).unet
    every = target_modules(base.family, "unet", unet, "attention")
    chosen = target_modules(base.family, "unet", unet, "attention", config.denoiser)
    assert chosen == [
        name for name in every if (".attn2." in name or "up_blocks" in name) and not name.endswith("to_out.0")
    ]
    assert 0 < len(chosen) < len(every)
    adapted = {n.removesuffix(".lora_A.default") for n, _ in base.module("unet").named_modules() if "lora_A.d" in n}
    assert adapted == set(chosen)


def test_alpha_rank_and_dropout_reach_the_adapters(tiny_sd15):
    base, _ = prepared(tiny_sd15, "lora", lora={"rank": 3, "alpha": 6.0, "dropout": 0.25})
    layer = next(module for name, module in base.module("unet").named_modules() if name.endswith("attn1.to_q"))
    assert layer.lora_A["default"].weight.shape[0] == 3
    assert layer.scaling["default"] == 2.0
    assert layer.lora_dropout["default"].p == 0.25


@pytest.mark.parametrize("adapter", ["lora", "loha", "oft"])
def test_some_layers_have_ranks_of_their_own(adapter, tiny_sd15):
    """The first pattern that matches counts, also for convolutions, whose rank is another."""
    options = {"rank": 2, "alpha": 4.0, "adapter": adapter, "targets": "linear_conv", "conv_rank": 1}
    ranks = "mid_block=4, *.attn1.*=3, down_blocks=2"
    base, _ = prepared(tiny_sd15, "lora", lora={**options, "layer_ranks": ranks})
    seen = set()
    for name, layer in base.module("unet").named_modules():
        if getattr(layer, "r", None):
            large = getattr(layer.get_base_layer(), "kernel_size", (1, 1)) == (3, 3)
            usual = 4 if name.startswith("mid_block") else 3 if ".attn1." in name else 1 if large else 2
            expected = 2 if usual == 1 and name.startswith("down_blocks") else usual
            assert layer.r["default"] == expected, name
            seen.add(expected)
            if adapter != "oft":
                assert layer.scaling["default"] == 4.0 / expected
    assert seen == {1, 2, 3, 4}
    with pytest.raises(UserError, match=r"lora\.layer_ranks 'upper' matches no layer with an adapter: its layers have"):
        prepared(tiny_sd15, "lora", lora={**options, "layer_ranks": "upper=4"})


# What the other families' files hold is for tests/weights/test_lora_files.py and tests/families/test_conformance.py.
@pytest.mark.parametrize(
    ("model", "kind"),
    [*(("tiny_sd15", kind) for kind in ({}, {"dora": True}, {"rslora": True})), ("tiny_sd3", {})],
    ids=str,
)
def test_a_trained_lora_changes_a_plain_pipelines_picture_as_it_does_ours(model, kind, tmp_path, request):
    folder = request.getfixturevalue(model)
    family = family_of(folder)
    formats = "both" if family.single_file else "diffusers"
    base, config = prepared(
        folder,
        "lora",
        family.name,
        text_encoder={"train": True},
        lora={"rank": 4, "alpha": 2.0, "dropout": 0.1, **kind},  # dropout, which must not touch a picture
        output={"format": formats},
    )
    train(base, config)
    for part in LORA.components(family, config):
        assert base.module(part).training  # our sampler has to see to it itself
    ours = our_picture(base.pipe)
    without = plain_picture(load(folder))
    files = LORA.save(base, config, tmp_path, "trained", {})
    assert len(files) == (2 if formats == "both" else 1)
    for file in files:
        plain = load(folder)
        if "_kohya" in file.name and (family.name == "sd3" or "dora" in kind):
            load_lora(plain, file)  # diffusers' own reader of this format knows neither
        else:
            plain.load_lora_weights(file.parent, weight_name=file.name)
        assert np.abs(plain_picture(plain) - ours).max() <= 1e-5
    assert np.abs(without - ours).max() > 0.02
    denoiser = family.denoisers[0]
    (file,) = save_lora(tmp_path / "denoiser", AdaptedModel({denoiser: base.module(denoiser)}, PIPELINES[family.name]))
    without_text = load(folder)
    without_text.load_lora_weights(tmp_path, weight_name=file.name)
    assert np.abs(plain_picture(without_text) - ours).max() > 1e-3  # the text encoders' share shows too


def test_a_text_encoder_that_lora_can_not_train_is_refused():
    config = TrainConfig(family="sd3", text_encoder={"train": True, "only": [1, 3]})
    with pytest.raises(UserError, match=r"^text_encoder\.only 3: method 'lora' can't train .*; use 1 or 2\.$"):
        METHODS["lora"].components(FAMILIES["sd3"], config)
    config.method = "full"
    assert "text_encoder_3" in METHODS["full"].components(FAMILIES["sd3"], config)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dora", [False, True])
def test_gradients_have_the_layout_of_their_weights(tiny_sd15, channels_last, dora):
    model = {"channels_last": channels_last}
    base, config = prepared(tiny_sd15, "lora", lora={"targets": "linear_conv", "dora": dora}, model=model)
    loss = LORA.loss(base, config)
    trained = {name: param for name, param in loss.named_parameters() if param.requires_grad}
    total, *_ = loss(a_batch())
    gradients = torch.autograd.grad(total, list(trained.values()))
    layouts = zip(trained.items(), gradients, strict=True)
    other = {name for (name, weight), gradient in layouts if weight.stride() != gradient.stride()}
    viewed = {name for name, weight in trained.items() if "lora_A" in name and weight.shape[2:] == (3, 3)}
    assert other == (viewed if dora and channels_last else set())


def test_convolutions_of_groups_get_no_adapter(tiny_model):
    transformer = SanaTransformer2DModel.from_pretrained(tiny_model("sana"), subfolder="transformer")
    names = target_modules(FAMILIES["sana"], "transformer", transformer, "linear_conv")
    assert "transformer_blocks.0.ff.conv_point" in names
    assert "transformer_blocks.0.ff.conv_depth" not in names  # which has one group for each channel
