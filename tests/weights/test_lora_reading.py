"""LoRA files as programs name their layers: each family reads each form of them, layer by layer and in its strength."""

from __future__ import annotations

import pytest
import torch
from diffusers import DiffusionPipeline
from diffusers.loaders import single_file_utils

from modules.families.registry import FAMILIES
from modules.machine.published_layers import layer_entries
from modules.weights.adapters.kinds import LycorisLayer
from modules.weights.errors import WeightsError
from modules.weights.layer_tables import layer_table, pattern_of
from modules.weights.lora_family import candidates, check_family
from modules.weights.lora_files import load_lora
from modules.weights.lora_layers import LoraLayer, is_diffusers, kohya_tensors
from modules.weights.lora_reading import read_layers
from modules.weights.LoraSource import LoraSource
from modules.weights.lycoris_files import file_tensors, read_lycoris
from modules.weights.safe import save_tensors

RANK = 2
# U-Nets have names of their own, see test_lora_files.py
ADAPTED = [name for name, family in FAMILIES.items() if family.lora_targets and "transformer" in family.denoisers]


class HeldFile(LoraSource):
    """A LoRA file that is not on disk."""

    def __init__(self, tensors, metadata=None):
        self.path, self.metadata, self.tensors = "held.safetensors", metadata or {}, tensors
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def adapted_layers(family):
    """Path -> [out, in], of each layer of the first block of each kind that presets adapt."""
    table, first = layer_table(family), family.denoisers[0]
    found = {}
    for pattern, shapes in published_layers(family).items():
        for layer in (*family.lora_targets[first], *family.lora_mlp.get(first, ())):
            begin = pattern.removesuffix(f".{pattern_of(layer)}")
            if begin != pattern and pattern.startswith(family.lora_blocks[first]) and len(shapes[0]) == 2:
                found[f"{begin.replace('{}', '0')}.{layer}"] = shapes[0]
    assert all(table.shapes(first, path) for path in found)
    return found


def published_layers(family):
    patterns = layer_entries()[family.name]["components"][family.denoisers[0]]
    return {pattern: sorted(shapes.values()) for pattern, shapes in patterns.items()}


def original_layers(family):
    """Name in the makers' files -> (the paths that it stands for, [out, in])."""
    names = family.original_names or family.layer_names.get(family.denoisers[0])
    layers, named = adapted_layers(family), {}
    for paths, name in (names.fused if names else {}).items():
        paths = [path.format(0) for path in paths]
        if all(path in layers for path in paths):
            outputs = sum(layers[path][0] for path in paths)
            named[name.format(0)] = (paths, [outputs, layers[paths[0]][1]])
    ours = {ours.format(0): theirs.format(0) for ours, theirs in (names.names if names else {}).items()}
    fused = {path for paths, _ in named.values() for path in paths}
    return named | {ours.get(path, path): ([path], shape) for path, shape in layers.items() if path not in fused}


def diffusers_layers(family):
    return {path: ([path], shape) for path, shape in adapted_layers(family).items()}


def pairs(layers, name, endings, alpha):
    """The tensors of layers that add 1 to each weight where alpha is 1, and without an alpha."""
    tensors = {}
    for layer, (_, (outputs, inputs)) in layers.items():
        scale = 1.0 if alpha else 1.0 / RANK
        down, up = torch.ones(RANK, inputs), torch.full((outputs, RANK), scale)
        tensors |= {name(layer) + ending: tensor for ending, tensor in zip(endings, (down, up), strict=True)}
        if alpha:
            tensors[f"{name(layer)}.alpha"] = torch.tensor(1.0)
    return tensors


