"""LoRA and DoRA on a quantized base model train exactly as on one with the dequantized weights."""

import pytest
import torch

from modules.config.errors import UserError
from modules.config.quantizations import QUANTIZATIONS
from modules.layers.QuantizedLinear import QuantizedLinear
from modules.methods.lora import MAGNITUDE
from modules.weights.lora_files import AdaptedModel, save_lora
from tests.support.prepared import prepared
from tests.support.short_training import train

PARTS = ("unet", "text_encoder")


def attached(folder, quantization, **lora):
    return prepared(
        folder,
        "lora",
        model={"denoiser_quantization": quantization, "text_encoder_quantization": quantization},
        text_encoder={"train": True},
        lora={"targets": "linear", "rank": 4, "alpha": 4.0, **lora},
    )


# That each format computes as its dequantized weight is for tests/layers/test_quantized_linear.py. DoRA also reads the
# weight itself, whose shape differs in nf4.
@pytest.mark.parametrize(("quantization", "dora"), [("int8", False), ("nf4", True)])
def test_adapters_train_as_on_the_dequantized_weights(quantization, dora, tiny_sd15):
    if package := QUANTIZATIONS[quantization].package:
        pytest.importorskip(package, reason="an optional package")
    base, config = attached(tiny_sd15, quantization, dora=dora)
    plain, _ = attached(tiny_sd15, "none", dora=dora)
    for part in PARTS:
        module, twin = base.module(part), plain.module(part)
        magnitudes = {name: value for name, value in module.named_parameters() if MAGNITUDE in name}
        for name, layer in module.named_modules():
            if isinstance(layer, QuantizedLinear):
                twin.get_submodule(name).weight.data.copy_(layer.dequantize())
                if dora:
                    magnitude = magnitudes[name.replace("base_layer", f"{MAGNITUDE}.default.weight")]
                    torch.testing.assert_close(magnitude.flatten(), layer.dequantize().norm(dim=1))
        trained = {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}
        assert trained.keys() == {name for name, value in twin.named_parameters() if value.requires_grad}
        twin.load_state_dict(trained, strict=False)
    torch.testing.assert_close(train(base, config), train(plain, config))


def test_a_lora_continues_on_a_quantized_base_and_one_for_another_model_is_refused(tiny_sd15, tiny_sd15_v, tmp_path):
    for name, folder in (("own", tiny_sd15), ("other", tiny_sd15_v)):
        base, _ = attached(folder, "none")
        save_lora(tmp_path / name, AdaptedModel({part: base.module(part) for part in PARTS}, type(base.pipe)))
    attached(tiny_sd15, "nf4", start_from=str(tmp_path / "own.safetensors"))
    with pytest.raises(UserError, match="was made for a different model"):
        attached(tiny_sd15, "nf4", start_from=str(tmp_path / "other.safetensors"))
