"""LoRAs with ComfyUI's names: diffusers' own converters read the adapters that were written, tensor by tensor."""

from __future__ import annotations

import pytest
import torch
from accelerate import init_empty_weights
from diffusers import (
    DiffusionPipeline,
    HunyuanVideoPipeline,
    HunyuanVideoTransformer3DModel,
    Lumina2Pipeline,
    Lumina2Transformer2DModel,
)

from modules.families.registry import FAMILIES
from modules.methods.lora_tools import combine, resize
from modules.methods.registry import METHODS
from modules.weights.convert import convert
from modules.weights.errors import WeightsError
from modules.weights.foreign_names import foreign_tensors
from modules.weights.lora_files import adapter_layers, load_lora
from modules.weights.lora_layers import LoraLayer
from modules.weights.lora_reading import read_layers
from modules.weights.safe import load_tensors, save_tensors
from tests.support.prepared import prepared
from tests.support.short_training import our_picture

LORA = METHODS["lora"]
# one family for each denoiser, of which diffusers has one converter
NAMED = {
    family.published.denoiser.class_name: family.name
    for family in reversed(FAMILIES.values())
    if family.layer_names
    and not family.experts
    and family.published
    # of the first two it converts models of the published size alone, and of the others nothing
    and not family.name.startswith(
        ("hunyuan_video", "lumina2", "mochi", "hunyuan_", "longcat_image", "pixart_", "wan21_vace")
    )
}
OPTIONS = {"output": {"format": "both", "dtype": "float32"}}


def saved(family, folder, tmp_path, **lora):
    """The trained transformer and the two files of its LoRA, whose adapters have random weights."""
    torch.manual_seed(0)
    base, config = prepared(folder, "lora", family, lora={"rank": 2, "alpha": 3.0, **lora}, **OPTIONS)
    module = base.module("transformer")
    for param in module.parameters():
        if param.requires_grad:
            param.data.normal_(std=0.1)
    return base, config, LORA.save(base, config, tmp_path, "lora", {})


# of FLUX.1 in this format, diffusers reads the layers of attention alone; the others are checked by our own reader
@pytest.mark.parametrize(
    ("family", "targets"), [("flux1", "attention"), *((name, "attention_mlp") for name in NAMED.values())]
)
def test_diffusers_reads_every_adapter(family, targets, tiny_model, tmp_path):
    base, _, files = saved(family, tiny_model(family), tmp_path, targets=targets)
    assert [file.name for file in files] == ["lora.safetensors", "lora_kohya.safetensors"]
    read = type(base.pipe).lora_state_dict(load_tensors(files[1]))
    read = read[0] if isinstance(read, tuple) else read
    expected = adapter_layers(base.module("transformer"))
    found = {name.removesuffix(".lora_A.weight") for name in read if name.endswith(".lora_A.weight")}
    assert found == {f"transformer.{path}" for path in expected}
    for path, layer in expected.items():
        down, up = (read[f"transformer.{path}.lora_{half}.weight"] for half in "AB")
        torch.testing.assert_close(up @ down, layer.up @ layer.down * (layer.alpha / layer.rank), rtol=1e-5, atol=1e-6)


TRUE_SIZE = {
    "hunyuan_video": (
        HunyuanVideoPipeline,
        lambda: HunyuanVideoTransformer3DModel(num_layers=1, num_single_layers=1, num_refiner_layers=1),
    ),
    "lumina2": (Lumina2Pipeline, lambda: Lumina2Transformer2DModel(num_layers=1, num_refiner_layers=1)),
}


