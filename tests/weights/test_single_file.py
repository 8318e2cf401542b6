"""Single-file checkpoints: what diffusers' own reader makes of them is what was saved."""

import pytest
import torch
from diffusers import (
    AutoencoderKL,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint, convert_ldm_vae_checkpoint

from modules.config.ModelConfig import ModelConfig
from modules.families.registry import FAMILIES
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.safe import load_tensors, read_header
from modules.weights.single_file import save_single_file, unet_to_single_file, vae_to_single_file

PARTS = ("unet", "vae", "text_encoder")


def save(folder, file, **options):
    pipe = StableDiffusionPipeline.from_pretrained(folder)
    save_single_file(file, FAMILIES["sd15"], pipe.components, **options)
    return pipe


def states(pipe):
    return {f"{part}.{name}": tensor for part in PARTS for name, tensor in getattr(pipe, part).state_dict().items()}


def assert_equal(got, expected):
    assert got.keys() == expected.keys()
    different = [name for name, tensor in expected.items() if not torch.equal(got[name], tensor)]
    assert different == []


@pytest.mark.parametrize("model", ["tiny_sd15", "tiny_sd15_v"])
def test_a_single_file_gives_diffusers_every_tensor_back(model, tmp_path, request):
    folder = request.getfixturevalue(model)
    pipe = save(folder, tmp_path / "x.safetensors")
    loaded = StableDiffusionPipeline.from_single_file(
        tmp_path / "x.safetensors", config=str(folder), local_files_only=True, safety_checker=None
    )
    assert_equal(states(loaded), states(pipe))


def test_no_tensor_is_written_that_readers_would_not_find(tiny_sd15, tmp_path):
    pipe = save(tiny_sd15, tmp_path / "x.safetensors")
    names = load_tensors(tmp_path / "x.safetensors")
    assert len(names) == len(states(pipe))
    roots = {"model.diffusion_model", "first_stage_model", "cond_stage_model"}
    assert {next(root for root in roots if name.startswith(root + ".")) for name in names} == roots


def test_the_names_are_those_of_the_released_checkpoints(tiny_sd15, tiny_sd15_v, tmp_path):
    save(tiny_sd15, tmp_path / "1.safetensors")
    save(tiny_sd15_v, tmp_path / "2.safetensors")
    first, second = load_tensors(tmp_path / "1.safetensors"), load_tensors(tmp_path / "2.safetensors")
    unet = "model.diffusion_model."
    for name in (
        f"{unet}time_embed.2.bias",
        f"{unet}input_blocks.0.0.weight",
        f"{unet}input_blocks.1.0.in_layers.2.weight",
        f"{unet}input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight",
        f"{unet}input_blocks.2.0.op.weight",
        f"{unet}middle_block.2.out_layers.3.weight",
        f"{unet}output_blocks.1.1.conv.weight",
        f"{unet}output_blocks.3.0.skip_connection.weight",
        f"{unet}out.2.bias",
        "first_stage_model.encoder.down.0.downsample.conv.weight",
        "first_stage_model.encoder.down.1.block.0.nin_shortcut.weight",
        "first_stage_model.decoder.up.1.upsample.conv.weight",
        "first_stage_model.decoder.mid.attn_1.proj_out.bias",
        "first_stage_model.post_quant_conv.bias",
    ):
        assert name in first
        assert name in second
    assert first["first_stage_model.encoder.mid.attn_1.q.weight"].shape == (16, 16, 1, 1)
    assert "cond_stage_model.transformer.text_model.encoder.layers.2.mlp.fc1.weight" in first
    assert second["cond_stage_model.model.transformer.resblocks.2.attn.in_proj_weight"].shape == (96, 32)
    assert "cond_stage_model.model.positional_embedding" in second


# The released U-Net: four levels of two layers, none of attention in the last; and one unlike any that was released.
UNETS = {
    "as released": {
        "block_out_channels": (4, 8, 8, 8),
        "layers_per_block": 2,
        "down_block_types": ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",),
        "up_block_types": ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3,
    },
    "unlike any": {
        "block_out_channels": (4, 8, 4),
        "layers_per_block": 3,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D", "CrossAttnUpBlock2D"),
    },
}


@pytest.mark.parametrize("case", UNETS)
def test_a_unet_of_any_shape_reads_back(case):
    unet = UNet2DConditionModel(**UNETS[case], cross_attention_dim=8, norm_num_groups=2, attention_head_dim=2)
    converted = unet_to_single_file(unet.state_dict(), unet.config)
    assert_equal(convert_ldm_unet_checkpoint(dict(converted), unet.config), unet.state_dict())


def test_the_released_unet_has_its_known_numbers():
    unet = UNet2DConditionModel(**UNETS["as released"], cross_attention_dim=8, norm_num_groups=2, attention_head_dim=2)
    names = {
        name.removeprefix("model.diffusion_model.") for name in unet_to_single_file(unet.state_dict(), unet.config)
    }
    for name in (
        "input_blocks.3.0.op.weight",
        "input_blocks.8.1.proj_in.weight",
        "input_blocks.11.0.out_layers.3.bias",
        "output_blocks.2.1.conv.weight",
        "output_blocks.5.2.conv.weight",
        "output_blocks.8.2.conv.weight",
        "output_blocks.11.0.skip_connection.weight",
        "output_blocks.11.1.transformer_blocks.0.norm1.bias",
    ):
        assert name in names
    assert not any(name.startswith(("input_blocks.12.", "output_blocks.12.", "input_blocks.10.1")) for name in names)


def test_a_vae_of_any_shape_reads_back():
    vae = AutoencoderKL(
        block_out_channels=(4, 8, 8, 4),
        layers_per_block=2,
        norm_num_groups=2,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
    )
    converted = vae_to_single_file(vae.state_dict(), vae.config)
    assert_equal(convert_ldm_vae_checkpoint(dict(converted), vae.config), vae.state_dict())


def test_an_sdxl_that_predicts_v_says_so_and_of_its_noise_schedule(tiny_sdxl, tiny_sdxl_v, tmp_path):
    marks = {"v_pred", "ztsnr"}
    for folder, options, expected in (
        (tiny_sdxl, {}, set()),
        (tiny_sdxl_v, {}, {"v_pred"}),
        (tiny_sdxl_v, {"rescale_betas_zero_snr": True}, marks),
    ):
        pipe = StableDiffusionXLPipeline.from_pretrained(folder)
        pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config, **options)
        file = tmp_path / "x.safetensors"
        save_single_file(file, FAMILIES["sdxl"], pipe.components)
        assert set(load_tensors(file)) & marks == expected
        model = ModelConfig(base=str(file), config_folder=str(tiny_sdxl))
        scheduler = BaseModel(FAMILIES["sdxl"], model, torch.device("cpu")).pipe.scheduler.config
        assert (scheduler.prediction_type == "v_prediction") == ("v_pred" in expected)
        assert scheduler.rescale_betas_zero_snr == ("ztsnr" in expected)


