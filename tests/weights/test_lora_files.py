"""LoRA files: a plain diffusers pipeline that loads one gives what the trained modules give."""

import functools
import json

import pytest
import torch
from diffusers import FluxPipeline, StableDiffusion3Pipeline, StableDiffusionPipeline, StableDiffusionXLPipeline
from peft import LoraConfig

from modules.families.registry import FAMILIES
from modules.families.sd15 import SD15
from modules.weights.convert import convert
from modules.weights.errors import WeightsError
from modules.weights.kohya_names import diffusers_name, kohya_name
from modules.weights.lora_family import candidates
from modules.weights.lora_files import AdaptedModel, load_lora, save_lora
from modules.weights.lora_layers import ADAPTER_METADATA, LoraMetadata
from modules.weights.lora_reading import read_layers
from modules.weights.LoraSource import LoraSource
from modules.weights.norm_layers import is_norm
from modules.weights.safe import load_tensors, read_header, save_tensors

ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]
LINEAR_AND_CONV = [
    *ATTENTION, "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out", "conv1", "conv2", "conv_shortcut", "time_emb_proj",
    "downsamplers.0.conv", "upsamplers.0.conv", "conv_in", "conv_out", "linear_1", "linear_2",
]  # fmt: skip
TEXT = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]


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


# What differs in the 2.x build, layers around attention that are linear, does not depend on ranks and scales.
@pytest.mark.parametrize(
    ("case", "model"), [*((case, "tiny_sd15") for case in CASES), ("linear and conv and text", "tiny_sd15_v")]
)
def test_both_files_load_in_a_plain_diffusers_pipeline(case, model, tmp_path, request):
    folder = request.getfixturevalue(model)
    unet_targets, text_targets, options = CASES[case]
    reference, components = trained(folder, unet_targets, text_targets, **options)
    files = save_lora(tmp_path / "my.lora", AdaptedModel(components, StableDiffusionPipeline), "both")
    assert [file.name for file in files] == ["my.lora.safetensors", "my.lora_kohya.safetensors"]
    plain = StableDiffusionPipeline.from_pretrained(folder)
    for file in files:
        pipe = StableDiffusionPipeline.from_pretrained(folder)
        pipe.load_lora_weights(tmp_path, weight_name=file.name)
        assert_same_outputs(pipe, reference, plain)


@pytest.mark.parametrize("kind", ["diffusers", "single_file"])
def test_load_lora_reads_what_save_lora_wrote(kind, tiny_sd15, tmp_path):
    reference, components = trained(tiny_sd15, LINEAR_AND_CONV, TEXT)
    (file,) = save_lora(tmp_path / "x.safetensors", AdaptedModel(components, StableDiffusionPipeline), kind)
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    load_lora(pipe, file)
    assert_same_outputs(pipe, reference, StableDiffusionPipeline.from_pretrained(tiny_sd15))


def test_kohya_names_are_those_that_other_tools_look_for(tiny_sd15, tmp_path):
    _, components = trained(tiny_sd15, LINEAR_AND_CONV, TEXT)
    (file,) = save_lora(tmp_path / "x", AdaptedModel(components, StableDiffusionPipeline), "single_file")
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
        tmp_path / "x",
        AdaptedModel(components, StableDiffusionPipeline),
        dtype=torch.float16,
        metadata=LoraMetadata({"trigger": "cat"}),
    )
    header = read_header(file)
    metadata = header.pop("__metadata__")
    adapters = json.loads(metadata["lora_adapter_metadata"])
    assert metadata["trigger"] == "cat"
    assert (adapters["unet.r"], adapters["unet.lora_alpha"], adapters["text_encoder.lora_alpha"]) == (4, 8, 8)
    assert str(tiny_sd15) not in json.dumps(metadata)
    assert {entry["dtype"] for entry in header.values()} == {"F16"}
    assert any(name.startswith("text_encoder.text_model.encoder.layers.0.") for name in header)


