"""LoRA files: a plain diffusers pipeline that loads one gives what the trained modules give."""

import json

import pytest
import torch
from diffusers import StableDiffusion3Pipeline, StableDiffusionPipeline
from peft import LoraConfig

from modules.weights.errors import WeightsError
from modules.weights.lora_files import load_lora, save_lora
from modules.weights.safe import load_tensors, read_header, save_tensors

ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]
LINEAR_AND_CONV = [
    *ATTENTION, "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out", "conv1", "conv2", "conv_shortcut", "time_emb_proj",
    "downsamplers.0.conv", "upsamplers.0.conv", "conv_in", "conv_out", "linear_1", "linear_2",
]  # fmt: skip
TEXT = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
MODELS = {"sd15": "tiny_sd15", "sd21": "tiny_sd15_v"}


def adapt(module, targets, rank=4, alpha=8, **options):
    """Put a LoRA into a module, with weights as training would leave them: none at zero."""
    module.add_adapter(LoraConfig(r=rank, lora_alpha=alpha, target_modules=targets, **options))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.1)
    return module


def trained(folder, unet_targets, text_targets=(), **options):
    pipe = StableDiffusionPipeline.from_pretrained(folder)
    components = {"unet": adapt(pipe.unet, unet_targets, **options)}
    if text_targets:
        components["text_encoder"] = adapt(pipe.text_encoder, text_targets, **options)
    return pipe, components