AB, DOWN_UP = (".lora_A.weight", ".lora_B.weight"), (".lora_down.weight", ".lora_up.weight")
OF_PEFT = (".lora_A.default.weight", ".lora_B.default.weight")
FORMS = {
    "kohya's scripts, musubi-tuner": (original_layers, lambda name: f"lora_unet_{name.replace('.', '_')}", DOWN_UP, 1),
    "ComfyUI, diffusion-pipe": (original_layers, "diffusion_model.{}".format, AB, 0),
    "ComfyUI's trainer": (original_layers, "diffusion_model.{}".format, DOWN_UP, 1),
    "OneTrainer for ComfyUI": (original_layers, "diffusion_model.{}".format, AB, 1),
    "diffusion-pipe for HunyuanVideo": (original_layers, "transformer.{}".format, AB, 0),
    "the makers' own": (original_layers, "{}".format, AB, 0),
    "the makers of Mochi": (original_layers, "{}".format, (".lora_A", ".lora_B"), 0),
    "fal": (original_layers, "base_model.model.{}".format, AB, 0),
    "ai-toolkit": (diffusers_layers, "diffusion_model.{}".format, AB, 0),
    "OneTrainer": (diffusers_layers, "transformer.{}".format, DOWN_UP, 1),
    "OneTrainer before": (diffusers_layers, lambda name: f"lora_transformer_{name.replace('.', '_')}", DOWN_UP, 1),
    "DiffSynth": (diffusers_layers, "{}".format, OF_PEFT, 0),
    "DiffSynth for Wan": (original_layers, "{}".format, OF_PEFT, 0),
    "diffusers' names alone": (diffusers_layers, "{}".format, AB, 0),
    "PEFT": (diffusers_layers, "transformer.{}".format, AB, 0),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_family_reads_every_layer_in_its_strength(form):
    layers_of, name, endings, alpha = FORMS[form]
    for family in map(FAMILIES.get, ADAPTED):
        layers = layers_of(family)
        read = read_layers(HeldFile(pairs(layers, name, endings, alpha)), family)
        assert set(read) == {family.denoisers[0]}, family.name
        found = read[family.denoisers[0]]
        assert {path: [len(of.up), of.down.shape[1]] for path, of in found.items()} == adapted_layers(family), (
            family.name
        )
        for path, layer in found.items():
            change = (layer.up[:1] @ layer.down[:, :1] * layer.alpha / layer.rank).item()
            assert change == pytest.approx(1.0), (family.name, path)


def test_each_families_own_files_are_not_taken_for_those_of_another():
    for name in ADAPTED:
        family = FAMILIES[name]
        for layers_of, prefix in ((diffusers_layers, "transformer."), (original_layers, "diffusion_model.")):
            layers = layers_of(family)
            # for each choice of layers, and each kind of block alone
            for part in {path.rpartition(".")[2] for path in layers} | {path.partition(".")[0] for path in layers}:
                some = {path: of for path, of in layers.items() if part in path}
                file = HeldFile(pairs(some, f"{prefix}{{}}".format, AB, 0), {"family": name})
                check_family(file, family)
                assert candidates(file).best() == name


def test_a_familys_name_in_the_metadata_does_not_hide_that_the_layers_are_of_another():
    tensors = pairs(diffusers_layers(FAMILIES["wan21"]), "transformer.{}".format, AB, 0)
    with pytest.raises(WeightsError, match=r"is a LoRA for .*skyreels_v2.*; choose a LoRA for flux1"):
        check_family(HeldFile(tensors, {"family": "flux1"}), FAMILIES["flux1"])


def test_a_part_that_gets_no_lora_is_named_and_a_layer_that_nobody_knows_is_refused():
    family, told = FAMILIES["wan21"], []
    tensors = pairs(original_layers(family), "diffusion_model.{}".format, AB, 0)
    text = {f"lora_te1_encoder_block_0_layer_0_SelfAttention_q{ending}": torch.ones(2, 2) for ending in DOWN_UP}
    layers = read_layers(HeldFile(tensors | text), family, note=told.append)
    assert len(layers["transformer"]) == len(adapted_layers(family))
    (text,) = told
    assert "no LoRA in Wan 2.1 is left out: 'lora_te1_encoder_block_0_layer_0_SelfAttention_q'" in text
    odd = {f"diffusion_model.blocks.0.self_attn.odd{ending}": torch.ones(2, 2) for ending in AB}
    with pytest.raises(WeightsError, match=r"'diffusion_model\.blocks\.0\.self_attn\.odd' do not belong"):
        read_layers(HeldFile(tensors | odd), family)


def test_an_alpha_of_0_is_the_rank_as_kohyas_scripts_read_it():
    family = FAMILIES["zimage"]
    tensors = pairs(diffusers_layers(family), "diffusion_model.{}".format, DOWN_UP, 1)
    tensors |= {name: torch.tensor(0.0) for name in tensors if name.endswith(".alpha")}
    layers = read_layers(HeldFile(tensors), family)["transformer"]
    assert {layer.alpha for layer in layers.values()} == {float(RANK)}


def test_layers_with_an_alpha_of_0_are_written_in_the_strength_of_one_that_is_the_rank():
    path = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_"
    down, up = torch.ones(RANK, 4), torch.ones(4, RANK)
    layers = {
        "unet": {
            f"{path}{letter}": LoraLayer(down, up, alpha) for letter, alpha in zip("qkv", (0.0, 0.0, 1.0), strict=True)
        }
    }
    read = read_layers(HeldFile(kohya_tensors(layers, FAMILIES["sd15"])), FAMILIES["sd15"])["unet"]
    strengths = {
        path[-1]: (layer.up @ layer.down * layer.alpha / layer.rank)[0, 0].item() for path, layer in read.items()
    }
    assert strengths == {"q": RANK, "k": RANK, "v": 1.0}


def test_float8_is_read_in_a_precision_that_torch_computes_with():
    family = FAMILIES["zimage"]
    tensors = pairs(diffusers_layers(family), "diffusion_model.{}".format, AB, 0)
    small = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in tensors.items()}
    layer = read_layers(HeldFile(small), family)["transformer"]["layers.0.attention.to_q"]
    assert (layer.up @ layer.down)[0, 0] == 1.0


