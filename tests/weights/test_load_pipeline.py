"""A pipeline that is loaded for sampling alone."""

import shutil

import pytest
import torch
from diffusers import CogVideoXDDIMScheduler, DDPMScheduler, DiffusionPipeline, PixArtSigmaPipeline
from torch.nn.functional import linear

from modules.families.prediction import objective_of
from modules.families.registry import FAMILIES
from modules.methods.lora_tools import merge_into_model
from modules.weights.errors import WeightsError
from modules.weights.inspect import check_fits, inspect_base
from modules.weights.kohya_names import kohya_name
from modules.weights.load_pipeline import load_pipeline
from modules.weights.lora_files import load_lora
from modules.weights.LoraSource import EXPERT
from modules.weights.safe import save_tensors
from tests.support.planted_folders import edit_json
from tests.support.tiny_models.parts import SD_BETAS

UNET = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
TEXT = "text_encoder.text_model.encoder.layers.0.self_attn.q_proj"
FIRST, SECOND = "transformer.blocks.0.attn1.to_q", "transformer_2.blocks.0.attn1.to_q"
LORAS = {
    "one also of the text encoder": ("sd15", [(UNET,), (UNET, TEXT)]),
    "one of the text encoder alone": ("sd15", [(UNET,), (TEXT,)]),
    "one of each expert": ("wan22_a14b", [(FIRST,), (SECOND,)]),
}


@pytest.mark.parametrize("case", LORAS)
def test_every_lora_has_its_own_strength_in_all_components(case, tiny_model, tmp_path):
    family, parts = LORAS[case]
    plain = DiffusionPipeline.from_pretrained(tiny_model(family))
    loras, expected = {}, {}
    torch.manual_seed(0)
    for number, (layers, strength) in enumerate(zip(parts, (1.0, 0.25), strict=True)):
        file, tensors = tmp_path / f"{number}.safetensors", {}
        for layer in layers:
            weight = module_of(plain, layer).weight.detach()
            down, up = torch.randn(2, weight.shape[1]), torch.randn(len(weight), 2)
            named = layer.replace("transformer_2.", "transformer.")  # as both experts are called in their files
            tensors |= {f"{named}.lora_A.weight": down, f"{named}.lora_B.weight": up}
            expected[layer] = expected.get(layer, weight) + strength * up @ down
        save_tensors(file, tensors, {EXPERT: "transformer_2"} if layers == (SECOND,) else None)
        loras[str(file)] = strength
    pipe = load_pipeline(str(tiny_model(family)), loras, torch.device("cpu"))
    for layer, weight in expected.items():
        adapted = module_of(pipe, layer)
        adapted.merge()
        torch.testing.assert_close(adapted.get_base_layer().weight, weight)


@pytest.mark.parametrize("kinds", [("lora", "lokr"), ("lokr", "lora"), ("lokr", "lokr"), ("loha", "lokr", "lora")])
def test_adapters_of_all_kinds_add_up_on_one_layer_and_are_merged(kinds, tiny_sd15, tmp_path):
    plain = DiffusionPipeline.from_pretrained(tiny_sd15)
    torch.manual_seed(0)
    files, expected = {}, {layer: module_of(plain, layer).weight.detach() for layer in (UNET, TEXT)}
    for number, kind in enumerate(kinds):
        file, strength, tensors = tmp_path / f"{number}.safetensors", 1 - number / 4, {}
        for layer, weight in expected.items():
            parts, change = adapter(kind, *weight.shape)
            component, _, path = layer.partition(".")
            name = f"{component}.{path}" if kind == "lora" else kohya_name(FAMILIES["sd15"], component, path)
            tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
            expected[layer] = weight + strength * change
        save_tensors(file, tensors)
        files[str(file)] = strength
    pipe = load_pipeline(str(tiny_sd15), files, torch.device("cpu"))
    for layer, weight in expected.items():
        inputs, bias = torch.randn(3, weight.shape[1]), module_of(plain, layer).bias
        torch.testing.assert_close(module_of(pipe, layer)(inputs), linear(inputs, weight, bias), rtol=1e-4, atol=1e-4)
    merge_into_model(str(tiny_sd15), files, tmp_path / "merged")
    merged = DiffusionPipeline.from_pretrained(tmp_path / "merged")
    for layer, weight in expected.items():
        torch.testing.assert_close(module_of(merged, layer).weight, weight, rtol=1e-4, atol=1e-4)