@pytest.mark.parametrize("kind", ["diffusers", "single_file"])
def test_dora_is_written_and_read_in_both_formats(kind, tiny_sd15, tmp_path):
    reference, components = trained(tiny_sd15, LINEAR_AND_CONV, TEXT, use_dora=True)
    with torch.no_grad():
        for name, parameter in components["unet"].named_parameters():
            if "magnitude" in name:
                parameter.mul_(1.5)
    (file,) = save_lora(tmp_path / "x", AdaptedModel(components, StableDiffusionPipeline), kind)
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    load_lora(pipe, file)
    assert_same_outputs(pipe, reference, StableDiffusionPipeline.from_pretrained(tiny_sd15))
    if kind == "single_file":
        # one norm per output, as of the adapted weight's rows: [out, 1] and [out, 1, 1, 1]
        tensors = load_tensors(file)
        block = "lora_unet_down_blocks_0"
        assert tensors[f"{block}_attentions_0_transformer_blocks_0_attn1_to_q.dora_scale"].shape == (8, 1)
        assert tensors[f"{block}_resnets_0_conv1.dora_scale"].shape == (8, 1, 1, 1)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tiny_sd15, tmp_path, monkeypatch):
    _, components = trained(tiny_sd15, ATTENTION)
    (file,) = save_lora(tmp_path / "x", AdaptedModel(components, StableDiffusionPipeline))
    before = file.read_bytes()

    def fail(tensors, filename, metadata):
        filename.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(OSError, match="No space"):
        save_lora(tmp_path / "x", AdaptedModel(components, StableDiffusionPipeline))
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