@pytest.mark.parametrize("name", TRUE_SIZE)
def test_diffusers_reads_every_adapter_of_a_model_in_its_true_size_and_its_file_tells_the_family(name, tmp_path):
    family, (pipeline, make) = FAMILIES[name], TRUE_SIZE[name]
    with init_empty_weights():  # in the size that diffusers takes the fused layers to have
        module = make()
    torch.manual_seed(0)
    layers = {
        path: LoraLayer(torch.randn(2, layer.in_features), torch.randn(layer.out_features, 2), 3.0)
        for path, layer in module.named_modules()
        if isinstance(layer, torch.nn.Linear) and path.startswith(family.lora_blocks["transformer"])
    }
    tensors = foreign_tensors(layers, family.layer_names["transformer"])
    read = pipeline.lora_state_dict({name: tensor.clone() for name, tensor in tensors.items()})
    assert len(read) == 2 * len(layers)
    for path, layer in layers.items():
        down, up = (read[f"transformer.{path}.lora_{half}.weight"] for half in "AB")
        inputs = torch.randn(down.shape[1])
        torch.testing.assert_close(up @ (down @ inputs), layer.up @ (layer.down @ inputs) * 1.5, rtol=1e-4, atol=1e-3)
    path = tmp_path / "comfyui.safetensors"
    save_tensors(path, tensors)
    converted = convert(str(path), tmp_path / "diffusers.safetensors")
    assert load_tensors(converted).keys() == read.keys()


@pytest.mark.parametrize("family", ["flux1", "flux2_klein", "zimage", "qwen_image", "hunyuan_dit"])
def test_the_file_makes_the_image_of_the_training(family, tiny_model, tmp_path):
    base, _, files = saved(family, tiny_model(family), tmp_path)
    expected = our_picture(base.pipe)
    plain = DiffusionPipeline.from_pretrained(tiny_model(family))
    plain.set_progress_bar_config(disable=True)
    before = our_picture(plain)
    load_lora(plain, files[1])
    difference = abs(our_picture(plain) - expected).max()
    assert difference <= 1e-4
    assert difference < abs(before - expected).max() / 10


@pytest.mark.parametrize(
    "family",
    [
        *("flux2_klein", "flux3", "zimage", "qwen_image", "wan21", "ltx_video", "anima"),
        *("lumina2", "mochi", "ideogram4", "hunyuan_dit", "hunyuan_image"),
    ],
)
def test_training_goes_on_from_the_file_and_it_is_converted_there_and_back(family, tiny_model, tmp_path):
    # with the MLPs, by whose names an adapter as narrow as the tiny model's is told from that of another family
    base, _, files = saved(family, tiny_model(family), tmp_path, targets="attention_mlp")
    trained = base.module("transformer").state_dict()
    again, _ = prepared(tiny_model(family), "lora", family, lora={"start_from": str(files[1])}, **OPTIONS)
    expected, found = adapter_layers(base.module("transformer")), adapter_layers(again.module("transformer"))
    assert found.keys() == expected.keys()
    assert trained.keys() == again.module("transformer").state_dict().keys()
    for path, layer in expected.items():
        change = layer.up @ layer.down * (layer.alpha / layer.rank)
        torch.testing.assert_close(found[path].up @ found[path].down * (found[path].alpha / found[path].rank), change)
    back, forth = tmp_path / "back.safetensors", tmp_path / "forth.safetensors"
    convert(str(files[1]), back, family=family)
    assert load_tensors(back).keys() == load_tensors(files[0]).keys()
    convert(str(back), forth, family=family)
    assert load_tensors(forth).keys() == load_tensors(files[1]).keys()


