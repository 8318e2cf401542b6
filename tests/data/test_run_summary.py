"""The dry run says what a run would do, and refuses what the run would refuse."""

import os
import re
import shutil
from pathlib import Path

import pytest

from modules.config.errors import ConfigError, UserError
from modules.config.files import config_from_values
from modules.data.run_summary import DiskNeed
from modules.session.RunSummary import RunSummary
from tests.support.backup_files import state_of, write_backup
from tests.support.run_summaries import summary_text

SIZES = ((64, 64), (64, 64), (64, 64), (96, 64), (64, 96))


@pytest.fixture
def values(tiny_sd15, picture_folder, tmp_path):
    return {
        "model": {"base": str(tiny_sd15)},
        "workspace_dir": str(tmp_path / "run"),
        "cache_dir": str(tmp_path / "cache"),
        "batch_size": 2,
        "gradient_accumulation_steps": 2,
        "epochs": 3,
        "data": {"resolution": 64, "bucket_step": 16},
        "concepts": [{"path": str(picture_folder(SIZES)), "repeats": 2}],
    }


def lines_of(values, num_ranks=1):
    return [line.split(":", 1) for line in summary_text(config_from_values(values), num_ranks).splitlines()]


def text_of(values, label, num_ranks=1):
    return next(text.strip() for name, text in lines_of(values, num_ranks) if name == label)


def test_pictures_steps_and_batch_are_those_of_the_plan(values):
    assert text_of(values, "Images") == "5"
    assert text_of(values, "Steps") == "9 (3 epochs of 10 samples, 3 steps each)"
    capped = text_of({**values, "max_steps": 4}, "Steps")
    assert capped == "4 of 9, limited by max_steps (3 epochs of 10 samples, 3 steps each)"
    assert text_of(values, "Batch") == "2 per device x 1 device x 2 accumulation = 4"
    assert "64x64: 3" in text_of(values, "Buckets")


def test_the_memory_of_a_rank_and_of_the_machine_is_told(values):
    assert re.fullmatch(r"about \S+ MB in the process, by estimate", text_of(values, "Memory"))
    assert text_of(values, "Memory", num_ranks=2).endswith(" in each process, by estimate")
    on_gpus = summary_text(config_from_values(values), 2, gpus=2)
    told = dict(line.split(":", 1) for line in on_gpus.splitlines())
    assert re.search(r"about \S+ MB on each GPU, by estimate$", told["GPU memory"])
    assert told["System memory"].strip() == "about 3.01 GB, by estimate"


def test_what_compiling_costs_is_told_with_the_steps_that_repay_it(values):
    assert "torch.compile" not in {label for label, _ in lines_of(values)}
    model = {**values["model"], "compile": "blocks", "compile_sizes": "each"}
    line = text_of({**values, "model": model}, "torch.compile")
    assert re.match(r"\d sizes, a graph for each: about \d+ s on an H200 .* pays from about [\d,]+ steps on", line)
    line = text_of({**values, "model": {**model, "compile_sizes": "all"}}, "torch.compile")
    assert re.match(r"\d sizes, one graph for all sizes: about [36]0 s on", line)


def test_the_format_of_products_in_8_bits_is_told_with_the_size_of_their_layers(values):
    assert "8-bit matmul" not in {label for label, _ in lines_of(values)}
    model = {**values["model"], "denoiser_quantization": "int8", "quantized_matmul": "on"}
    values |= {"method": "lora", "model": model}
    assert text_of(values, "8-bit matmul") == "int8, in layers of at least 10 million weights"
    values["model"]["quantized_matmul_size"] = 0
    values["model"]["quantized_matmul_rotation"] = True
    assert text_of(values, "8-bit matmul") == "int8, in all quantized layers, with rotated inputs"


def test_the_method_is_called_as_in_the_window(values):
    assert text_of(values, "Method") == "LoRA"


def test_what_is_predicted_is_told(values):
    assert text_of(values, "Predicts") == "epsilon, by its scheduler"
    vae = {label for label, _ in lines_of({**values, "method": "vae"})}
    assert "Predicts" not in vae


