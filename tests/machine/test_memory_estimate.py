"""The estimate of GPU memory against sums computed by hand, and the presets against their memory sizes."""

from dataclasses import replace

import pytest

from modules.config.families import load_families
from modules.config.files import apply_overrides, config_from_values
from modules.config.methods import METHODS
from modules.config.presets import (
    MEMORY_SIZES,
    gpu_counts,
    has_variants,
    list_presets,
    load_preset,
    merge_values,
    variant_name,
    why_not_offered,
)
from modules.machine.architectures import FACTORED, load_architectures, load_corrections
from modules.machine.memory_estimate import (
    CUBLAS_BYTES,
    GIB,
    PROCESS_BYTES,
    SYSTEM_BYTES,
    blocks_to_swap,
    estimate_memory,
    least_rank_bytes,
    room_for_presets,
)

VARIANTS = [(preset.name, memory) for preset in list_presets() if has_variants(preset.name) for memory in MEMORY_SIZES]
# GiB that PyTorch 2.11 allocated at most while an H200 ran these presets, and what CUDA's context took there beside.
ALLOCATED = {
    "sdxl-lora-12gb": 7.02,
    "sdxl-full-24gb": 13.5,
    "flux1-lora-24gb": 16.2,
    "zimage-lora": 10.5,
    "sd15-full-8gb": 5.52,
}
# Of sd15-full-8gb one of its two micro-batches was measured, beside no gradients of the other.
CHANGED = {
    "zimage-lora": ["model.denoiser_quantization=int8"],
    "sd15-full-8gb": ["batch_size=4", "gradient_accumulation_steps=1"],
}
# The same for steps of LoRAs for SDXL, by batch size and gradient checkpointing, and how many times that the estimate
# of their activations may be: a single image takes less than its share of several.
STEPS = {(1, True): (5.80, 1.18), (4, True): (7.87, 1.15), (1, False): (12.4, 1.15)}
# What PyTorch 2.13 takes beside in a step of FLUX.1, because autocast has queries and keys normalized in float32.
NORMALIZED_IN_FLOAT32 = {"flux1-lora-24gb": 0.7}
CONTEXT = 0.6
UNET = 859_520_964  # of Stable Diffusion 1.5
SDXL = 2_567_463_684


@pytest.mark.parametrize(
    "preset", [preset for preset in list_presets() if has_variants(preset.name)], ids=lambda each: each.name
)
def test_a_preset_names_the_smallest_gpu_that_it_fits_without_changes(preset):
    configs = [
        config_from_values(load_preset(variant_name(preset.name, None, count)))
        for count in (1, *gpu_counts(preset.name))
    ]
    peak = max(estimate_memory(config).peak for config in configs)
    least = next(memory for memory in MEMORY_SIZES if peak <= room_for_presets(memory))
    assert f"; {least} GB GPU" in preset.description


@pytest.mark.parametrize(("name", "allocated"), ALLOCATED.items())
def test_a_run_never_takes_more_than_estimated_and_at_most_15_percent_less(name, allocated):
    memory, needed = estimate_memory(measured_run(name)), (allocated + CONTEXT) * GIB
    assert memory.process == int(CONTEXT * GIB) + CUBLAS_BYTES
    assert needed <= memory.peak <= 1.15 * needed


@pytest.mark.parametrize("name", [name for name in ALLOCATED if name != "sdxl-lora-12gb"])  # whose samples take more
def test_activations_are_never_more_than_estimated_and_at_most_15_percent_less(name):
    memory = estimate_memory(measured_run(name))
    _check_activations(memory, ALLOCATED[name] + NORMALIZED_IN_FLOAT32.get(name, 0))


@pytest.mark.parametrize(("batch_size", "checkpointing"), STEPS)
def test_activations_of_any_batch_are_never_more_than_estimated_and_little_less(batch_size, checkpointing):
    allocated, most = STEPS[batch_size, checkpointing]
    model = {"weight_dtype": "bfloat16", "mixed_precision": "bf16", "gradient_checkpointing": checkpointing}
    memory = estimate(family="sdxl", batch_size=batch_size, data={"resolution": 1024}, model=model)
    _check_activations(memory, allocated, most)