def test_each_expert_of_wan_has_a_file_that_diffusers_and_training_read(tiny_model, tmp_path):
    base, config, files = saved("wan22_a14b", tiny_model("wan22_a14b"), tmp_path)
    names = ["lora.safetensors", "lora_transformer_2.safetensors"]
    assert [file.name for file in files] == [*names, "lora_kohya.safetensors", "lora_kohya_transformer_2.safetensors"]
    held = sum(tensor.nbytes for file in files for tensor in load_tensors(file).values())
    assert LORA.saved_bytes(base, config) == pytest.approx(held, rel=0.01)
    again, _ = prepared(tiny_model("wan22_a14b"), "lora", "wan22_a14b", lora={"start_from": str(files[2])})
    plain = DiffusionPipeline.from_pretrained(tiny_model("wan22_a14b"))
    for name, file in zip(("transformer", "transformer_2"), files[2:], strict=True):
        expected = adapter_layers(base.module(name))
        assert adapter_layers(again.module(name)).keys() == expected.keys()
        assert not any("attn1" in key for key in load_tensors(file))
        before = {key: getattr(plain, name).get_submodule(key).weight.clone() for key in expected}
        load_lora(plain, file)
        plain.fuse_lora(components=[name])
        plain.unload_lora_weights()
        for key, layer in expected.items():
            change = getattr(plain, name).get_submodule(key).weight - before[key]
            torch.testing.assert_close(change, layer.up @ layer.down * (layer.alpha / layer.rank), rtol=1e-4, atol=1e-5)


def test_a_resized_or_combined_file_keeps_its_names_where_they_suffice(tiny_model, tmp_path):
    _, _, files = saved("wan21", tiny_model("wan21"), tmp_path)
    family, small = FAMILIES["wan21"], resize(files[1], tmp_path / "small.safetensors", 1, family="wan21")
    assert load_tensors(small).keys() == load_tensors(files[1]).keys()
    assert {layer.rank for layer in read_layers(small, family)["transformer"].values()} == {1}
    both = combine([(files[1], 1.0), (files[0], 0.5)], tmp_path / "both.safetensors", family="wan21")
    assert load_tensors(both).keys() == load_tensors(files[1]).keys()
    more = {f"diffusion_model.head.head.lora_{half}.weight": torch.ones(2, 2) for half in ("down", "up")}
    save_tensors(tmp_path / "more.safetensors", {**load_tensors(files[1]), **more})
    wide = resize(tmp_path / "more.safetensors", tmp_path / "wide.safetensors", 1, family="wan21")
    assert "transformer.proj_out.lora_A.weight" in load_tensors(wide)


def test_a_file_that_no_one_knows_is_refused_with_its_names(tmp_path):
    path = tmp_path / "odd.safetensors"
    save_tensors(path, {f"odd.{number}.lora_down.weight": torch.ones(2, 2) for number in range(5)})
    with pytest.raises(
        WeightsError, match=r"layers 'odd\.0', 'odd\.1', 'odd\.2' and 2 more do not belong to a LoRA for z"
    ):
        read_layers(path, FAMILIES["zimage"])


def test_a_file_whose_norms_or_biases_would_be_lost_is_refused(tiny_model, tmp_path):
    _, _, files = saved("wan21", tiny_model("wan21"), tmp_path, targets="attention_mlp")
    path, layers = tmp_path / "more.safetensors", read_layers(files[1], FAMILIES["wan21"])
    for name in ("blocks.0.norm3.diff", "blocks.0.self_attn.q.diff_b"):
        # extracted LoRAs have many that are zero
        save_tensors(path, {**load_tensors(files[1]), f"diffusion_model.{name}": torch.zeros(8)})
        assert read_layers(path, FAMILIES["wan21"])["transformer"].keys() == layers["transformer"].keys()
        save_tensors(path, {**load_tensors(files[1]), f"diffusion_model.{name}": torch.ones(8)})
        with pytest.raises(WeightsError, match=rf"more\.safetensors': has more than plain L.*{name}'.* without"):
            read_layers(path, FAMILIES["wan21"])


def lora_for(pipe, name):
    """A LoRA of rank 2 for a layer as wide as those of the pipeline's attention."""
    width = pipe.transformer.config.attention_head_dim * pipe.transformer.config.num_attention_heads
    return {f"{name}.lora_down.weight": torch.randn(2, width), f"{name}.lora_up.weight": torch.randn(width, 2)}


LOST = {
    "a norm of Wan": ("wan21", "diffusion_model.blocks.0.self_attn.q", "diffusion_model.blocks.0.norm3.diff"),
    "the patches of Wan": ("wan21", "diffusion_model.blocks.0.self_attn.q", "diffusion_model.patch_embedding.diff_b"),
    "a bias of FLUX": ("flux1", "lora_unet_double_blocks_0_img_attn_proj", ".diff_b"),
}