def unfused_layers(family):
    """Of the makers' layers, those that are one layer in diffusers, with their outputs in the same order."""
    names = family.original_names or family.layer_names.get(family.denoisers[0])
    swapped = {path.format(0) for path in names.swapped} if names else ()
    return {name: of for name, of in original_layers(family).items() if len(of[0]) == 1 and of[0][0] not in swapped}


@pytest.mark.parametrize("layers_of", [diffusers_layers, unfused_layers])
@pytest.mark.parametrize("prefix", ["lora_unet_", "lycoris_", "diffusion_model.", "transformer."])
def test_a_lokr_is_read_under_the_names_of_other_programs(prefix, layers_of):
    for family in map(FAMILIES.get, ADAPTED):
        separator = "." if prefix.endswith(".") else "_"
        stems = {paths[0]: prefix + name.replace(".", separator) for name, (paths, _) in layers_of(family).items()}
        tensors = {f"{stem}.{part}": torch.ones(2, 2) for stem in stems.values() for part in ("lokr_w1", "lokr_w2")}
        file = HeldFile(tensors)
        assert is_diffusers(file.shapes, family) is False
        assert set(read_lycoris(file, family)[family.denoisers[0]]) == set(stems), family.name


def test_further_names_of_a_familys_layers_are_read():
    """Such as those of ComfyUI's own model, which its trainer and nodes save."""
    for family in map(FAMILIES.get, ADAPTED):
        names = family.original_names or family.layer_names.get(family.denoisers[0])
        for name, paths in names.also.items() if names else ():
            expected = (paths,) if isinstance(paths, str) else paths
            for form in (f"diffusion_model.{name}", f"lora_unet_{name.replace('.', '_')}"):
                found = layer_table(family).find(form.format(0))
                assert found.paths == tuple(path.format(0) for path in expected), (family.name, form)


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        ("wan21", "blocks.0.attn1.to_q", "diffusion_model.blocks.0.self_attn.q"),
        ("anima", "transformer_blocks.0.attn1.to_q", "diffusion_model.blocks.0.self_attn.q_proj"),
        ("ltx_video", "transformer_blocks.0.attn1.to_q", "diffusion_model.transformer_blocks.0.attn1.to_q"),
        # a part of a fused layer there
        ("hunyuan_video", "transformer_blocks.0.attn.to_q", "transformer.transformer_blocks.0.attn.to_q"),
    ],
)
def test_a_lokr_is_saved_under_a_name_that_comfyui_knows_where_there_is_one(name, path, expected):
    family = FAMILIES[name]
    layer = LycorisLayer("lokr", {"lokr_w1": torch.ones(2, 2), "lokr_w2": torch.ones(2, 2)}, 1.0)
    tensors = file_tensors({"transformer": {path: layer}}, family)
    assert set(tensors) == {f"{expected}.{part}" for part in ("lokr_w1", "lokr_w2", "alpha")}
    assert set(read_lycoris(HeldFile(tensors), family)["transformer"]) == {path}


@pytest.mark.parametrize(
    ("name", "layer", "reason"),
    [
        ("zimage", "layers.0.attention.qkv", r"one adapter for .*to_q, .*which can't be divided"),
        ("mochi", "blocks.0.mlp_x.w1", r"an adapter with the halves of .*proj, which can't be put in diffusers' order"),
    ],
)
def test_a_lokr_of_a_layer_that_is_another_in_diffusers_is_refused(name, layer, reason):
    tensors = {f"diffusion_model.{layer}.{part}": torch.ones(2, 2) for part in ("lokr_w1", "lokr_w2")}
    with pytest.raises(WeightsError, match=rf"{layer}' is {reason}"):
        read_lycoris(HeldFile(tensors), FAMILIES[name])