def _check_activations(memory, allocated, most=1.15):
    lasting = memory.weights + memory.gradients + memory.optimizer + memory.average + CUBLAS_BYTES
    measured = allocated * GIB - lasting
    assert measured <= memory.activations <= most * measured


@pytest.fixture
def uncorrected(monkeypatch):
    """Estimates are what was counted, as if no preset had been simulated."""
    for module in ("RunMemory", "SampleMemory"):
        monkeypatch.setattr(f"modules.machine.memory.{module}.correction", lambda *_kinds, otherwise=1.0: otherwise)


def measured_run(name):
    return config_from_values(apply_overrides(load_preset(name), CHANGED.get(name, [])))


def estimate(num_ranks=None, **values):
    return estimate_memory(config_from_values(values), num_ranks)


@pytest.mark.parametrize(("name", "memory"), VARIANTS)
def test_a_preset_is_offered_where_it_leaves_the_system_its_share_and_nowhere_else(name, memory):
    room = room_for_presets(memory)
    assert room <= memory * GIB - SYSTEM_BYTES
    if not why_not_offered(name, memory):
        for num_gpus in (1, *gpu_counts(name)):
            config = config_from_values(load_preset(variant_name(name, memory, num_gpus)))
            assert estimate_memory(config).peak <= room
        return
    values = load_preset(name)
    least = {"batch_size": 1, "batch_size_mode": "per_device", "model": {"gradient_checkpointing": True}}
    if not METHODS[values["method"]].trains_weights:
        least["model"] |= {"denoiser_quantization": "nf4", "text_encoder_quantization": "nf4"}
    if values["optimizer"].get("fused_backward"):  # the batch can't be divided
        least["batch_size"], least["model"]["activation_offloading"] = values["batch_size"], True
    config = config_from_values(merge_values(values, least))
    at_once = replace(config, gradient_accumulation_steps=1)  # as on so many GPUs that each has one image of a step
    assert max(estimate_memory(run, num_ranks=2).peak for run in (config, at_once)) > room


def test_full_training_in_float32_keeps_weights_gradients_moments_average_and_autocast_copies():
    memory = estimate(
        method="full",
        model={"weight_dtype": "float32", "mixed_precision": "bf16"},
        optimizer={"name": "adamw"},
        ema={"enabled": True},
        gradient_accumulation_steps=2,  # else they go while gradients come
    )
    assert memory.weights == UNET * (4 + 2)
    assert (memory.gradients, memory.optimizer, memory.average) == (UNET * 4, UNET * 8, UNET * 4)


def test_a_state_in_system_memory_leaves_room_for_two_parts_of_it():
    memory = estimate(method="full", optimizer={"name": "adamw", "state_in_ram": True})
    assert memory.optimizer == 2 * load_architectures()["sd15"].matrix * 8
    lora = {"optimizer": {"name": "adamw", "state_in_ram": True}, "lora": {"rank": 4}}
    assert estimate(**lora).optimizer == estimate(lora={"rank": 4}).optimizer  # all of it fits there


def test_a_fused_backward_pass_keeps_the_gradient_of_one_matrix_instead_of_all():
    values = {"method": "full", "model": {"weight_dtype": "bfloat16"}}
    options = {"name": "adafactor", "max_grad_norm": 0, "stochastic_rounding": True}
    plain = estimate(**values, optimizer=options)
    fused = estimate(**values, optimizer={**options, "fused_backward": True})
    largest = load_architectures()["sd15"].matrix
    assert (plain.gradients, fused.gradients) == (UNET * 2, largest * 2)
    assert fused.stepping == 4 * 4 * largest
    assert (fused.weights, fused.optimizer) == (plain.weights, plain.optimizer)


def test_activations_of_a_fused_backward_pass_are_not_made_up_for_by_gradients_to_come():
    values = {
        "family": "flux1",
        "method": "full",
        "model": {"weight_dtype": "bfloat16", "gradient_checkpointing": True},
    }
    options = {"name": "adafactor", "max_grad_norm": 0}
    plain = estimate(**values, optimizer=options)
    fused = estimate(**values, optimizer={**options, "fused_backward": True})
    kept = fused.activations - fused.stepping  # which is at the same time
    assert plain.activations == pytest.approx(kept * load_corrections()["flux1"]["full in parts at once"])


