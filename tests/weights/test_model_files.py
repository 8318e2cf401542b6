"""A trained model as files: plain diffusers reads back exactly what was trained, beside the untouched rest."""

import errno
import json
import sys
from dataclasses import replace

import pytest
import torch
from diffusers import StableDiffusionPipeline

from modules.config.ModelConfig import ModelConfig
from modules.config.OutputConfig import OutputConfig
from modules.families.registry import FAMILIES
from modules.methods.parts import trained_in
from modules.methods.registry import METHODS
from modules.session.atomic import is_temporary
from modules.weights.BaseModel import BaseModel
from modules.weights.errors import WeightsError
from modules.weights.inspect import check_base
from modules.weights.model_files import check_format, check_names, save_model
from modules.weights.safe import load_tensors, read_header
from tests.support.prepared import prepared

PARTS = ("unet", "vae", "text_encoder")
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
METADATA = {"trained_with": "Chorus"}


def states(pipe, parts=PARTS):
    return {f"{part}.{n}": t.clone() for part in parts for n, t in getattr(pipe, part).state_dict().items()}


def assert_equal(got, expected):
    assert got.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(got[name], expected[name])] == []


def shake(module):
    """Changes every weight, as training would."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)


def trained(folder, part="unet", **settings):
    """(base, config, the weights that the files must hold): `part` trained, nothing else in memory."""
    expected = states(StableDiffusionPipeline.from_pretrained(folder))
    switches = {"denoiser": {"train": part == "unet"}, "text_encoder": {"train": part == "text_encoder"}}
    method = "vae" if part == "vae" else "full"
    base, config = prepared(folder, method, **switches, **settings)
    shake(base.module(part))
    base.release(*(name for name in base.component_names if name not in (part, "scheduler")))
    return base, config, expected | states(base.pipe, [part])


def read_back(paths, folder):
    """One plain pipeline of each file or folder, loaded as anybody would, in float32."""
    for path in paths:
        if path.is_dir():
            yield StableDiffusionPipeline.from_pretrained(path, local_files_only=True)
        else:
            yield StableDiffusionPipeline.from_single_file(
                path, config=str(folder), local_files_only=True, safety_checker=None
            )


def dtypes_in(path):
    """The types of the tensors in a model's files, as safetensors writes them."""
    files = path.rglob("*.safetensors") if path.is_dir() else [path]
    headers = [read_header(file) for file in files]
    return {entry["dtype"] for header in headers for name, entry in header.items() if name != "__metadata__"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", ["tiny_sd15", "tiny_sd15_v"])
def test_both_formats_load_in_plain_diffusers_with_the_trained_weights(model, dtype, tmp_path, request):
    folder = request.getfixturevalue(model)
    base, _, expected = trained(folder)
    paths = save_model(base, OutputConfig(format="both", dtype=dtype), tmp_path / "models", "my.v1", METADATA)
    assert [path.name for path in paths] == ["my.v1", "my.v1.safetensors"]
    assert [dtypes_in(path) for path in paths] == [{DTYPES[dtype]}] * 2
    expected = {name: tensor.to(getattr(torch, dtype)).float() for name, tensor in expected.items()}
    pipes = list(read_back(paths, folder))
    assert len(pipes) == 2
    for pipe in pipes:
        assert_equal(states(pipe), expected)
        assert pipe.scheduler.config.prediction_type == base.pipe.scheduler.config.prediction_type


@pytest.mark.parametrize("part", ["unet", "text_encoder", "vae"])
def test_what_trained_is_in_the_files_and_the_rest_is_the_bases(part, tiny_sd15, tmp_path):
    base, config, expected = trained(tiny_sd15, part)
    plain = states(StableDiffusionPipeline.from_pretrained(tiny_sd15))
    for pipe in read_back(METHODS[config.method].save(base, config, tmp_path, "x", METADATA), tiny_sd15):
        got = states(pipe)
        assert_equal(got, expected)
        changed = {name.split(".")[0] for name in plain if not torch.equal(got[name], plain[name])}
        assert changed == {part}


@pytest.mark.parametrize("output", [{"format": fmt} for fmt in ("diffusers", "single_file")])
def test_only_the_format_that_is_asked_for_is_written(output, tiny_sd15, tmp_path):
    base, _, _ = trained(tiny_sd15)
    paths = save_model(base, OutputConfig(**output), tmp_path, "x", METADATA)
    assert list(tmp_path.iterdir()) == paths
    assert [path.is_dir() for path in paths] == [output["format"] == "diffusers"]


def test_saving_changes_no_weight_of_the_training(tiny_sd15, tmp_path):
    base, _, expected = trained(tiny_sd15)
    unet = base.module("unet")
    parameters = list(unet.parameters())
    pointers = [parameter.data_ptr() for parameter in parameters]
    save_model(base, OutputConfig(format="both", dtype="float16"), tmp_path, "x", METADATA)
    assert base.module("unet") is unet
    assert [parameter.data_ptr() for parameter in unet.parameters()] == pointers
    assert all(parameter.dtype == torch.float32 and parameter.requires_grad for parameter in parameters)
    assert unet.training
    assert_equal(states(base.pipe, ["unet"]), {n: t for n, t in expected.items() if n.startswith("unet.")})


def test_what_was_read_for_saving_leaves_memory_again(tiny_sd15, tmp_path):
    base, _, _ = trained(tiny_sd15)
    save_model(base, OutputConfig(), tmp_path, "x", METADATA)
    assert [base.module(name) is None for name in ("vae", "text_encoder", "tokenizer")] == [True] * 3


def test_a_saved_folder_holds_the_names_that_other_readers_look_for(tiny_sd15, tmp_path):
    base, _, _ = trained(tiny_sd15)
    (folder,) = save_model(base, OutputConfig(format="diffusers"), tmp_path, "x", METADATA)
    names = load_tensors(folder / "text_encoder" / "model.safetensors")
    assert all(name.startswith("text_model.") for name in names)
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    assert index["_class_name"] == "StableDiffusionPipeline"
    assert index["unet"] == ["diffusers", "UNet2DConditionModel"]
    assert index["safety_checker"] == [None, None]
    assert not any(path.suffix in (".bin", ".pt", ".ckpt") for path in folder.rglob("*"))


def test_no_temporary_file_and_no_path_of_this_machine_stays(tiny_sd15, tmp_path):
    base, _, _ = trained(tiny_sd15)
    save_model(base, OutputConfig(format="both"), tmp_path / "models", "x", METADATA)
    assert not any(is_temporary(path) for path in (tmp_path / "models").rglob("*"))
    places = [str(base.path).encode(), str(tmp_path).encode()]
    for path in (tmp_path / "models").rglob("*"):
        if path.is_file():
            assert not any(place in path.read_bytes() for place in places), path.name


def test_the_single_file_tells_what_made_it(tiny_sd15, tmp_path):
    base, _, _ = trained(tiny_sd15)
    (path,) = save_model(base, OutputConfig(format="single_file"), tmp_path, "x", METADATA)
    assert read_header(path)["__metadata__"]["trained_with"] == "Chorus"


def test_a_saved_model_is_a_base_for_the_next_training(tiny_sd15, tmp_path):
    base, _, expected = trained(tiny_sd15)
    folder, file = save_model(base, OutputConfig(format="both"), tmp_path, "x", METADATA)
    for path, options in ((folder, {}), (file, {"config_folder": str(tiny_sd15)})):
        assert check_base(str(path), FAMILIES["sd15"]).pipeline == "StableDiffusionPipeline"
        again, _ = prepared(path, "full", model=options)
        assert_equal(states(again.pipe), expected)


def test_a_base_from_a_single_file_can_be_saved_in_both_formats(tiny_sd15, tmp_path):
    base, _, _ = trained(tiny_sd15)
    (file,) = save_model(base, OutputConfig(format="single_file"), tmp_path, "first", METADATA)
    again, _ = prepared(file, "full", model={"config_folder": str(tiny_sd15)})
    shake(again.module("unet"))
    expected = states(again.pipe)
    for pipe in read_back(save_model(again, OutputConfig(), tmp_path, "second", METADATA), tiny_sd15):
        assert_equal(states(pipe), expected)


def test_an_interrupted_saving_leaves_no_model_that_looks_whole(tiny_sd15, tmp_path, monkeypatch):
    base, _, _ = trained(tiny_sd15)

    def full_disk(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("modules.weights.model_files._name_clip_keys", full_disk)
    with pytest.raises(OSError, match="No space"):
        save_model(base, OutputConfig(format="diffusers"), tmp_path, "x", METADATA)
    assert not (tmp_path / "x").exists()
    assert base.module("vae") is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs RLIMIT_FSIZE")
@pytest.mark.parametrize("fmt", ["diffusers", "single_file"])
def test_a_disk_that_takes_no_more_is_an_error_of_the_disk_in_every_format(fmt, tiny_sd15, tmp_path):
    import resource

    base, _, _ = trained(tiny_sd15)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError) as error:
            save_model(base, OutputConfig(format=fmt), tmp_path, "x", METADATA)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (error.value.errno, error.value.strerror) == (errno.EFBIG, "File too large")
    assert list(tmp_path.iterdir()) == []


def test_a_single_file_of_sd3_is_refused_before_anything_is_written(tiny_sd3, tmp_path):
    base, _ = prepared(tiny_sd3, "full", family="sd3")
    base.family = replace(base.family, single_file=None)
    output = OutputConfig(format="single_file")
    with pytest.raises(WeightsError, match=r"^output\.format 'single_file': Stable Diffusion 3.*; use diffusers\.$"):
        save_model(base, output, tmp_path / "models", "x", METADATA)
    assert not (tmp_path / "models").exists()
    check_format(base.family, OutputConfig(format="diffusers"))
    (path,) = save_model(base, OutputConfig(format="both"), tmp_path, "x", METADATA)  # both: all that there are
    assert path.is_dir()


@pytest.mark.parametrize(
    ("model", "family"), [("tiny_sdxl", "sdxl"), ("tiny_sdxl_v", "sdxl"), ("tiny_sd3", "sd3"), ("tiny_sd35", "sd3")]
)
def test_every_part_of_the_larger_families_trains_and_is_read_back(model, family, tmp_path, request):
    folder = request.getfixturevalue(model)
    base, config = prepared(folder, "full", family=family, text_encoder={"train": True})
    torch.manual_seed(3)
    trained = trained_in(METHODS["full"], base, config)
    with torch.no_grad():
        for parameter in (p for part in trained for p in base.module(part).parameters() if p.requires_grad):
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    parts = [*trained, "vae"]
    lacking = {part: None for part in base.family.optional if part not in base.component_names}
    directory, file = save_model(base, OutputConfig(format="both"), tmp_path, "x", METADATA)
    pipeline = type(base.pipe)
    for pipe in (
        pipeline.from_pretrained(directory, local_files_only=True, **lacking),
        pipeline.from_single_file(file, config=str(folder), local_files_only=True, **lacking),
    ):
        assert_equal(states(pipe, parts), states(base.pipe, parts))
    BaseModel(base.family, base.config, base.device)  # the base itself is still whole


@pytest.mark.parametrize(
    ("model", "family"), [("tiny_sd15", "sd15"), ("tiny_sd15_v", "sd15"), ("tiny_sdxl", "sdxl"), ("tiny_sd35", "sd3")]
)
def test_names_are_checked_without_loading_anything(model, family, request):
    base = BaseModel(FAMILIES[family], ModelConfig(base=str(request.getfixturevalue(model))), torch.device("cpu"))
    meta_modules = {name: base.meta_module(name) for name in base.component_names}
    check_names(base, OutputConfig(format="both"))
    assert not any(base.module(name) is not None for name in base.component_names if name != "scheduler")
    modules = {name: part for name, part in meta_modules.items() if hasattr(part, "parameters")}
    base.require(*modules)
    for name, meta_module in modules.items():
        shapes = {key: tensor.shape for key, tensor in base.module(name).state_dict().items()}
        assert {key: tensor.shape for key, tensor in meta_module.state_dict().items()} == shapes


def test_a_layer_without_a_name_in_a_single_file_is_told_before_the_training(tiny_sd15):
    base, _ = prepared(tiny_sd15, "full")
    base.module("unet").extra = torch.nn.Linear(2, 2)
    check_names(base, OutputConfig(format="diffusers"))
    with pytest.raises(WeightsError, match=r"'extra\..*' has no name in a single-file checkpoint; save in"):
        check_names(base, OutputConfig(format="both"))