@pytest.mark.parametrize("case", LOST)
def test_what_diffusers_drops_is_told_where_images_are_made_and_refused_where_it_would_be_lost(
    case, tiny_model, tmp_path
):
    family, layer, lost = LOST[case]
    name, path = layer + lost if lost.startswith(".") else lost, tmp_path / "x.safetensors"
    pipe = DiffusionPipeline.from_pretrained(tiny_model(family))
    lora = lora_for(pipe, layer)
    told: list[str] = []
    save_tensors(path, {**lora, name: torch.zeros(8)})
    load_lora(pipe, path, told.append)
    assert not told
    save_tensors(path, {**lora, name: torch.ones(8)})
    load_lora(pipe, path, told.append)
    assert len(told) == 1
    assert f"x.safetensors': diffusers can't apply 1 of its tensors, such as '{name}': images differ" in told[0]
    with pytest.raises(WeightsError, match=rf"can't apply 1 of its tensors, such as '{name}', which would be lost"):
        load_lora(pipe, path)
    with pytest.raises(WeightsError, match=rf"has more than plain LoRAs, such as '{name}', which would be lost"):
        read_layers(path, FAMILIES[family])


def test_a_lora_of_flux_by_kohyas_scripts_may_have_layers_of_the_text_encoder(tiny_model, tmp_path):
    plain, adapted = (DiffusionPipeline.from_pretrained(tiny_model("flux1")) for _ in range(2))
    lora, width = lora_for(plain, "lora_unet_double_blocks_0_img_attn_proj"), plain.text_encoder.config.hidden_size
    weights = dict(plain.text_encoder.named_parameters())
    for part in ("q_proj", "out_proj"):
        name, down, up = f"layers.0.self_attn.{part}.weight", torch.randn(2, width), torch.randn(width, 2)
        stem = f"lora_te1_text_model_encoder_layers_0_self_attn_{part}"
        lora |= {f"{stem}.lora_down.weight": down, f"{stem}.lora_up.weight": up, f"{stem}.alpha": torch.tensor(1.0)}
        next(weight for path, weight in weights.items() if path.endswith(name)).data += up @ down / 2
    save_tensors(tmp_path / "x.safetensors", lora)
    load_lora(adapted, tmp_path / "x.safetensors")
    ids = torch.arange(8)[None]
    with torch.no_grad():
        outputs = [pipe.text_encoder(ids).last_hidden_state for pipe in (adapted, plain)]
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
    assert any("lora_A" in name for name, _ in adapted.transformer.named_modules())
    # whatever else reads it takes both parts, too
    start = {"lora": {"start_from": str(tmp_path / "x.safetensors")}, "text_encoder": {"train": True}}
    started, _ = prepared(tiny_model("flux1"), "lora", "flux1", **start)
    assert len(adapter_layers(started.module("transformer"))) == 1
    assert len(adapter_layers(started.module("text_encoder"))) == 2
    convert(str(tmp_path / "x.safetensors"), tmp_path / "converted.safetensors", family="flux1")
    resize(tmp_path / "x.safetensors", tmp_path / "resized.safetensors", 1, family="flux1")
    combine([(tmp_path / "x.safetensors", 1.0)] * 2, tmp_path / "combined.safetensors", family="flux1")
    for name in ("converted", "resized", "combined"):
        read = read_layers(tmp_path / f"{name}.safetensors", FAMILIES["flux1"])
        assert {component: len(of) for component, of in read.items()} == {"transformer": 1, "text_encoder": 2}