def test_an_sd3_whose_first_projection_is_not_the_identity_fits_in_no_single_file(tiny_sd3, tmp_path):
    pipe = StableDiffusion3Pipeline.from_pretrained(tiny_sd3)
    pipe.text_encoder.text_projection.weight.data *= 2
    with pytest.raises(WeightsError, match=r"'text_encoder\.text_projection' has no name.*diffusers format"):
        save_single_file(tmp_path / "x.safetensors", FAMILIES["sd3"], pipe.components)
    assert list(tmp_path.iterdir()) == []


def test_the_file_has_the_wanted_type_and_metadata(tiny_sd15, tmp_path):
    save(tiny_sd15, tmp_path / "x.safetensors", dtype=torch.float16, metadata={"step": "3"})
    header = read_header(tmp_path / "x.safetensors")
    assert header.pop("__metadata__") == {"format": "pt", "step": "3"}
    assert {entry["dtype"] for entry in header.values()} == {"F16"}


def test_the_denoisers_matrices_can_be_float8(tiny_sd15, tmp_path):
    """As other programs write them: without scales, and read by plain diffusers."""
    pipe = StableDiffusionPipeline.from_pretrained(tiny_sd15)
    big = pipe.unet.conv_in.weight
    big.data[0, 0, 0, 0] = 1000.0
    path = tmp_path / "x.safetensors"
    save_single_file(path, FAMILIES["sd15"], pipe.components, torch.float16, float8_denoiser=True)
    header = read_header(path)
    header.pop("__metadata__")
    for name, entry in header.items():
        is_matrix = name.startswith("model.diffusion_model.") and len(entry["shape"]) > 1
        assert entry["dtype"] == ("F8_E4M3" if is_matrix else "F16"), name
    again = StableDiffusionPipeline.from_single_file(path, config=str(tiny_sd15), torch_dtype=torch.float32)
    assert again.unet.conv_in.weight[0, 0, 0, 0] == 448  # the largest number of float8
    big.data[0, 0, 0, 0] = 448.0
    for name, expected in pipe.unet.state_dict().items():
        got = again.unet.state_dict()[name]
        torch.testing.assert_close(got, expected, rtol=2**-4 if expected.dim() > 1 else 1e-3, atol=2**-10)


def test_a_layer_without_a_name_in_the_layout_is_refused():
    unet = UNet2DConditionModel(**UNETS["as released"], norm_num_groups=2, cross_attention_dim=8, attention_head_dim=2)
    with pytest.raises(WeightsError, match=r"'class_embedding\.linear_1\.weight'.*diffusers format"):
        unet_to_single_file({**unet.state_dict(), "class_embedding.linear_1.weight": torch.ones(1)}, unet.config)