@pytest.mark.parametrize(
    ("targets", "expected"), [("attention", 2.0), ("attention_mlp", 3.0), ("linear", 3.0), ("linear_conv", 3.0)]
)
def test_adapters_on_more_layers_are_corrected_by_themselves_or_as_those_on_still_more(targets, expected, monkeypatch):
    def activations(corrections):
        monkeypatch.setattr("modules.machine.architectures.load_corrections", lambda: {"sdxl": corrections})
        return estimate(family="sdxl", method="lora", lora={"targets": targets}).activations

    found = activations({"lora": 2.0, "lora on linear": 3.0})
    assert found == pytest.approx(expected * activations({}))


@pytest.mark.parametrize(("mixed", "gathered_bytes"), [("bf16", 2), ("no", 4)])
def test_ranks_that_share_a_model_each_hold_a_part_and_gather_a_fifth_at_a_time(mixed, gathered_bytes):
    values = {
        "method": "full",
        "model": {"weight_dtype": "float32", "mixed_precision": mixed},
        "ema": {"enabled": True},
        "distributed_strategy": "fsdp",
    }
    memory = estimate(4, **values)
    assert memory.weights == pytest.approx(UNET * (4 / 4 + 0.2 * gathered_bytes))
    assert (memory.gradients, memory.optimizer, memory.average) == (UNET, UNET * 2, UNET)
    assert estimate(1, **values) == estimate(1, **{**values, "distributed_strategy": "ddp"})


def test_ranks_that_divide_the_optimizer_hold_a_part_of_its_state_and_all_else():
    whole = estimate(4, method="full", model={"weight_dtype": "float32"})
    divided = estimate(4, method="full", model={"weight_dtype": "float32"}, ddp_shard_optimizer=True)
    assert divided == replace(whole, optimizer=whole.optimizer / 4, sampling=divided.sampling)
    sharded = {"method": "full", "distributed_strategy": "fsdp"}
    assert estimate(4, **sharded, ddp_shard_optimizer=True) == estimate(4, **sharded)


@pytest.mark.parametrize(
    ("values", "base_bytes", "trained_bytes"),
    [
        ({"method": "full"}, None, 0),
        ({"method": "full"}, 4_300_000_000, UNET * (4 + 4 + 8)),
        ({"method": "full"}, 50_000_000_000, UNET * (4 + 4 + 8)),  # a folder that contains more than the model
        ({"method": "full", "optimizer": {"name": "sgd"}}, 4_300_000_000, UNET * (4 + 4 + 4)),
        ({"method": "lora", "lora": {"rank": 1, "targets": "attention"}}, 4_300_000_000, 199_296 * (4 + 4 + 8)),
    ],
)
def test_a_rank_takes_at_least_its_libraries_and_what_it_trains_itself(values, base_bytes, trained_bytes):
    libraries = least_rank_bytes(config_from_values({}))
    assert 0.3 * GIB < libraries < 0.47 * GIB  # measured: after the imports, and with the demo's small model
    config = config_from_values({"optimizer": {"name": "adamw"}, "model": {"weight_dtype": "float32"}, **values})
    assert least_rank_bytes(config, base_bytes) - libraries == pytest.approx(trained_bytes)