@pytest.mark.parametrize(
    ("layer", "refused"),
    [
        ("lora_unet_double_blocks_0_img_attn_proj", "lora_unet_double_blocks_0_img_attn_norm_key_norm.diff"),
        ("lora_unet_double_blocks_0_img_attn_proj", "lora_unet_img_in.diff"),
        ("diffusion_model.double_blocks.0.img_attn.proj", "diffusion_model.img_in.diff"),
    ],
)
def test_what_diffusers_refuses_in_a_lora_of_flux_is_named(layer, refused, tiny_model, tmp_path):
    pipe = DiffusionPipeline.from_pretrained(tiny_model("flux1"))
    text = "lora_te1_text_model_encoder_layers_0_self_attn_q_proj"
    of_text = {f"{text}.lora_down.weight": torch.ones(2, 32), f"{text}.lora_up.weight": torch.ones(32, 2)}
    lora = {**lora_for(pipe, layer), **(of_text if layer.startswith("lora") else {})}
    save_tensors(tmp_path / "x.safetensors", {**lora, refused: torch.ones(8)})
    with pytest.raises(WeightsError) as caught:
        load_lora(pipe, tmp_path / "x.safetensors", print)
    assert str(caught.value).endswith(
        f"x.safetensors': diffusers can't apply 1 of its tensors, such as '{refused}', and refuses the file; choose a "
        "LoRA for this model without them."
    )


def test_biases_that_only_some_layers_have_are_applied(tiny_model, tmp_path):
    plain, adapted = (DiffusionPipeline.from_pretrained(tiny_model("wan21")) for _ in range(2))
    layer = "diffusion_model.blocks.0.self_attn."
    lora, bias = {**lora_for(plain, f"{layer}q"), **lora_for(plain, f"{layer}k")}, torch.randn(24)
    save_tensors(tmp_path / "x.safetensors", {**lora, f"{layer}q.diff_b": bias})
    load_lora(adapted, tmp_path / "x.safetensors")
    inputs = torch.randn(3, 24)
    for name, of_layer in (("q", bias), ("k", 0)):
        before, after = (pipe.transformer.get_submodule(f"blocks.0.attn1.to_{name}") for pipe in (plain, adapted))
        expected = (
            before(inputs)
            + inputs @ (lora[f"{layer}{name}.lora_up.weight"] @ lora[f"{layer}{name}.lora_down.weight"]).T
        )
        torch.testing.assert_close(after(inputs), expected + of_layer, rtol=1e-4, atol=1e-5)


def test_the_size_of_fused_layers_is_known_before_they_are_written(tiny_model, tmp_path):
    base, config, files = saved("flux2_klein", tiny_model("flux2_klein"), tmp_path)
    held = sum(tensor.nbytes for file in files for tensor in load_tensors(file).values())
    assert LORA.saved_bytes(base, config) == pytest.approx(held, rel=0.01)


def test_dora_is_saved_in_diffusers_format_alone_where_the_other_can_not_hold_it(tiny_model, tmp_path):
    _, _, files = saved("zimage", tiny_model("zimage"), tmp_path, dora=True)
    assert [file.name for file in files] == ["lora.safetensors"]


def test_fused_parts_of_unequal_ranks_stay_apart():
    names = FAMILIES["flux2_dev"].layer_names["transformer"]
    paths = [f"transformer_blocks.3.attn.{name}" for name in ("to_q", "to_k", "to_v")]
    ranks = zip(paths, (1, 3, 2), strict=True)
    layers = {path: LoraLayer(torch.rand(rank, 4), torch.rand(5, rank), 2.0) for path, rank in ranks}
    tensors = foreign_tensors(layers, names)
    name = "lora_unet_double_blocks_3_img_attn_qkv"
    assert tensors.keys() == {f"{name}.{part}" for part in ("lora_down.weight", "lora_up.weight", "alpha")}
    down, up = tensors[f"{name}.lora_down.weight"], tensors[f"{name}.lora_up.weight"]
    assert tensors[f"{name}.alpha"] == len(down) == 9
    expected = torch.cat([layer.up @ layer.down * (2.0 / layer.rank) for layer in layers.values()])
    torch.testing.assert_close(up @ down, expected)