LARGER = {
    "sdxl": ("tiny_sdxl", StableDiffusionXLPipeline),
    "sd3": ("tiny_sd3", StableDiffusion3Pipeline),
}
MMDIT = ["attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "attn.add_q_proj", "ff.net.0.proj", "ff_context.net.2"]


def trained_larger(model, request, unet=LINEAR_AND_CONV, **options):
    """(folder, pipeline class, pipe, adapted components): every part that the family can adapt. unet: its layers."""
    fixture, pipeline = LARGER[model]
    folder = request.getfixturevalue(fixture)
    pipe = pipeline.from_pretrained(folder)
    denoiser, targets = ("transformer", MMDIT) if pipeline is StableDiffusion3Pipeline else ("unet", unet)
    wanted = {denoiser: targets, "text_encoder": TEXT, "text_encoder_2": TEXT}
    components = {name: adapt(getattr(pipe, name), parts, **options) for name, parts in wanted.items()}
    return folder, pipeline, pipe, components


@pytest.fixture(scope="module")
def larger_files(tmp_path_factory, request):
    """Returns a function: model -> (its adapted components, the file of diffusers, that of kohya). Read only."""

    @functools.cache
    def write(model):
        _, pipeline, _, components = trained_larger(model, request)
        return set(components), *save_lora(
            tmp_path_factory.mktemp(model) / "x",
            AdaptedModel(components, pipeline),
            "both",
            metadata=LoraMetadata({"family": model}),
        )

    return write


def picture(pipe):
    pipe.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(5)
    options = {"width": 48, "height": 32, "num_inference_steps": 3, "output_type": "pt", "generator": generator}
    return pipe("a photo of a cat", guidance_scale=3.0, **options).images


# Which layers have DoRA does not depend on the family, and PEFT takes long for many. That plain diffusers reads its own
# format is for tests/families/test_conformance.py, of every family.
@pytest.mark.parametrize("options", [{}, {"use_dora": True, "unet": ATTENTION}], ids=["plain", "dora"])
@pytest.mark.parametrize("model", LARGER)
def test_a_lora_of_the_larger_families_gives_a_plain_pipeline_our_picture(model, options, tmp_path, request):
    folder, pipeline, reference, components = trained_larger(model, request, **options)
    ours, without = picture(reference), picture(pipeline.from_pretrained(folder))
    assert (ours - without).abs().max() > 1e-2
    for file in save_lora(tmp_path / "x", AdaptedModel(components, pipeline), "both"):
        pipe = pipeline.from_pretrained(folder)
        load_lora(pipe, file)
        assert (picture(pipe) - ours).abs().max() <= 1e-5
        if "kohya" in file.name and model == "sdxl" and not options:  # diffusers reads none for SD 3, and no DoRA
            pipe = pipeline.from_pretrained(folder)
            pipe.load_lora_weights(tmp_path, weight_name=file.name)
            assert (picture(pipe) - ours).abs().max() <= 1e-5


@pytest.mark.parametrize("model", LARGER)
def test_both_formats_hold_the_same_layers_tensor_by_tensor(model, larger_files):
    components, *files = larger_files(model)
    of_diffusers, of_kohya = (read_layers(file, FAMILIES[model]) for file in files)
    assert {name: set(layers) for name, layers in of_kohya.items()} == {n: set(ls) for n, ls in of_diffusers.items()}
    assert set(of_kohya) == components
    for component, layers in of_diffusers.items():
        for path, layer in layers.items():
            other = of_kohya[component][path]
            assert torch.equal(layer.down, other.down)
            assert torch.equal(layer.up, other.up)
            assert layer.alpha == other.alpha == 8.0


def test_the_names_for_sdxl_are_those_of_its_single_file(larger_files):
    *_, file = larger_files("sdxl")
    names = set(load_tensors(file))
    for layer in (
        "lora_unet_input_blocks_1_0_in_layers_2",
        "lora_unet_input_blocks_3_0_op",
        "lora_unet_input_blocks_4_1_transformer_blocks_0_attn2_to_k",
        "lora_unet_input_blocks_8_1_transformer_blocks_1_ff_net_0_proj",
        "lora_unet_input_blocks_5_1_proj_in",
        "lora_unet_middle_block_1_transformer_blocks_1_attn1_to_out_0",
        "lora_unet_middle_block_2_emb_layers_1",
        "lora_unet_output_blocks_2_2_conv",
        "lora_unet_output_blocks_3_0_skip_connection",
        "lora_te1_text_model_encoder_layers_0_self_attn_q_proj",
        "lora_te2_text_model_encoder_layers_2_mlp_fc1",
    ):
        assert f"{layer}.lora_down.weight" in names
        assert f"{layer}.alpha" in names


def test_the_names_for_sd3_are_those_that_comfyui_looks_for(larger_files):
    *_, file = larger_files("sd3")
    names = set(load_tensors(file))
    for layer in (
        "lora_transformer_transformer_blocks_0_attn_add_q_proj",
        "lora_transformer_transformer_blocks_1_attn_to_out_0",
        "lora_transformer_transformer_blocks_0_ff_context_net_2",
        "lora_te1_text_model_encoder_layers_0_self_attn_q_proj",
        "lora_te2_text_model_encoder_layers_2_mlp_fc2",
    ):
        assert f"{layer}.lora_up.weight" in names


def test_every_layers_name_in_kohyas_format_leads_back_to_it(request):
    for model, (fixture, pipeline) in LARGER.items():
        family, pipe = FAMILIES[model], pipeline.from_pretrained(request.getfixturevalue(fixture))
        for component in family.kohya_prefixes:
            for path, layer in getattr(pipe, component).named_modules():
                if path and (isinstance(layer, (torch.nn.Linear, torch.nn.Conv2d)) or is_norm(layer)):
                    assert diffusers_name(family, kohya_name(family, component, path)) == (component, path)


def test_layers_of_unlike_alphas_are_read_each_with_its_own(tiny_sd15, tmp_path):
    reference, components = trained(tiny_sd15, ATTENTION)
    (file,) = save_lora(tmp_path / "x", AdaptedModel(components, StableDiffusionPipeline), "single_file")
    tensors = load_tensors(file)
    layer = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn2_to_k"
    tensors[f"{layer}.alpha"] *= 0.5
    tensors[f"{layer}.lora_up.weight"] *= 2
    save_tensors(file, tensors)
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    load_lora(pipe, file)
    assert_same_outputs(pipe, reference, StableDiffusionPipeline.from_pretrained(tiny_sd15))


KNOWN = {
    "1.x of diffusers": ({"unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_k.lora_A.weight": 768}, "sd15"),
    "2.x of kohya": (
        {"lora_unet_mid_block_attentions_0_transformer_blocks_0_attn2_to_v.lora_down.weight": 1024},
        "sd15",
    ),
    "1.x without text": ({"lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight": 320}, "sd15"),
    "XL or Kolors": ({"unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_k.lora_A.weight": 2048}, None),
    "XL of kohya": ({"lora_unet_output_blocks_3_1_proj_in.lora_down.weight": 640}, "sdxl"),
    "XL or Kolors without text": (
        {"unet.mid_block.attentions.0.transformer_blocks.1.attn1.to_q.lora_A.weight": 1280},
        None,
    ),
    "3 of diffusers": ({"transformer.transformer_blocks.12.attn.to_q.lora_A.weight": 1536}, "sd3"),
    "blocks that 3 and Motif-Video have": ({"transformer.transformer_blocks.11.attn.to_q.lora_A.weight": 1536}, None),
    "more blocks than any has": ({"transformer.transformer_blocks.99.attn.to_q.lora_A.weight": 1536}, None),
    "3 of OneTrainer": ({"lora_transformer_transformer_blocks_0_attn_to_q.lora_down.weight": 2432}, "sd3"),
    "FLUX": ({"transformer.transformer_blocks.0.attn.to_q.lora_A.weight": 3072}, None),
    "FLUX, single": ({"transformer.single_transformer_blocks.0.attn.to_q.lora_A.weight": 8}, None),
    "3 of kohya's scripts": (
        {
            "lora_te2_text_model_encoder_layers_0_mlp_fc1.lora_down.weight": 1280,
            "lora_unet_joint_blocks_0_x_block_attn_qkv.lora_down.weight": 1536,
        },
        "sd3",
    ),
    "FLUX of kohya": (
        {
            "lora_te2_text_model_encoder_layers_0_mlp_fc1.lora_down.weight": 1280,
            "lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight": 3072,
        },
        None,
    ),
    "HunyuanVideo of ComfyUI": (
        {
            "diffusion_model.double_blocks.0.img_attn_qkv.lora_A.weight": 3072,
            "diffusion_model.single_blocks.0.linear2.lora_A.weight": 15360,
        },
        "hunyuan_video",
    ),
    "HunyuanVideo of its makers": ({"double_blocks.0.txt_mlp.fc1.lora_A.weight": 3072}, "hunyuan_video"),
    "HunyuanImage of its makers": ({"double_blocks.0.txt_mlp.fc1.lora_A.weight": 3584}, "hunyuan_image"),
    "a wider model with such names": ({"double_blocks.0.txt_mlp.fc1.lora_A.weight": 4096}, None),
    "single blocks alone, of FLUX or HunyuanVideo": (
        {"diffusion_model.single_blocks.0.linear1.lora_A.weight": 3072},
        None,
    ),
    "FLUX of ComfyUI": ({"diffusion_model.double_blocks.0.img_attn.qkv.lora_A.weight": 3072}, None),
    "Anima of ComfyUI": (
        {
            "diffusion_model.blocks.0.cross_attn.k_proj.lora_A.weight": 1024,
            "diffusion_model.blocks.0.cross_attn.q_proj.lora_A.weight": 2048,
        },
        "anima",
    ),
    "Anima, MLPs alone": ({"diffusion_model.blocks.0.mlp.layer1.lora_A.weight": 2048}, "anima"),
    "the larger Cosmos": ({"diffusion_model.blocks.0.self_attn.q_proj.lora_A.weight": 5120}, None),
    "Wan of ComfyUI": ({"diffusion_model.blocks.0.self_attn.q.lora_A.weight": 2048}, None),
    "text alone": ({"lora_te2_text_model_encoder_layers_0_mlp_fc1.lora_down.weight": 1280}, None),
}


@pytest.mark.parametrize("case", KNOWN)
def test_the_family_of_a_lora_is_known_by_its_names_and_shapes(case, tmp_path):
    shapes, expected = KNOWN[case]
    save_tensors(tmp_path / "x.safetensors", {name: torch.zeros(4, width) for name, width in shapes.items()})
    assert candidates(LoraSource(tmp_path / "x.safetensors")).best() == expected


def test_a_form_that_only_diffusers_knows_is_left_to_it(tiny_model, tmp_path):
    layer = "lora_unet_double_blocks_0_img_attn_proj"  # as kohya's scripts name those of FLUX.1
    shapes = {f"{layer}.lora_down.weight": (4, 32), f"{layer}.lora_up.weight": (32, 4)}
    save_tensors(tmp_path / "x.safetensors", {name: torch.randn(shape) for name, shape in shapes.items()})
    pipe = FluxPipeline.from_pretrained(tiny_model("flux1"))
    load_lora(pipe, tmp_path / "x.safetensors")
    adapted = {name for name, _ in pipe.transformer.named_modules() if name.endswith("lora_A.default_0")}
    assert adapted == {"transformer_blocks.0.attn.to_out.0.lora_A.default_0"}


def test_a_file_in_an_unknown_form_that_fits_nothing_is_refused_by_what_loading_it_changed(tiny_sd15, tmp_path):
    tensors = {f"diffusion_model.blocks.0.attn.lora_{half}.weight": torch.zeros(4, 4) for half in "AB"}
    save_tensors(tmp_path / "x.safetensors", tensors)
    with pytest.raises(
        WeightsError, match=r"layers 'diffusion_model\.blocks\.0\.attn' do not belong to a LoRA for sd15"
    ):
        load_lora(StableDiffusionPipeline.from_pretrained(tiny_sd15), tmp_path / "x.safetensors")


@pytest.mark.parametrize("model", LARGER)
def test_what_was_written_is_refused_by_another_family(model, larger_files, tiny_sd15):
    _, *files = larger_files(model)
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    for file in files:
        with pytest.raises(WeightsError, match=rf"is a LoRA for .*{model}.*; choose a LoRA for sd15\.$"):
            load_lora(pipe, file)


def test_a_lora_of_another_kind_of_model_is_refused_and_changes_nothing(tiny_sd15, tiny_sd3, tmp_path):
    sd3 = StableDiffusion3Pipeline.from_pretrained(tiny_sd3)
    components = {"transformer": adapt(sd3.transformer, ["attn.to_q"])}
    (file,) = save_lora(tmp_path / "x", AdaptedModel(components, StableDiffusion3Pipeline))
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    with pytest.raises(WeightsError, match=r"x\.safetensors': is a LoRA for .*; choose a LoRA for sd15\.$"):
        load_lora(pipe, file)
    assert not hasattr(pipe.unet, "peft_config")


@pytest.mark.parametrize("kind", ["diffusers", "single_file"])
def test_a_lora_of_a_wider_model_is_refused(kind, tiny_sd15, tmp_path):
    _, components = trained(tiny_sd15, ATTENTION)
    (file,) = save_lora(tmp_path / "x", AdaptedModel(components, StableDiffusionPipeline), kind)
    wider = {
        name: torch.zeros(tensor.shape[0], 99)
        if "attn2_to_k.lora_down" in name or "attn2.to_k.lora_A" in name
        else tensor
        for name, tensor in load_tensors(file).items()
    }
    save_tensors(file, wider)
    with pytest.raises(WeightsError, match=r"attn2.to_k' does not fit this one"):
        load_lora(StableDiffusionPipeline.from_pretrained(tiny_sd15), file)


def test_a_file_that_is_no_lora_is_refused(tiny_sd15, tmp_path):
    save_tensors(tmp_path / "x.safetensors", {"conv_in.weight": torch.ones(1)})
    with pytest.raises(WeightsError, match="is not a LoRA"):
        load_lora(StableDiffusionPipeline.from_pretrained(tiny_sd15), tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    "settings", ['{"unet.alpha_pattern": null}', '{"unet.alpha_pattern": {"(": 1}}', '{"unet.lora_alpha": "x"}', "[1]"]
)
def test_damaged_settings_are_refused_in_one_sentence(settings, tiny_sd15, tmp_path):
    path, layer = tmp_path / "x.safetensors", "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    width = pipe.unet.get_submodule(layer.removeprefix("unet.")).in_features
    halves = {"A": torch.ones(2, width), "B": torch.ones(width, 2)}
    tensors = {f"{layer}.lora_{half}.weight": tensor for half, tensor in halves.items()}
    save_tensors(path, tensors, {ADAPTER_METADATA: settings})
    with pytest.raises(
        WeightsError, match=r"x\.safetensors': its (settings of alpha are damaged|LoRA settings are not)"
    ):
        load_lora(pipe, path)
    with pytest.raises(
        WeightsError, match=r"x\.safetensors': its (settings of alpha are damaged|LoRA settings are not)"
    ):
        read_layers(path, SD15)


def test_the_dropout_of_the_training_is_not_passed_on(tiny_sd15, tmp_path):
    reference, components = trained(tiny_sd15, ATTENTION, TEXT, lora_dropout=0.5)
    for module in components.values():
        module.eval()
    (file,) = save_lora(tmp_path / "x", AdaptedModel(components, StableDiffusionPipeline))
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    pipe.load_lora_weights(tmp_path, weight_name=file.name)
    assert_same_outputs(pipe, reference, StableDiffusionPipeline.from_pretrained(tiny_sd15))


def test_alphas_keep_their_precision(tiny_sd15, tmp_path):
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    pipe.unet.add_adapter(LoraConfig(r=3, lora_alpha=100 / 3, target_modules=["to_k"]))
    components = {"unet": pipe.unet}
    (file,) = save_lora(
        tmp_path / "x", AdaptedModel(components, StableDiffusionPipeline), "single_file", torch.bfloat16
    )
    dtypes = {name.rpartition(".")[2]: tensor.dtype for name, tensor in load_tensors(file).items()}
    assert dtypes == {"weight": torch.bfloat16, "alpha": torch.float32}
    (plain,) = save_lora(tmp_path / "y", AdaptedModel(components, StableDiffusionPipeline))
    converted = load_tensors(convert(str(plain), tmp_path / "z.safetensors", dtype="float16", family="sd15"))
    assert {t.item() for name, t in converted.items() if name.endswith(".alpha")} == {torch.tensor(100 / 3).item()}