@pytest.mark.parametrize(
    ("values", "trained"),
    [
        # the gradients of simulated runs (scripts/simulated_run.py), in weights
        ({"denoiser": {"include_layers": "*.attn2.*"}}, 1_591_296),
        (
            {
                "denoiser": {"include_layers": "up_blocks.1, mid_block"},
                "lora": {"rank": 16, "targets": "linear_conv", "conv_rank": 4},
            },
            3_777_024,
        ),
        ({"lora": {"rank": 16, "layer_ranks": "mid_block=64, *.attn1=8"}}, 3_405_824),
        (
            {
                "denoiser": {"include_layers": "mid_block"},
                "text_encoder": {"train": True, "include_layers": "encoder.layers.0,encoder.layers.1"},
            },
            507_904,
        ),
        (
            {
                "family": "wan21_vace",
                "model": {"base": "Wan-AI/Wan2.1-VACE-1.3B-diffusers"},
                "denoiser": {"include_layers": "blocks.1?, vace_blocks", "exclude_layers": "*.attn2.*"},
                "lora": {"rank": 16, "targets": "attention_mlp"},
            },
            13_312_000,
        ),
    ],
)
def test_only_the_layers_that_adapters_are_on_are_counted_each_with_its_rank(values, trained):
    memory = estimate(1, method="lora", **values)
    assert (memory.gradients, memory.optimizer) == (4 * trained, 8 * trained)


@pytest.mark.parametrize(
    ("part", "trained"),
    [
        ({"include_layers": "up_blocks"}, 510_795_840),
        ({"layers": "attention_mlp", "exclude_layers": "mid_block"}, 210_862_400),
    ],
)
def test_only_the_layers_that_a_full_fine_tune_trains_are_counted(part, trained):
    memory = estimate(1, method="full", model={"weight_dtype": "float32"}, optimizer={"name": "adamw"}, denoiser=part)
    # biases are not listed
    assert memory.gradients == pytest.approx(4 * trained, rel=3e-4)
    assert memory.optimizer == 2 * memory.gradients


def test_weights_that_an_adapter_composes_are_held_of_one_block_or_all():
    plain = {"method": "lora", "lora": {"rank": 4, "targets": "linear"}, "model": {"gradient_checkpointing": True}}
    composed = {**plain, "lora": {**plain["lora"], "adapter": "lokr"}}
    blocks = estimate(1, **composed).activations - estimate(1, **plain).activations
    plain["model"] = composed["model"] = {"gradient_checkpointing": False}
    whole = estimate(1, **composed).activations - estimate(1, **plain).activations
    assert whole / blocks == pytest.approx(load_architectures()["sd15"].blocks.count)
    # of the attention of the blocks most weights, in two bytes
    assert 0.5 * UNET < whole / 1.1 < 2 * UNET


@pytest.mark.usefixtures("uncorrected")
@pytest.mark.parametrize(("quantization", "weight_bytes"), [("int8", 1), ("nf4", 0.5 + 4 / 64)])
def test_quantized_layers_take_their_bytes_and_are_not_copied_by_autocast(quantization, weight_bytes):
    model = load_architectures()["flux1"]
    names = ("denoiser_quantization", "text_encoder_quantization")
    settings = {"weight_dtype": "float32", "mixed_precision": "bf16"}
    run = {"family": "flux1", "sampling": {"at_end": True, "samples": [{"prompt": "a cat"}]}}
    plain = estimate(**run, model=settings)
    memory = estimate(**run, model=settings | dict.fromkeys(names, quantization))
    denoiser = model.quantizable_denoiser * (4 + 2 - weight_bytes)
    text = sum(model.quantizable_text) * (4 - weight_bytes)  # encoded before the denoiser is loaded
    assert plain.weights - memory.weights == pytest.approx(denoiser)
    assert plain.caching - memory.caching == pytest.approx(text)
    assert plain.sampling - memory.sampling == pytest.approx(denoiser)


@pytest.mark.parametrize("bits", [4.5, 8.5])
def test_a_gguf_file_takes_on_the_gpu_what_it_takes_on_the_disk(tmp_path, bits):
    file = tmp_path / "flux1.gguf"
    model = load_architectures()["flux1"]
    quantized, others = model.quantizable_denoiser, model.denoiser - model.quantizable_denoiser
    with open(file, "wb") as empty:
        empty.truncate(round(quantized * bits / 8 + 2 * others))
    run = {"family": "flux1", "method": "lora"}
    settings = {"weight_dtype": "bfloat16", "mixed_precision": "bf16"}
    plain, memory = estimate(**run, model=settings), estimate(**run, model={**settings, "denoiser": str(file)})
    assert memory.weights == pytest.approx(plain.weights - quantized * (2 - bits / 8), rel=1e-6)