def outputs(pipe):
    """What the text encoder and the U-Net give for fixed inputs."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 500, (1, 77), generator=generator)
    latents = torch.randn(1, 4, 16, 24, generator=generator)
    with torch.no_grad():
        text = pipe.text_encoder(ids)[0]
        return text, pipe.unet(latents, 321, encoder_hidden_states=text).sample


def assert_same_outputs(pipe, reference, plain):
    """`pipe` gives what `reference` gives, and each adapted module of it gives something else than that of `plain`."""
    for got, expected in zip(outputs(pipe), outputs(reference), strict=True):
        assert (got - expected).abs().max() <= 1e-5
    text, prediction = (
        (expected - without).abs().max() for expected, without in zip(outputs(reference), outputs(plain), strict=True)
    )
    assert prediction > 1e-2
    assert (text > 1e-2) == hasattr(reference.text_encoder, "peft_config")


CASES = {
    "attention": (ATTENTION, (), {}),
    "alpha below rank": (ATTENTION, TEXT, {"alpha": 1}),
    "linear and conv": (LINEAR_AND_CONV, (), {}),
    "linear and conv and text": (LINEAR_AND_CONV, TEXT, {}),
    "rslora": (ATTENTION, TEXT, {"use_rslora": True}),
    "rank 1": (LINEAR_AND_CONV, TEXT, {"rank": 1}),
    "blocks of another rank": (
        ATTENTION,
        (),
        {"rank_pattern": {"mid_block.*": 2}, "alpha_pattern": {"mid_block.*": 5}},
    ),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("case", CASES)
def test_both_files_load_in_a_plain_diffusers_pipeline(case, model, tmp_path, request):
    folder = request.getfixturevalue(MODELS[model])
    unet_targets, text_targets, options = CASES[case]
    reference, components = trained(folder, unet_targets, text_targets, **options)
    files = save_lora(tmp_path / "my.lora", components, StableDiffusionPipeline, "both")
    assert [file.name for file in files] == ["my.lora.safetensors", "my.lora_kohya.safetensors"]
    plain = StableDiffusionPipeline.from_pretrained(folder)
    for file in files:
        pipe = StableDiffusionPipeline.from_pretrained(folder)
        pipe.load_lora_weights(tmp_path, weight_name=file.name)
        assert_same_outputs(pipe, reference, plain)


@pytest.mark.parametrize("kind", ["diffusers", "single_file"])
def test_load_lora_reads_what_save_lora_wrote(kind, tiny_sd15, tmp_path):
    reference, components = trained(tiny_sd15, LINEAR_AND_CONV, TEXT)
    (file,) = save_lora(tmp_path / "x.safetensors", components, StableDiffusionPipeline, kind)
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    load_lora(pipe, file)
    assert_same_outputs(pipe, reference, StableDiffusionPipeline.from_pretrained(tiny_sd15))


def test_kohya_names_are_those_that_other_tools_look_for(tiny_sd15, tmp_path):
    _, components = trained(tiny_sd15, LINEAR_AND_CONV, TEXT)
    (file,) = save_lora(tmp_path / "x", components, StableDiffusionPipeline, "single_file")
    tensors = load_tensors(file)
    down = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q.lora_down.weight"
    assert tensors[down].shape == (4, 8)
    assert tensors["lora_unet_down_blocks_0_resnets_0_conv1.lora_down.weight"].shape == (4, 8, 3, 3)
    assert tensors["lora_unet_down_blocks_0_resnets_0_conv1.lora_up.weight"].shape == (8, 4, 1, 1)
    assert "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn2_to_out_0.lora_up.weight" in tensors
    assert "lora_te_text_model_encoder_layers_0_self_attn_q_proj.lora_down.weight" in tensors
    alphas = {name: tensor for name, tensor in tensors.items() if name.endswith(".alpha")}
    assert len(alphas) * 3 == len(tensors)
    assert all(alpha.shape == () and alpha.item() == 8.0 for alpha in alphas.values())


def test_the_diffusers_file_tells_alpha_and_no_path_of_this_machine(tiny_sd15, tmp_path):
    _, components = trained(tiny_sd15, ATTENTION, TEXT)
    (file,) = save_lora(
        tmp_path / "x", components, StableDiffusionPipeline, dtype=torch.float16, metadata={"trigger": "cat"}
    )
    header = read_header(file)
    metadata = header.pop("__metadata__")
    adapters = json.loads(metadata["lora_adapter_metadata"])
    assert metadata["trigger"] == "cat"
    assert (adapters["unet.r"], adapters["unet.lora_alpha"], adapters["text_encoder.lora_alpha"]) == (4, 8, 8)
    assert str(tiny_sd15) not in json.dumps(metadata)
    assert {entry["dtype"] for entry in header.values()} == {"F16"}
    assert any(name.startswith("text_encoder.text_model.encoder.layers.0.") for name in header)


def test_dora_goes_into_the_diffusers_format_only(tiny_sd15, tmp_path):
    reference, components = trained(tiny_sd15, ATTENTION, use_dora=True)
    with pytest.raises(WeightsError, match=r"DoRA on 'unet'.*diffusers format"):
        save_lora(tmp_path / "x", components, StableDiffusionPipeline, "both")
    assert list(tmp_path.iterdir()) == []
    (file,) = save_lora(tmp_path / "x", components, StableDiffusionPipeline)
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    load_lora(pipe, file)
    assert_same_outputs(pipe, reference, StableDiffusionPipeline.from_pretrained(tiny_sd15))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tiny_sd15, tmp_path, monkeypatch):
    _, components = trained(tiny_sd15, ATTENTION)
    (file,) = save_lora(tmp_path / "x", components, StableDiffusionPipeline)
    before = file.read_bytes()

    def fail(tensors, filename, metadata):
        filename.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(OSError, match="No space"):
        save_lora(tmp_path / "x", components, StableDiffusionPipeline)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def sd3_outputs(pipe):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        return pipe.transformer(
            torch.randn(1, 4, 16, 24, generator=generator),
            encoder_hidden_states=torch.randn(1, 5, 64, generator=generator),
            pooled_projections=torch.randn(1, 64, generator=generator),
            timestep=torch.tensor([500.0]),
        ).sample


def test_an_sd3_lora_loads_in_a_plain_diffusers_pipeline(tiny_sd3, tmp_path):
    reference = StableDiffusion3Pipeline.from_pretrained(tiny_sd3)
    targets = ["attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "attn.add_q_proj", "attn.add_k_proj"]
    components = {
        "transformer": adapt(reference.transformer, targets),
        "text_encoder": adapt(reference.text_encoder, TEXT[:4]),
    }
    with pytest.raises(WeightsError, match=r"StableDiffusion3Pipeline can't be written in kohya's format"):
        save_lora(tmp_path / "x", components, StableDiffusion3Pipeline, "both")
    (file,) = save_lora(tmp_path / "x", components, StableDiffusion3Pipeline)
    pipe = StableDiffusion3Pipeline.from_pretrained(tiny_sd3)
    plain = sd3_outputs(pipe)
    load_lora(pipe, file)
    assert (sd3_outputs(pipe) - sd3_outputs(reference)).abs().max() <= 1e-5
    assert (sd3_outputs(pipe) - plain).abs().max() > 1e-2
    ids = torch.arange(77)[None]
    with torch.no_grad():
        assert torch.allclose(pipe.text_encoder(ids)[0], reference.text_encoder(ids)[0], atol=1e-5)


def test_a_lora_of_another_kind_of_model_is_refused_and_changes_nothing(tiny_sd15, tiny_sd3, tmp_path):
    sd3 = StableDiffusion3Pipeline.from_pretrained(tiny_sd3)
    components = {"transformer": adapt(sd3.transformer, ["attn.to_q"])}
    (file,) = save_lora(tmp_path / "x", components, StableDiffusion3Pipeline)
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    with pytest.raises(WeightsError, match=r"x\.safetensors': was made for another kind of model.*choose a LoRA"):
        load_lora(pipe, file)
    assert not hasattr(pipe.unet, "peft_config")


@pytest.mark.parametrize("kind", ["diffusers", "single_file"])
def test_a_lora_of_a_wider_model_is_refused(kind, tiny_sd15, tmp_path):
    _, components = trained(tiny_sd15, ATTENTION)
    (file,) = save_lora(tmp_path / "x", components, StableDiffusionPipeline, kind)
    wider = {
        name: torch.zeros(tensor.shape[0], 99)
        if "attn2_to_k.lora_down" in name or "attn2.to_k.lora_A" in name
        else tensor
        for name, tensor in load_tensors(file).items()
    }
    save_tensors(file, wider)
    with pytest.raises(WeightsError, match=r"attn2.to_k' does not fit a StableDiffusionPipeline"):
        load_lora(StableDiffusionPipeline.from_pretrained(tiny_sd15), file)


def test_a_file_that_is_no_lora_is_refused(tiny_sd15, tmp_path):
    save_tensors(tmp_path / "x.safetensors", {"conv_in.weight": torch.ones(1)})
    with pytest.raises(WeightsError, match="is not a LoRA"):
        load_lora(StableDiffusionPipeline.from_pretrained(tiny_sd15), tmp_path / "x.safetensors")


def test_the_dropout_of_the_training_is_not_passed_on(tiny_sd15, tmp_path):
    reference, components = trained(tiny_sd15, ATTENTION, TEXT, lora_dropout=0.5)
    for module in components.values():
        module.eval()
    (file,) = save_lora(tmp_path / "x", components, StableDiffusionPipeline)
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    pipe.load_lora_weights(tmp_path, weight_name=file.name)
    assert_same_outputs(pipe, reference, StableDiffusionPipeline.from_pretrained(tiny_sd15))