def adapter(kind, outputs, inputs):
    """The tensors of a layer's adapter, and what it adds to the weight."""
    if kind == "lora":
        down, up = torch.randn(2, inputs), torch.randn(outputs, 2)
        return {"lora_A.weight": down, "lora_B.weight": up}, up @ down
    if kind == "lokr":
        first, second = torch.randn(2, 2), torch.randn(outputs // 2, inputs // 2)
        return {"lokr_w1": first, "lokr_w2": second}, torch.kron(first, second)
    parts = {
        f"hada_w{number}_{part}": torch.randn(shape)
        for number in (1, 2)
        for part, shape in (("a", (outputs, 2)), ("b", (2, inputs)))
    }
    products = [parts[f"hada_w{number}_a"] @ parts[f"hada_w{number}_b"] for number in (1, 2)]
    return parts, products[0] * products[1]


def test_a_lora_for_a_pipeline_that_takes_none_is_refused_in_one_sentence(tiny_model, tmp_path):
    class Unknown(PixArtSigmaPipeline):
        """Of no family, and without a loader of its own."""

    layer = "transformer.transformer_blocks.0.attn1.to_q"
    save_tensors(tmp_path / "x.safetensors", {f"{layer}.lora_{half}.weight": torch.ones(2, 2) for half in "AB"})
    with pytest.raises(WeightsError, match=r"x\.safetensors': diffusers can't load LoRAs into a Unknown; "):
        load_lora(Unknown.from_pretrained(tiny_model("pixart_sigma")), tmp_path / "x.safetensors")


def module_of(pipe, layer):
    component, _, path = layer.partition(".")
    return getattr(pipe, component).get_submodule(path.removeprefix("text_model."))


def test_a_denoiser_is_adapted_as_in_training(tiny_model):
    """Without it, diffusers would add the mask of zeros and ones to the logits, and no token would be masked."""
    pipe = load_pipeline(str(tiny_model("chroma")), {}, torch.device("cpu"))
    with torch.no_grad():
        text, _, mask, *_ = pipe.encode_prompt(["a cat"], do_classifier_free_guidance=False)
        image = torch.ones(1, 4, 16)
        call = {"hidden_states": image, "timestep": torch.ones(1), "img_ids": torch.zeros(4, 3)}
        call |= {"txt_ids": torch.zeros(text.shape[1], 3), "attention_mask": torch.cat([mask, torch.ones(1, 4)], dim=1)}
        predicted = pipe.transformer(encoder_hidden_states=text, **call)[0]
        changed = text + (mask == 0).unsqueeze(-1)
        assert (pipe.transformer(encoder_hidden_states=changed, **call)[0] - predicted).abs().max() <= 1e-6


def test_a_folder_of_cogvideox_fun_by_its_makers_is_loaded_as_they_have_trained_it(tiny_model, tmp_path):
    folder, scheduler = tmp_path / "base", "CogVideoXDDIMScheduler"
    shutil.copytree(tiny_model("cogvideox_fun"), folder)
    edit_json(folder / "model_index.json", _class_name="CogVideoXPipeline", scheduler=["diffusers", scheduler])
    CogVideoXDDIMScheduler(**SD_BETAS, snr_shift_scale=3.0).save_pretrained(folder / "scheduler")
    pipe = load_pipeline(folder, {}, torch.device("cpu"))
    assert type(pipe).__name__ == "CogVideoXFunControlPipeline"
    objective = objective_of(FAMILIES["cogvideox_fun"], pipe.scheduler.config)
    assert torch.equal(objective.alphas_cumprod, DDPMScheduler(**SD_BETAS).alphas_cumprod)
    edit_json(folder / "transformer" / "config.json", in_channels=9)
    with pytest.raises(WeightsError, match="CogVideoX-Fun InP"):
        check_fits(str(folder), inspect_base(str(folder)), FAMILIES["cogvideox"])