def test_the_gguf_file_of_each_expert_takes_what_it_takes_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # where Windows looks
    model = load_architectures()["wan22_a14b"]
    quantized, others = model.quantizable_denoiser / 2, (model.denoiser - model.quantizable_denoiser) / 2
    settings = {"weight_dtype": "bfloat16", "mixed_precision": "bf16"}
    packed = dict(settings)
    for name, bits in (("denoiser", 8.5), ("denoiser_2", 4.5)):
        with open(tmp_path / f"{name}.gguf", "wb") as empty:
            empty.truncate(round(quantized * bits / 8 + 2 * others))
        packed[name] = f"~/{name}.gguf"
    for expert, saved in (("both", 4 - 8.5 / 8 - 4.5 / 8), ("high", 2 - 8.5 / 8), ("low", 2 - 4.5 / 8)):
        run = {"family": "wan22_a14b", "method": "lora", "denoiser": {"expert": expert}}
        plain, memory = estimate(**run, model=settings), estimate(**run, model=packed)
        assert plain.weights - memory.weights == pytest.approx(quantized * saved, rel=1e-6)


def test_swapped_blocks_leave_room_for_two_of_them_on_the_gpu():
    blocks = load_architectures()["flux1"].blocks
    run = {"family": "flux1", "batch_size": 1}
    model = {"weight_dtype": "bfloat16", "gradient_checkpointing": True}
    plain, half, every, automatic = (
        estimate(**run, model={**model, "blocks_to_swap": count}).weights
        for count in (0, (blocks.count + 1) // 2, 1000, None)
    )
    assert plain - every == pytest.approx((blocks.weights - 2 * blocks.largest) * 2)
    assert plain - half == pytest.approx((blocks.weights * 29 / 57 - 2 * blocks.largest) * 2)
    assert automatic == every  # the least it can need


def test_as_many_blocks_are_swapped_as_a_gpu_lacks_room_for():
    run = {"family": "flux1", "batch_size": 1, "data": {"resolution": 1024}}
    model = {"weight_dtype": "bfloat16", "mixed_precision": "bf16", "gradient_checkpointing": True}
    config = config_from_values({**run, "model": {**model, "blocks_to_swap": None}})

    def peak(count):
        return estimate(**run, model={**model, "blocks_to_swap": count}).peak

    count = blocks_to_swap(config, 16 * GIB, 1)
    assert peak(count) <= 16 * GIB < peak(count - 1)
    assert blocks_to_swap(config, 80 * GIB, 1) == 0
    assert blocks_to_swap(config, GIB, 1) == load_architectures()["flux1"].blocks.count


def test_of_a_family_of_unknown_size_nothing_is_claimed(monkeypatch):
    for module in ("memory_estimate", "system_memory"):
        monkeypatch.setattr(f"modules.machine.{module}.load_architectures", dict)
    assert estimate(method="full") is None
    assert blocks_to_swap(config_from_values({}), 0, 1) == 0
    assert least_rank_bytes(config_from_values({}), base_bytes=10**10) == least_rank_bytes(config_from_values({}))


def test_a_small_base_counts_as_a_share_of_the_published_one():
    config = config_from_values({"method": "full"})
    whole, small, libraries = (least_rank_bytes(config, size) for size in (10**11, 1_000_000, None))
    assert libraries < small < libraries + 0.001 * (whole - libraries)


def test_stochastic_rounding_keeps_the_optimizers_state_in_float32_and_some_weights_at_a_time():
    model = {"weight_dtype": "bfloat16", "mixed_precision": "bf16"}
    memory = estimate(method="full", model=model, optimizer={"name": "adamw", "stochastic_rounding": True})
    assert (memory.weights, memory.gradients, memory.optimizer) == (UNET * 2, UNET * 2, UNET * 8)
    assert memory.stepping == GIB
    factored = estimate(method="full", model=model, optimizer={"name": "adafactor", "stochastic_rounding": True})
    # a row and a column of matrices hardly count, but kernels of 3 x 3 keep two thirds of their values
    assert factored.optimizer == UNET * 4 * load_corrections()["sd15"][FACTORED]


def test_of_a_lora_only_the_adapter_has_gradients_and_state():
    memory = estimate(family="sdxl", model={"weight_dtype": "bfloat16"}, lora={"rank": 16})
    adapter = 23_224_320  # on the attention of the U-Net
    assert memory.weights == SDXL * 2 + adapter * 4
    assert (memory.gradients, memory.optimizer) == (adapter * 4, adapter * 8)


def test_text_encoders_that_train_stay_beside_the_denoiser():
    frozen = estimate(family="sdxl")
    trained = estimate(family="sdxl", text_encoder={"train": True})
    adapters = 16 * (73_728 + 327_680)
    assert trained.weights - frozen.weights == (123_060_480 + 694_659_840) * 4 + adapters * 4
    assert trained.activations > frozen.activations
    first = estimate(family="sdxl", text_encoder={"train": True, "only": [1]})
    assert first.gradients - frozen.gradients == 16 * 73_728 * 4


def test_activations_grow_with_pixels_and_pictures_and_shrink_with_checkpointing():
    small = estimate(batch_size=1, data={"resolution": 512}).activations
    assert estimate(batch_size=4, data={"resolution": 512}).activations == 4 * small
    assert estimate(batch_size=1, data={"resolution": 1024}).activations == 4 * small
    assert estimate(batch_size=1, data={"resolution": 512, "resolutions": [512, 1024]}).activations == 4 * small
    assert estimate(batch_size=1, model={"gradient_checkpointing": True}).activations < small / 4


@pytest.mark.usefixtures("uncorrected")
def test_references_count_as_tokens_and_not_as_channels():
    def of(family):
        return estimate(family=family, method="lora", data={"resolution": 1024}).activations

    assert of("flux1_control") == pytest.approx(of("flux1"), rel=0.01)
    assert of("flux1_kontext") == pytest.approx(2 * of("flux1"), rel=0.01)


def test_offloaded_inputs_of_blocks_do_not_count_and_without_checkpointing_there_are_none():
    def of(**model):
        precision = {"weight_dtype": "bfloat16", "mixed_precision": "bf16"}
        values = {"family": "flux1", "method": "lora", "batch_size": 2, "data": {"resolution": 1024}}
        return estimate(**values, model={**precision, **model}).activations / GIB

    # scripts/simulated_run.py has 5.8 and 2.7 GiB for these two, with images of 1024 pixels
    on, off = {"gradient_checkpointing": True}, {"gradient_checkpointing": False}
    assert of(**on, activation_offloading=True) == pytest.approx(2.7, rel=0.1)
    assert of(**on) == pytest.approx(5.8, rel=0.1)
    assert of(**off, activation_offloading=True) == of(**off)


@pytest.mark.usefixtures("uncorrected")
def test_each_latent_frame_of_a_clip_counts_like_an_image_and_its_vae_in_pieces():
    def of(frames, family="wan22_5b", **sampling):
        data = {"resolution": 480, "frames": frames}
        model = {"weight_dtype": "bfloat16", "mixed_precision": "bf16"}
        values = {"family": family, "method": "lora", "data": data, "model": model, "sampling": sampling}
        return estimate_memory(config_from_values(values))

    assert of(17).activations == pytest.approx(5 * of(1).activations)
    assert of(17, family="cogvideox").activations == pytest.approx(5 * of(1, family="cogvideox").activations)
    assert of(33, family="helios").activations == of(99, family="helios").activations  # one section of each
    assert of(49).caching == of(1).caching  # the text encoder needs more than the VAE, whose pieces are short
    clip, longer = ({"at_end": True, "samples": [{"frames": frames}]} for frames in (17, 33))
    image = {"at_end": True, "samples": [{"frames": 1}]}
    assert of(17, **clip).sampling > of(17, **image).sampling
    frames = of(17, **longer).sampling - of(17, **clip).sampling
    assert frames == pytest.approx(1.1 * 16 * 3 * 2 * 480**2)  # only the decoded frames themselves, in bfloat16


@pytest.mark.usefixtures("uncorrected")
def test_a_vae_that_sees_a_clip_as_a_whole_takes_more_for_a_longer_one():
    def of(frames):
        data = {"resolution": 768, "frames": frames}
        model = {"weight_dtype": "bfloat16", "mixed_precision": "bf16"}
        values = {"family": "ltx_video", "method": "lora", "data": data, "model": model}
        return estimate_memory(config_from_values(values))

    counted = load_families()["ltx_video"].memory["clip"]
    assert of(289).caching - of(257).caching == pytest.approx(1.1 * 32 * counted["encoder_frame"] / 2 * 768**2)


def test_a_global_batch_is_shared_by_ranks_and_micro_batches():
    one = estimate(batch_size=1).activations
    shared = {"batch_size": 16, "batch_size_mode": "global", "gradient_accumulation_steps": 2}
    assert estimate(**shared).activations == 8 * one
    assert estimate(4, **shared).activations == 2 * one
    assert estimate(**shared, enable_multi_gpu=True, world_size=2, num_nodes=2).activations == 2 * one


def test_where_captions_are_cached_the_text_encoders_may_take_the_most():
    memory = estimate(family="sd3", model={"weight_dtype": "bfloat16", "gradient_checkpointing": True}, batch_size=1)
    encoders = (123_060_480 + 694_659_840 + 4_762_310_656) * 2
    assert memory.peak == memory.caching > encoders
    assert estimate(family="sd3", method="vae").caching < GIB


# --- samples ----------------------------------------------------------------------------------------------------------

PICTURE = {"prompt": "a", "width": 1024, "height": 1024}
SMALL_LORA = {
    "family": "sdxl",
    "batch_size": 1,
    "model": {"weight_dtype": "bfloat16", "gradient_checkpointing": True},
    "data": {"resolution": 1024},
}


def with_samples(num_ranks=None, samples=({},), sampling=None, **values):
    sampling = {"at_end": True, "samples": [{**PICTURE, **sample} for sample in samples], **(sampling or {})}
    return estimate(num_ranks, **values, sampling=sampling)


@pytest.mark.usefixtures("uncorrected")
def test_a_picture_of_full_size_takes_more_than_the_training_of_a_lora_in_small_batches():
    without, memory = estimate(**SMALL_LORA), with_samples(**SMALL_LORA)
    adapter = 23_224_320  # of rank 16: its weights and two moments in float32
    model = SDXL + 83_653_863  # with the VAE, which decodes
    decoding = 1024 * 1024 * 3 * 256 * 2  # in bfloat16
    assert memory.sampling == pytest.approx(model * 2 + adapter * (4 + 8) + decoding * 1.1 + PROCESS_BYTES)
    assert memory.peak == memory.sampling > memory.training == without.peak


@pytest.mark.parametrize(("quantization", "weight_bytes"), [("none", 2), ("int8", 1)])
def test_a_network_for_guidance_is_counted_while_samples_are_made(quantization, weight_bytes):
    model = {"weight_dtype": "bfloat16", "denoiser_quantization": quantization}
    memory = with_samples(family="ideogram4", method="lora", model=model)
    assert memory.weights > 9_279_000_000 * weight_bytes
    assert memory.sampling > 2 * 9_279_000_000 * weight_bytes


def test_samples_that_a_run_does_not_make_by_itself_are_not_counted():
    for sampling in ({"at_end": False}, {"samples": []}, {"samples": [{**PICTURE, "enabled": False}]}):
        assert with_samples(sampling=sampling).sampling == 0
    for sampling in ({"at_start": True}, {"unit": "steps", "every": 100}):
        assert with_samples(sampling={"at_end": False, **sampling}).sampling > 0


def test_the_prompts_of_samples_need_the_text_encoders_before_the_training_and_not_beside_the_denoiser():
    vae = {"method": "vae", "family": "sd3", "model": {"weight_dtype": "bfloat16"}}
    assert estimate(**vae).caching < GIB
    assert with_samples(**vae).caching > (123_060_480 + 694_659_840 + 4_762_310_656) * 2
    frozen = with_samples(**SMALL_LORA)
    trained = with_samples(**SMALL_LORA, text_encoder={"train": True, "only": [1]})
    assert trained.sampling - frozen.sampling > (123_060_480 + 694_659_840) * 2  # it trains, so that both stay


@pytest.mark.usefixtures("uncorrected")
def test_of_the_pictures_that_a_rank_makes_at_a_time_one_is_decoded():
    def held(num_ranks, counts, at_a_time, **model):
        samples = [{"count": count} for count in counts]
        settings = {**SMALL_LORA, "model": {**SMALL_LORA["model"], **model}}
        memory = with_samples(num_ranks, samples, {"batch_size": at_a_time}, **settings)
        tiny = with_samples(num_ranks, [{"width": 8, "height": 8}], {"batch_size": 1}, **settings)
        return (memory.sampling - tiny.sampling) / 1024**2

    def of_denoiser(num_images, value_bytes=2, weight_bytes=2):  # and no VAE, which `tiny` has
        return pytest.approx(1.1 * num_images * value_bytes * 456 - 83_653_863 * weight_bytes / 1024**2, rel=1e-3)

    assert held(1, [1], 4) == pytest.approx(1.1 * 3 * 256 * 2, rel=1e-3)
    assert held(1, [1, 2], 4) == of_denoiser(3)
    assert held(1, [8, 1], 4) == of_denoiser(4)
    assert held(4, [8, 1], 4) == of_denoiser(3)  # nine over four ranks
    assert held(1, [8], 4, weight_dtype="float32") == of_denoiser(4, 4, 4)
    assert held(1, [8], 4, weight_dtype="float32", mixed_precision="bf16") == of_denoiser(4, 2, 4)


@pytest.mark.usefixtures("uncorrected")
def test_the_largest_picture_and_the_precision_decide_what_is_decoded():
    def decoding(width, **model):
        samples = [{"width": width, "height": 512}, {"width": 256, "height": 256}]
        memory = with_samples(samples=samples, sampling={"batch_size": 1}, model=model)
        without = with_samples(samples=[{"width": 8, "height": 8}], sampling={"batch_size": 1}, model=model)
        return (memory.sampling - without.sampling) / 1.1 / (width * 512 - 8 * 8) / 256

    for width in (512, 1024):
        assert decoding(width, weight_dtype="float32") == pytest.approx(3 * 4)
    assert decoding(512, weight_dtype="bfloat16") == pytest.approx(3 * 2)
    assert decoding(512, weight_dtype="float16") == pytest.approx(3 * 4)
    assert decoding(512, weight_dtype="float32", mixed_precision="bf16") == pytest.approx(3 * 4)


def test_samples_from_an_average_in_half_precision_take_a_copy_of_what_trains():
    full = {"method": "full", "model": {"weight_dtype": "bfloat16"}, "optimizer": {"name": "sgd"}}
    averaged = with_samples(**full, ema={"enabled": True})
    assert averaged.sampling - with_samples(**full).sampling == pytest.approx(UNET * (4 + 2))
    assert averaged.sampling - with_samples(**full, ema={"enabled": True, "sample": False}).sampling == UNET * 2


@pytest.mark.usefixtures("uncorrected")
def test_a_vae_that_trains_alone_is_joined_by_the_denoiser():
    memory = with_samples(method="vae", optimizer={"name": "sgd"}, model={"weight_dtype": "float32"})
    vae = 83_653_863
    decoding = 1024 * 1024 * 256 * 12
    assert memory.sampling == pytest.approx((UNET + 2 * vae) * 4 + decoding * 1.1 + PROCESS_BYTES)  # and momentum


def test_one_of_two_experts_takes_half_unless_samples_need_both():
    both, one = (estimate(family="wan22_a14b", denoiser={"expert": expert}) for expert in ("both", "low"))
    assert one.weights == pytest.approx(both.weights / 2)
    assert one.optimizer == pytest.approx(both.optimizer / 2, rel=1e-6)
    sampling = {"at_end": True, "samples": [{"prompt": "a cat"}]}
    assert estimate(family="wan22_a14b", denoiser={"expert": "low"}, sampling=sampling).weights > 0.99 * both.weights