class Checkpoint(dict):
    """Of a maker, with zeros for the tensors that it lacks."""

    def pop(self, name, default=None):
        return super().pop(name, torch.zeros(6, 2))


@pytest.mark.parametrize(
    ("name", "blocks", "convert"),
    [
        ("mochi", (0, 47), single_file_utils.convert_mochi_transformer_checkpoint_to_diffusers),
        ("auraflow", (0,), single_file_utils.convert_auraflow_transformer_checkpoint_to_diffusers),
    ],
)
def test_the_makers_layers_are_changed_as_diffusers_converts_them(name, blocks, convert):
    names, generator = FAMILIES[name].original_names or FAMILIES[name].layer_names["transformer"], torch.Generator()
    lora, weights = {}, Checkpoint()
    for layer in {*names.names.values(), *names.fused.values()}:
        for block in blocks:
            down, up = torch.randn(RANK, 4, generator=generator), torch.randn(12, RANK, generator=generator)
            weights[f"{layer.format(block)}.weight"] = up @ down
            lora |= {f"diffusion_model.{layer.format(block)}{end}": of for end, of in zip(AB, (down, up), strict=True)}
    read = read_layers(HeldFile(lora), FAMILIES[name])["transformer"]
    changed = {path.removesuffix(".weight"): of for path, of in convert(weights).items() if path.endswith(".weight")}
    changed = {path: change for path, change in changed.items() if change.any()}
    assert len(changed) >= len(blocks) * len(names.names)
    for path, change in changed.items():
        torch.testing.assert_close(read[path].up @ read[path].down, change)


def test_fused_layers_change_a_model_as_their_parts_do(tiny_model, tmp_path):
    pipes = [DiffusionPipeline.from_pretrained(tiny_model("zimage")) for _ in range(3)]
    width = pipes[0].transformer.layers[0].attention.to_q.in_features
    downs, ups = torch.randn(3, RANK, width), torch.randn(3, width, RANK)
    prefix = "layers.0.attention"
    parts = {
        f"transformer.{prefix}.to_{letter}.lora_{half}.weight": tensor
        for letter, down, up in zip("qkv", downs, ups, strict=True)
        for half, tensor in (("A", down), ("B", up))
    }
    fused = {"A": torch.cat(list(downs)), "B": torch.block_diag(*ups)}
    save_tensors(tmp_path / "parts.safetensors", parts)
    save_tensors(
        tmp_path / "fused.safetensors",
        {f"diffusion_model.{prefix}.qkv.lora_{half}.weight": tensor for half, tensor in fused.items()},
    )
    changes = []
    for pipe, name in zip(pipes, ("parts", "fused"), strict=False):
        load_lora(pipe, tmp_path / f"{name}.safetensors")
        pipe.fuse_lora()
        attention = pipe.transformer.layers[0].attention
        changes.append([getattr(attention, f"to_{letter}").get_base_layer().weight.detach() for letter in "qkv"])
    plain = pipes[2].transformer.layers[0].attention
    for letter, one, other in zip("qkv", *changes, strict=True):
        torch.testing.assert_close(other, one)
        assert (one - getattr(plain, f"to_{letter}").weight).abs().max() > 0.1


def test_layers_that_this_model_lacks_are_named_and_the_others_used(tiny_model, tmp_path):
    """A LoRA of Wan 2.1 I2V, whose cross-attention has further layers, in Wan 2.1."""
    pipe, told = DiffusionPipeline.from_pretrained(tiny_model("wan21")), []
    width = pipe.transformer.blocks[0].attn2.to_k.in_features
    tensors = {
        f"diffusion_model.blocks.0.cross_attn.{name}.lora_{half}.weight": torch.ones(
            *((RANK, width) if half == "A" else (width, RANK))
        )
        for name in ("k", "k_img")
        for half in "AB"
    }
    save_tensors(tmp_path / "i2v.safetensors", tensors)
    load_lora(pipe, tmp_path / "i2v.safetensors", told.append)
    assert {name for name, _ in pipe.transformer.named_modules() if name.endswith("lora_A")} == {
        "blocks.0.attn2.to_k.lora_A"
    }
    (text,) = told
    assert "'transformer.blocks.0.attn2.add_k_proj' can't be applied, because this model has no such layer" in text
