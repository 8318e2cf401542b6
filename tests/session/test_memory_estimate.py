"""What a run is said to take of a GPU's memory: against sums made by hand, and the presets against their sizes."""

import pytest

from modules.config.files import config_from_values
from modules.config.presets import (
    MEMORY_SIZES,
    has_variants,
    list_presets,
    load_preset,
    merge_values,
    variant_name,
    why_not_offered,
)
from modules.session.memory_estimate import GIB, SYSTEM_BYTES, estimate_memory

VARIANTS = [
    (preset.name, memory) for preset in list_presets() if has_variants(preset.name) for memory in MEMORY_SIZES
]
UNET = 859_520_964  # of Stable Diffusion 1.5
SDXL = 2_567_463_684


def estimate(num_ranks=None, **values):
    return estimate_memory(config_from_values(values), num_ranks)


@pytest.mark.parametrize(("name", "memory"), VARIANTS)
def test_a_preset_is_offered_where_it_leaves_the_system_its_share_and_nowhere_else(name, memory):
    room = memory * GIB - SYSTEM_BYTES
    if not why_not_offered(name, memory):
        for num_gpus in (1, 2, 4, 8):
            config = config_from_values(load_preset(variant_name(name, memory, num_gpus)))
            assert estimate_memory(config).peak <= room
        return
    least = {"batch_size": 1, "batch_size_mode": "per_device", "model": {"gradient_checkpointing": True}}
    config = config_from_values(merge_values(load_preset(name), least))
    assert estimate_memory(config, num_ranks=2).peak > room


def test_full_training_in_float32_keeps_weights_gradients_moments_average_and_autocast_copies():
    memory = estimate(
        method="full",
        model={"weight_dtype": "float32", "mixed_precision": "bf16"},
        optimizer={"name": "adamw"},
        ema={"enabled": True},
    )
    assert memory.weights == UNET * (4 + 2)
    assert (memory.gradients, memory.optimizer, memory.average) == (UNET * 4, UNET * 8, UNET * 4)


def test_stochastic_rounding_keeps_the_optimizers_state_in_float32_and_some_weights_at_a_time():
    model = {"weight_dtype": "bfloat16", "mixed_precision": "bf16"}
    memory = estimate(method="full", model=model, optimizer={"name": "adamw", "stochastic_rounding": True})
    assert (memory.weights, memory.gradients, memory.optimizer) == (UNET * 2, UNET * 2, UNET * 8)
    assert memory.stepping == GIB
    factored = estimate(method="full", model=model, optimizer={"name": "adafactor", "stochastic_rounding": True})
    assert factored.optimizer == 0


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
