"""A pipeline that is loaded for sampling alone."""

import pytest
import torch
from diffusers import DiffusionPipeline

from modules.weights.errors import WeightsError
from modules.weights.load_pipeline import load_pipeline
from modules.weights.lora_layers import EXPERT
from modules.weights.safe import save_tensors

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


def test_a_lora_for_a_pipeline_that_takes_none_is_refused_in_one_sentence(tiny_model, tmp_path):
    layer = "transformer.transformer_blocks.0.attn1.to_q"
    save_tensors(tmp_path / "x.safetensors", {f"{layer}.lora_{half}.weight": torch.ones(2, 2) for half in "AB"})
    with pytest.raises(WeightsError, match=r"x\.safetensors': diffusers can't load LoRAs into a PixArtSigmaPipeline; "):
        load_pipeline(str(tiny_model("pixart_sigma")), {str(tmp_path / "x.safetensors"): 1.0}, torch.device("cpu"))


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