def test_parts_from_elsewhere_are_told_with_what_they_are(values, tiny_sd15):
    clip, vae = tiny_sd15 / "text_encoder" / "model.safetensors", tiny_sd15 / "vae"
    model = {**values["model"], "vae": str(tiny_sd15), "text_encoders": [str(clip)]}
    assert text_of({**values, "model": model}, "Parts") == f"vae from {vae}, text_encoder from {clip}"
    assert text_of({**values, "model": model, "method": "vae"}, "Parts") == f"vae from {vae}"
    assert "Parts" not in {label for label, _ in lines_of(values)}


def test_captions_that_are_missing_empty_or_not_read_are_told(values):
    folder = Path(values["concepts"][0]["path"])
    (folder / "000.txt").write_text("")
    (folder / "001.txt").rename(folder / "001.caption")
    assert [text.strip() for label, text in lines_of(values) if label == "Warning"] == [
        f"1 image has no caption (trained without one), such as {folder / '001.png'}.",
        f"1 image has an empty caption (trained without one), such as {folder / '000.png'}.",
        "1 image has a .caption file but no .txt file, which alone is read: set concepts.0.caption_extension to "
        f".caption, or rename the file, such as {folder / '001.caption'}.",
    ]


def test_variants_texts_and_held_out_pictures_are_counted(values, picture_folder):
    assert text_of(values, "Captions") == "6 different texts are cached"  # with the empty one
    values["concepts"][0] |= {"augmentation": {"flip": True}, "shuffle_tags": True}
    values["concepts"].append({"path": str(picture_folder(SIZES[:2], name="held")), "validation": True})
    values["data"] |= {"resolutions": [48, 64], "augmentation_variants": 3}
    assert text_of(values, "Images") == "7"
    assert text_of(values, "Variants").startswith("32 ")  # 5 x 2 x 3, and 2 as they are
    assert text_of(values, "Validation") == "2 of the images are never trained on"
    assert text_of(values, "Steps") == "9 (3 epochs of 10 samples, 3 steps each)"
    assert text_of({**values, "text_encoder": {"train": True}}, "Captions") == "encoded in each step"


def test_masked_training_says_how_many_images_have_a_mask(values):
    folder = Path(values["concepts"][0]["path"])
    shutil.copy(folder / "000.png", folder / "000-masklabel.png")
    assert "mask" not in text_of(values, "Images")
    values |= {"loss": {"masked_training": True}, "data": {**values["data"], "resolutions": [48, 64]}}
    assert text_of(values, "Images") == "5, 1 with a mask"


def test_a_refused_caption_names_its_image_to_programs(values):
    folder = Path(values["concepts"][0]["path"])
    (folder / "001.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(UserError, match="not UTF-8") as refused:
        lines_of(values)
    told = RunSummary.from_json(RunSummary(problems=tuple(refused.value.problems)).to_json())
    assert told.problems[0].images == (str(folder / "001.png"),)


def test_a_resumed_run_has_the_batch_of_its_backup_on_any_number_of_devices(values, tmp_path):
    run = {"global_batch": 8, "samples": "digest"}
    state = state_of(1, run=run, learning_rate_factor=2.0)
    write_backup(tmp_path / "run" / "backup", 1, state)
    lines = dict(line.split(":", 1) for line in summary_text(config_from_values(values), 1, resume=True).splitlines())
    assert lines["Resume"].strip() == "from the backup of step 1, 5 steps left"
    assert lines["Steps"].strip() == "6 (3 epochs of 10 samples, 2 steps each)"
    assert lines["Batch"].strip() == "2 per device x 1 device x 4 accumulation = 8"
    assert lines["Learning rate"].strip() == "1e-4 -> 2e-4 (as in the backup)"


def test_the_epochs_before_a_backup_may_have_had_other_images(values, tmp_path):
    state = state_of(10, run={"global_batch": 8, "samples": "digest"}, epoch=1, step_in_epoch=0)
    write_backup(tmp_path / "run" / "backup", 10, state)
    lines = dict(line.split(":", 1) for line in summary_text(config_from_values(values), 1, resume=True).splitlines())
    assert lines["Steps"].strip() == "14 (3 epochs of 10 samples, 2 steps each)"
    assert lines["Resume"].strip() == "from the backup of step 10, 4 steps left"


def test_a_run_without_a_backup_is_resumed_with_its_settings(values):
    assert summary_text(config_from_values(values), 1, resume=True) == summary_text(config_from_values(values), 1)


def test_more_devices_mean_fewer_steps_and_a_scaled_rate(values):
    assert text_of(values, "Steps", num_ranks=4).startswith("3 (3 epochs")
    assert text_of(values, "Learning rate", num_ranks=4) == "1e-4 -> 2e-4 (sqrt)"
    values |= {"batch_size_mode": "global", "batch_size": 4}
    assert text_of(values, "Learning rate", num_ranks=2) == "1e-4"
    with pytest.raises(UserError, match=r"batch_size 4 \(global\) on 3 GPUs"):
        summary_text(config_from_values(values), num_ranks=3)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_a_name_stays_on_its_line_whatever_it_holds(values):
    name = "a\x1b]0;pwned\x07\n\u202egnp.png"
    Path(values["concepts"][0]["path"], name).write_bytes(b"no picture")
    lines = [line for line in summary_text(config_from_values(values)).splitlines() if line.startswith("Left out:")]
    assert len(lines) == 1
    assert r"/a\x1b]0;pwned\x07\n\u202egnp.png (" in lines[0]


def test_a_batch_above_an_epoch_is_warned_of(values):
    values["batch_size"] = 8
    assert ["Warning", "10 samples < 16 per step: each step is a whole epoch."] in [
        [name, text.strip()] for name, text in lines_of(values)
    ]


def test_what_begins_after_the_last_step_is_warned_of(values):
    values |= {"schedule": {"warmup": 9}, "ema": {"enabled": True, "start_after": 9}}
    texts = [text for name, text in lines_of(values) if name == "Warning"]
    assert any("schedule.warmup 9 does not end within the run's 9 steps" in text for text in texts)
    assert any("ema.start_after 9" in text for text in texts)
    values |= {"schedule": {"warmup": 8}, "ema": {"enabled": True, "start_after": 8}}
    assert "Warning" not in [name for name, _ in lines_of(values)]


def test_an_unreadable_picture_is_listed(values, tmp_path):
    broken = tmp_path / "pictures" / "broken.png"
    broken.write_bytes(b"no picture")
    assert "broken.png" in text_of(values, "Left out")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data": {"resolution": 500}}, "multiple of 8"),
        ({"model": {"base": "/nowhere/model"}}, "no such folder"),
        ({"concepts": []}, "there is no dataset yet"),
        ({"sampling": {"samples": [{"prompt": "x", "width": 100}]}}, "sampling.samples.0.width 100"),
    ],
)
def test_what_the_run_would_refuse_is_refused(values, change, sentence):
    with pytest.raises(UserError, match=sentence):
        summary_text(config_from_values({**values, **change}))


def test_settings_that_contradict_each_other_are_refused(values):
    values["denoiser"] = {"train": False}
    with pytest.raises(ConfigError, match="nothing would be trained"):
        summary_text(config_from_values(values))


def test_a_small_disk_is_warned_of(tmp_path):
    need = DiskNeed("cache_dir", str(tmp_path), needed_bytes=1e18)
    assert need.warning.startswith(f"cache_dir {str(tmp_path)!r} has")
    assert DiskNeed("cache_dir", str(tmp_path / "not" / "yet"), needed_bytes=1).warning is None


def test_each_part_has_its_rate(values):
    values["text_encoder"] = {"train": True, "learning_rate": 1e-5}
    assert (
        text_of(values, "Learning rate", num_ranks=4)
        == "denoiser 1e-4 -> 2e-4 (sqrt); text encoder 1e-5 -> 2e-5 (sqrt)"
    )


def test_a_strategy_that_the_ranks_decide_is_told_as_expected(values):
    values["distributed_strategy"] = "auto"
    assert "Strategy" not in dict(lines_of(values))
    assert text_of(values, "Strategy", num_ranks=2).startswith("DDP is expected, because there are no GPUs")
