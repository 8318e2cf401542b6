from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modules.config.errors import UserError
from modules.session.StepInfo import StepInfo
from modules.session.TrainCommands import TrainCommands
from modules.trainer.attach_method import attach_method
from modules.trainer.GenericTrainer import GenericTrainer
from modules.trainer.TrainingError import StopRequested, TrainingError
from modules.weights.errors import WeightsError
from modules.weights.safe import load_tensors
from tests.support.Recorder import Recorder

SAMPLE = (
    "sampling.samples.0.prompt=a photo of a cat",
    "sampling.samples.0.width=32",
    "sampling.samples.0.height=32",
    "sampling.samples.0.steps=2",
    "sampling.samples.0.count=2",
)


def curve(trainer) -> torch.Tensor:
    return torch.tensor(trainer.callbacks.losses, dtype=torch.float64)


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def lora(trainer, name: str = "model") -> dict[str, torch.Tensor]:
    return load_tensors(trainer.run_folder.models_dir / f"{name}.safetensors")


def num_cached(config, kind: str) -> int:
    return len(list(Path(config.cache_dir).glob(f"rank-*/{kind}/*/*.safetensors")))


def spoil(path: Path) -> None:
    """An image with a valid header and corrupt data."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def pictures(config) -> list[Path]:
    return sorted(Path(config.concepts[0].path).glob("*.png"))


@pytest.fixture
def count_encoding(monkeypatch) -> dict[str, int]:
    """Counts calls of the VAE and the text encoder."""
    import modules.data.caching
    import modules.families.conditioning
    import modules.families.latents

    counts = {"pictures": 0, "captions": 0}
    encode_pixels = modules.families.latents.encode_pixels
    encode_records = modules.families.conditioning.encode_records

    def counted_pixels(family, vae, batch):
        counts["pictures"] += len(batch)
        return encode_pixels(family, vae, batch)

    def counted_text(family, pipe, prompts, references=None):
        counts["captions"] += len(prompts)
        return encode_records(family, pipe, prompts, references)

    monkeypatch.setattr("modules.families.latents.encode_pixels", counted_pixels)
    monkeypatch.setattr("modules.families.conditioning.encode_records", counted_text)
    return counts


# --- the same run, cut differently ------------------------------------------------------------------------------------


def test_three_epochs_do_not_depend_on_micro_batches(make_config, train, tmp_path):
    curves = []
    for accumulation in (1, 4):
        trainer = train(
            make_config(
                "batch_size=8",
                "batch_size_mode=global",
                f"gradient_accumulation_steps={accumulation}",
                "model.weight_dtype=float64",
                "max_steps=6",
                "data.caption_dropout=0.1",
                f"workspace_dir={tmp_path / str(accumulation)}",
            )
        )
        assert len(trainer.prepared.source.buckets.shapes) == 3
        assert [info.samples for info in trainer.callbacks.steps[:4]] == [8, 3, 8, 3]
        curves.append(curve(trainer))
    assert curves[0].std() > 1e-3  # a flat curve would prove nothing
    torch.testing.assert_close(curves[1], curves[0], rtol=1e-9, atol=0)


def test_an_epoch_trains_every_image_once(make_config, start):
    trainer = start(make_config("batch_size=4", "epochs=2", "max_steps=null", "gradient_accumulation_steps=1"))
    seen = []
    forward = trainer.prepared.source.batch

    class Watched:
        def batch(self, micro_batch, epoch):
            seen.extend((epoch, int(sample)) for sample, _ in micro_batch.samples if micro_batch.real)
            return forward(micro_batch, epoch)

    trainer._prepared = replace(trainer.prepared, source=Watched())
    trainer.train()
    assert trainer.step == trainer.loop.total_steps == 6
    assert sorted(seen) == [(epoch, sample) for epoch in range(2) for sample in range(11)]


# --- commands ---------------------------------------------------------------------------------------------------------


def test_a_stop_backs_up_and_saves_and_the_run_can_be_resumed(make_config, start, train):
    config = make_config("max_steps=12", "backup.at_end=false")
    first = start(config)
    first.commands.stop()
    first.train()
    first.end()
    assert first.stopped
    assert 1 <= first.step <= 2
    assert [step for _, step in first.callbacks.backups] == [first.step]
    assert len(first.callbacks.saved) == 1
    second = train(config, resume=True)
    assert not second.stopped
    assert second.callbacks.steps[0].step == first.step + 1
    assert second.step == 12
    assert [path.name for path in first.callbacks.saved] == [f"model-step{first.step:06d}.safetensors"]
    assert [path.name for path in second.callbacks.saved] == ["model.safetensors"]


def test_a_run_that_is_asked_to_stop_at_its_last_step_has_finished(make_config, start):
    trainer = start(make_config("max_steps=1", "backup.at_end=false"))
    trainer.commands.stop()
    trainer.train()
    trainer.end()
    assert (trainer.step, trainer.stopped) == (1, False)
    assert [path.name for path in trainer.callbacks.saved] == ["model.safetensors"]


def test_sample_backup_and_save_commands_work_during_training(make_config, start):
    trainer = start(make_config(*SAMPLE, "max_steps=8", "backup.at_end=false"))
    trainer.commands.sample()
    trainer.commands.backup()
    trainer.commands.save()
    trainer.train()
    trainer.end()
    callbacks = trainer.callbacks
    assert len(callbacks.samples) == 2
    assert [step for _, step in callbacks.backups] == [2]
    assert [path.name for path in callbacks.saved] == ["model-step000002.safetensors", "model.safetensors"]
    assert trainer.step == 8


# --- sampling ---------------------------------------------------------------------------------------------------------


def test_samples_are_made_at_the_start_and_every_few_steps_reproducibly_and_affect_no_step(
    make_config, train, tmp_path
):
    settings = ("max_steps=5", "lora.dropout=0.2")
    sampling = (*SAMPLE, "sampling.at_start=true", "sampling.every=2", "sampling.unit=steps")
    first = train(make_config(*settings, *sampling))
    again = train(make_config(*settings, *sampling, f"workspace_dir={tmp_path / 'again'}"))
    without = train(make_config(*settings, f"workspace_dir={tmp_path / 'without'}"))
    assert curve(without).tolist() == curve(first).tolist()
    folders = sorted({path.parent.name for path in first.callbacks.samples})
    assert folders == ["step-000000000", "step-000000002", "step-000000004"]
    assert len(first.callbacks.samples) == 6
    for own, other in zip(first.callbacks.samples, again.callbacks.samples, strict=True):
        assert np.array_equal(pixels(own), pixels(other))
    start, later = first.callbacks.samples[0], first.callbacks.samples[4]
    assert not np.array_equal(pixels(start), pixels(later))  # the weights have changed
    one, two = first.callbacks.samples[:2]
    assert not np.array_equal(pixels(one), pixels(two))  # different seeds


def test_an_image_does_not_depend_on_the_rest_of_its_batch(make_config, start):
    trainer = start(make_config(*SAMPLE, "sampling.batch_size=1"))
    trainer.sample()
    alone = [pixels(path) for path in trainer.callbacks.samples]
    trainer.config.sampling.batch_size = 2
    trainer.callbacks.samples.clear()
    trainer.sample()
    for own, other in zip(alone, (pixels(path) for path in trainer.callbacks.samples), strict=True):
        assert np.abs(own.astype(int) - other.astype(int)).max() <= 1


def test_the_model_is_saved_before_the_final_samples(make_config, start, monkeypatch):
    trainer = start(make_config(*SAMPLE, "sampling.at_end=true", "max_steps=1"))
    trainer.train()
    saved = []
    monkeypatch.setattr(trainer, "sample", lambda: saved.extend(trainer.callbacks.saved))
    trainer.end()
    assert saved == trainer.callbacks.saved != []


def test_a_last_step_at_which_samples_were_due_anyway_is_sampled_once(make_config, train):
    settings = ("sampling.every=2", "sampling.unit=steps", "sampling.at_end=true", "max_steps=4")
    trainer = train(make_config(*SAMPLE, *settings))
    assert [path.parent.name for path in trainer.callbacks.samples] == 2 * ["step-000000002"] + 2 * ["step-000000004"]


def test_sampling_every_few_minutes_follows_the_clock(make_config, start, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("modules.trainer.Trigger.time.monotonic", lambda: now[0])
    trainer = start(make_config(*SAMPLE, "sampling.every=1", "sampling.unit=minutes", "max_steps=12"))
    on_step = trainer.callbacks.on_step

    def watch(info: StepInfo) -> None:
        now[0] += 10
        on_step(info)

    trainer.callbacks.on_step = watch
    trainer.train()
    assert len({path.parent for path in trainer.callbacks.samples}) == 1


# --- average, backups, models -----------------------------------------------------------------------------------------


def test_the_saved_model_has_the_averaged_weights(make_config, train):
    trainer = train(make_config("ema.enabled=true", "ema.decay=0.9", "max_steps=6"))
    saved = lora(trainer)
    averages = torch.cat([value.flatten() for value in trainer.loop.ema.averages.values()]).sort().values
    weights = torch.cat([param.detach().flatten() for param in trainer.loop.trainable.values()]).sort().values
    written = torch.cat([v.flatten() for name, v in saved.items() if "alpha" not in name]).sort().values
    assert torch.equal(written, averages)
    assert not torch.equal(written, weights)


def test_old_backups_are_removed_and_models_are_kept(make_config, train):
    trainer = train(
        make_config(
            "max_steps=8", "backup.every=2", "backup.unit=steps", "backup.keep=2", "output.every=3",
            "output.unit=steps",
        )
    )  # fmt: skip
    assert [path.name for path in trainer.backups.paths()] == ["step-000000008", "step-000000006"]
    assert [step for _, step in trainer.callbacks.backups] == [2, 4, 6, 8]
    assert sorted(path.name for path in trainer.run_folder.models_dir.iterdir()) == [
        "model-step000003.safetensors", "model-step000006.safetensors", "model.safetensors",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        ("output.format=both", "ema.enabled=true", "output.save_ema=both"),
        ("method=full", "output.format=diffusers", "output.dtype=float16"),
    ],
)
def test_only_the_last_models_of_the_training_are_kept_with_all_their_files(settings, make_config, train):
    config = make_config("max_steps=4", "output.keep=2", "output.every=1", "output.unit=steps", *settings)
    models = train(replace(config, max_steps=1)).run_folder.models_dir
    (models / "model-step000009_kohya.safetensors").touch()  # of a later step than the one that a resume went on from
    (models / "other-step000001.safetensors").touch()
    per_model = len(list(models.iterdir())) // 2 - 1  # those of the first step, and as many of the end
    train(replace(config, max_steps=4), resume=True)
    names = sorted(path.name for path in models.iterdir())
    assert sum("model-step000003" in name for name in names) == per_model
    assert sum("model-step000004" in name for name in names) == per_model
    assert sum("model-step000001" in name for name in names) == per_model  # those with which the run had first finished
    assert not any("model-step000002" in name for name in names)
    assert {"model-step000009_kohya.safetensors", "other-step000001.safetensors"} <= {*names}


def test_saving_does_not_affect_training(make_config, train, tmp_path):
    full = ("method=full", "output.format=both", "output.dtype=float16", "max_steps=4", "optimizer.learning_rate=1e-4")
    plain = train(make_config(*full))
    saving = train(make_config(*full, "output.every=1", "output.unit=steps", f"workspace_dir={tmp_path / 'saving'}"))
    assert curve(plain).tolist() == curve(saving).tolist()


def test_a_model_that_can_not_be_written_is_a_warning_during_training_and_an_error_at_the_end(
    make_config, start, monkeypatch
):
    def refuse(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    trainer = start(make_config("output.every=2", "output.unit=steps", "output.wait_minutes=0"))
    monkeypatch.setattr(type(trainer.method), "save", refuse)
    trainer.train()
    assert trainer.step == 4
    assert len(trainer.callbacks.warnings) == 2
    assert "training continues" in trainer.callbacks.warnings[0]
    with pytest.raises(TrainingError, match=r"No space left on device.*resume from the backup of step 4\.$"):
        trainer.end()
    monkeypatch.undo()
    assert start(make_config(), resume=True).step == 4  # the backup was written before


def test_a_folder_with_an_earlier_run_is_refused_and_left_unchanged(make_config, train, start):
    config = make_config("max_steps=2")
    trainer = train(config)
    frozen = trainer.run_folder.config_path.read_bytes()
    with pytest.raises(UserError, match="holds a run already: resume it"):
        start(make_config("max_steps=3"))
    assert trainer.run_folder.config_path.read_bytes() == frozen


def test_a_failed_start_leaves_a_usable_folder(make_config, train, start):
    with pytest.raises(UserError, match="does not exist"):
        start(make_config("concepts.0.path=nowhere"))
    with pytest.raises(UserError):
        start(make_config("model.base=nowhere"))
    assert train(make_config("max_steps=1")).step == 1


def test_resuming_without_a_backup_starts_with_a_warning(make_config, train):
    trainer = train(make_config("max_steps=1"), resume=True)
    assert trainer.step == 1
    assert any("no backup" in text for text in trainer.callbacks.warnings)


def test_a_damaged_backup_is_skipped_for_the_previous_one(make_config, train):
    settings = ("backup.every=2", "backup.unit=steps", "backup.keep=3")
    first = train(make_config("max_steps=4", *settings))
    (newest, *_) = first.backups.paths()
    (newest / "optimizer.safetensors").write_bytes((newest / "optimizer.safetensors").read_bytes()[:-3])
    second = train(make_config("max_steps=6", *settings), resume=True)
    assert second.callbacks.steps[0].step == 3
    assert any("step-000000004 is damaged" in text for text in second.callbacks.warnings)
    assert second.backups.newest().data["step"] == 6


def test_a_backup_of_other_parts_is_refused(make_config, train, start):
    train(make_config("max_steps=1"))
    with pytest.raises(UserError, match="trainable parameters of the backup"):
        start(make_config("max_steps=2", "text_encoder.train=true"), resume=True)


# --- data -------------------------------------------------------------------------------------------------------------


def test_caption_dropout_drops_the_same_captions_in_every_run(make_config, start):
    def prompts(trainer):
        return [batch.prompts for step in trainer._steps() for batch in step.micro_batches]

    settings = ("max_steps=12", "text_encoder.train=true")
    first = prompts(start(make_config("data.caption_dropout=0.5", *settings)))
    assert first == prompts(start(make_config("data.caption_dropout=0.5", *settings)))
    flat = [prompt for batch in first for prompt in batch]
    assert 0.3 < flat.count("") / len(flat) < 0.7
    kept = [prompt for batch in prompts(start(make_config(*settings))) for prompt in batch]
    assert "" not in kept


def test_a_dropped_caption_uses_the_cached_empty_caption(make_config, start):
    trainer = start(make_config("data.caption_dropout=1.0"))
    (step, *_) = trainer._steps()
    empty = trainer.prepared.source.text.record("")["prompt_embeds"]
    other = trainer.prepared.source.text.record(trainer.prepared.source.captions.options[0][0])["prompt_embeds"]
    for batch in step.micro_batches:
        assert set(batch.prompts) == {""}
        assert all(torch.equal(record, empty) for record in batch.text["prompt_embeds"])
    assert not torch.equal(empty, other)


def test_a_regularization_concept_has_its_loss_weight(make_config, start, picture_folder):
    regularisation = picture_folder(((32, 32),) * 11, name="regularisation")
    settings = (
        f"concepts.1.path={regularisation}", "concepts.1.regularisation=true", "concepts.1.loss_weight=0.25",
        "batch_size=22", "model.weight_dtype=float64",
    )  # fmt: skip
    trainer = start(make_config(*settings))
    (step, *_) = trainer._steps()
    of_regularisation = {0.25: 0, 1.0: 0}
    losses = []
    for batch in step.micro_batches:
        for weight in batch.weight.tolist():
            of_regularisation[weight] += 1
        with torch.no_grad():
            losses.append(trainer.loop.model(batch)[0])
    assert of_regularisation == {0.25: 11, 1.0: 11}
    trainer.loop.train_step(step)
    trainer.loop.flush()
    assert trainer.callbacks.losses[0] == pytest.approx(float(sum(losses)) / 22, rel=1e-12)


def test_encoders_leave_memory_once_everything_is_cached(make_config, start):
    trainer = start(make_config())
    assert trainer.prepared.base.module("vae") is None
    assert trainer.prepared.base.module("text_encoder") is None
    trainer.train()
    trainer.save()
    trainer.sample()
    assert trainer.prepared.base.module("vae") is None
    assert trainer.prepared.base.module("text_encoder") is None
    assert trainer.prepared.base.module("unet") is not None


def test_a_trained_text_encoder_stays_in_memory(make_config, start):
    trainer = start(make_config("text_encoder.train=true"))
    assert trainer.prepared.base.module("text_encoder") is not None
    assert trainer.prepared.base.module("vae") is None
    assert num_cached(trainer.config, "text") == 0


def test_a_second_start_encodes_nothing(make_config, start, count_encoding):
    config = make_config()
    start(config)
    assert count_encoding == {"pictures": 11, "captions": 12}
    start(config)
    assert count_encoding == {"pictures": 11, "captions": 12}


def test_only_a_new_image_is_encoded(make_config, start, count_encoding):
    config = make_config()
    start(config)
    first = pictures(config)[0]
    with Image.open(first) as image:
        image.transpose(Image.Transpose.ROTATE_180).save(first.with_name("100.png"))
    first.rename(first.with_name("200.png"))
    first.with_suffix(".txt").rename(first.with_name("200.txt"))
    start(config)
    assert count_encoding["pictures"] == 12


def test_interrupted_caching_continues(make_config, start, count_encoding, monkeypatch):
    from modules.data.TensorCache import TensorCache

    put, puts = TensorCache.put, []

    def interrupted(self, key, record):
        if len(puts) == 5:
            raise KeyboardInterrupt
        puts.append(key)
        put(self, key, record)

    config = make_config()
    monkeypatch.setattr(TensorCache, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(config)
    monkeypatch.setattr(TensorCache, "put", put)
    assert num_cached(config, "latents") == 5
    count_encoding.update(pictures=0)
    start(config)
    assert count_encoding["pictures"] == 6


def test_damaged_cache_entries_are_recreated_during_training(make_config, train, tmp_path, count_encoding):
    good = train(make_config())
    for kind in ("latents", "text"):
        cut, flipped, deleted, *_ = sorted(Path(good.config.cache_dir).glob(f"rank-0/{kind}/*/*.safetensors"))
        for path, change in {cut: lambda last: b"", flipped: lambda last: bytes([last[0] ^ 1]) + last[1:]}.items():
            whole = path.read_bytes()
            path.unlink()
            path.write_bytes(whole[:-9] + change(whole[-9:]))
        deleted.unlink()
    count_encoding.update(pictures=0, captions=0)
    again = train(make_config(f"workspace_dir={tmp_path / 'again'}"))
    assert count_encoding == {"pictures": 3, "captions": 3}
    # encoded alone instead of in a batch: the last bits may differ
    torch.testing.assert_close(curve(again), curve(good), rtol=1e-6, atol=0)


def test_a_stop_while_an_entry_is_recreated_still_backs_up_and_saves(make_config, start):
    config = make_config()
    start(config)
    trainer = start(config)
    for path in Path(config.cache_dir).glob("rank-0/*/*/*.safetensors"):
        path.unlink()
    trainer.commands.stop()
    trainer.train()
    trainer.end()
    assert trainer.stopped
    assert len(trainer.callbacks.backups) == len(trainer.callbacks.saved) == 1


def test_a_stop_during_caching_ends_the_start_and_keeps_the_cache(make_config, start, monkeypatch):
    config = make_config()
    commands = TrainCommands()
    commands.stop()
    with pytest.raises(StopRequested):
        GenericTrainer(config, Recorder(), commands).start()
    assert num_cached(config, "latents") > 0
    assert start(config).loop.total_steps == 4


def test_an_image_that_vanishes_with_its_cache_entry_is_a_one_sentence_error(make_config, start):
    config = make_config()
    start(config)
    trainer = start(config)
    for path in Path(config.cache_dir).glob("rank-0/latents/*/*.safetensors"):
        path.unlink()
    for path in pictures(config):
        path.unlink()
    with pytest.raises(UserError, match=r"00\d\.png can't be used"):
        trainer.train()


# The header is read before the method matters.
@pytest.mark.parametrize(("fault", "method"), [("no picture", "lora"), ("good header", "lora"), ("good header", "vae")])
def test_an_unreadable_image_is_left_out_and_listed(fault, method, make_config, train):
    config = make_config("epochs=1", "max_steps=null", f"method={method}")
    bad = pictures(config)[3]
    if fault == "no picture":
        bad.write_bytes(b"this is no picture")
    else:
        spoil(bad)
    trainer = train(config)
    assert sum(info.samples for info in trainer.callbacks.steps) == 10
    listed = [text for text in trainer.callbacks.warnings if "left out" in text]
    assert len(listed) == 1
    assert str(bad) in listed[0]


def test_two_unreadable_images_of_eleven_are_too_many(make_config, train, start):
    config = make_config()
    for path in pictures(config)[:2]:
        spoil(path)
    with pytest.raises(UserError, match=r"2 of 11 images can't be used, more than data.max_unreadable_share 0.1"):
        start(config)
    assert train(make_config("data.max_unreadable_share=0.5")).step == 4


def test_a_run_resumes_after_images_have_been_added(make_config, train):
    config = make_config("max_steps=4")
    train(config)
    first = pictures(config)[0]
    for number in range(2):
        shutil.copy(first, first.with_name(f"9{number}.png"))
    trainer = train(make_config("max_steps=8"), resume=True)
    assert trainer.step == 8
    assert any("planned again" in text for text in trainer.callbacks.warnings)


@pytest.mark.parametrize(("change", "steps"), [("added", 6 + 2 * 5), ("removed", 6 + 2)])
def test_after_images_have_changed_the_run_makes_its_remaining_epochs(change, steps, make_config, train):
    config = make_config("max_steps=null", "epochs=2")
    train(config)
    for number, path in enumerate(pictures(config)[:8]):
        if change == "added":
            shutil.copy(path, path.with_name(f"9{number}.png"))
        else:
            path.unlink()
    trainer = train(make_config("max_steps=null", "epochs=4"), resume=True)
    assert trainer.step == steps
    assert (trainer.callbacks.steps[-1].epoch, trainer.callbacks.steps[-1].steps_total) == (4, steps)


def test_a_part_that_has_stopped_does_not_train_again_after_images_have_been_added(make_config, train):
    stop = "text_encoder.train=true", "text_encoder.stop_after=1", "text_encoder.stop_unit=epochs"
    config = make_config("max_steps=null", "epochs=2", *stop)
    train(config)
    for path in pictures(config):
        for number in range(2):
            shutil.copy(path, path.with_name(f"{number}{path.name}"))
    trainer = train(make_config("max_steps=null", "epochs=3", *stop), resume=True)
    assert [info.metrics["lr/text_encoder"] for info in trainer.callbacks.steps] == [0.0] * 9


def test_fewer_images_than_a_step_are_only_a_warning(make_config, train):
    trainer = train(make_config("batch_size=16", "max_steps=2"))
    assert [info.samples for info in trainer.callbacks.steps] == [11, 11]
    assert any("11 samples < 16 per step" in text for text in trainer.callbacks.warnings)


# --- methods and families ---------------------------------------------------------------------------------------------


def test_the_vae_is_trained_and_saved(make_config, train, tiny_sd15):
    trainer = train(make_config("method=vae", "max_steps=60", "optimizer.learning_rate=2e-3", "batch_size=8"))
    losses = trainer.callbacks.losses
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    info = trainer.callbacks.steps[-1]
    kl = trainer.config.vae.kl_weight * info.metrics["kl"]
    assert info.loss == pytest.approx(info.metrics["reconstruction"] + kl, rel=1e-5)
    file = "vae/diffusion_pytorch_model.safetensors"
    saved = load_tensors(trainer.run_folder.models_dir / "model" / file)
    before = load_tensors(tiny_sd15 / file)
    assert saved.keys() == before.keys()
    assert any(not torch.equal(saved[name], before[name]) for name in saved)
    unet = "unet/diffusion_pytorch_model.safetensors"
    own = load_tensors(trainer.run_folder.models_dir / "model" / unet)
    assert all(torch.equal(own[name], value) for name, value in load_tensors(tiny_sd15 / unet).items())


def test_prodigy_with_learning_rates_per_part_is_refused_in_one_sentence(make_config, start):
    with pytest.raises(UserError, match="rodigy"):
        start(
            make_config(
                "optimizer.name=prodigy", "optimizer.learning_rate=1.0", "text_encoder.train=true",
                "text_encoder.learning_rate=0.5",
            )
        )  # fmt: skip


def test_memory_saving_settings_do_not_change_training(make_config, train, tmp_path):
    double = ("model.weight_dtype=float64", "text_encoder.train=true", "method=full", "optimizer.learning_rate=1e-4")
    plain = train(make_config(*double))
    for setting in ("model.gradient_checkpointing=true", "model.channels_last=false"):
        saving = train(make_config(*double, setting, f"workspace_dir={tmp_path / setting}"))
        torch.testing.assert_close(curve(saving), curve(plain), rtol=1e-9, atol=0)


def test_mixed_precision_is_close_to_full_precision(make_config, train, tmp_path):
    plain = train(make_config("max_steps=6"))
    for name in ("bf16", "fp16"):
        mixed = train(make_config("max_steps=6", f"model.mixed_precision={name}", f"workspace_dir={tmp_path / name}"))
        losses = [(a, b) for a, b in zip(mixed.callbacks.losses, plain.callbacks.losses, strict=True) if a is not None]
        assert len(losses) >= 3
        assert all(a == pytest.approx(b, rel=0.05) for a, b in losses)


def test_the_text_encoder_trains_alone(make_config, train):
    trainer = train(make_config("denoiser.train=false", "text_encoder.train=true", "model.gradient_checkpointing=true"))
    assert trainer.step == 4
    assert {name.split(".")[0] for name in trainer.loop.trainable} == {"text_encoder"}
    (file,) = trainer.run_folder.models_dir.iterdir()
    assert all(name.startswith("text_encoder.") for name in load_tensors(file))


def test_samples_and_the_saved_model_predict_what_was_trained(make_config, train):
    trainer = train(make_config("method=full", "model.prediction_type=v_prediction", "optimizer.learning_rate=1e-5"))
    (folder,) = trainer.run_folder.models_dir.iterdir()
    scheduler = json.loads((folder / "scheduler/scheduler_config.json").read_text())
    assert scheduler["prediction_type"] == "v_prediction"
    assert trainer.prepared.base.pipe.scheduler.config.prediction_type == "v_prediction"


def test_a_base_of_the_hub_that_predicts_something_else_is_refused_before_anything_is_cached(
    make_config, start, tiny_sd15, tmp_path, monkeypatch
):
    shutil.copytree(tiny_sd15, tmp_path / "base")
    scheduler = tmp_path / "base" / "scheduler" / "scheduler_config.json"
    scheduler.write_text(json.dumps({**json.loads(scheduler.read_text()), "prediction_type": "sample"}))
    # as for a model on the Hub, which is only downloaded when it is opened
    monkeypatch.setattr("modules.trainer.checks._check_scheduler", lambda *arguments: None)
    with pytest.raises(UserError, match="the base predicts 'sample'"):
        start(make_config(f"model.base={tmp_path / 'base'}"))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("prediction_type", ["auto", "v_prediction"])
def test_offset_noise_that_only_the_last_timestep_of_a_base_would_have_is_refused(
    make_config, start, tiny_sd15, tmp_path, prediction_type
):
    shutil.copytree(tiny_sd15, tmp_path / "base")
    scheduler = tmp_path / "base" / "scheduler" / "scheduler_config.json"
    changes = {"_class_name": "DDIMScheduler", "prediction_type": "v_prediction", "rescale_betas_zero_snr": True}
    scheduler.write_text(json.dumps({**json.loads(scheduler.read_text()), **changes}))
    options = ("diffusion.offset_noise=0.1", "diffusion.offset_noise_by_timestep=true")
    with pytest.raises(UserError, match=r"^diffusion\.offset_noise_by_timestep: this base model has zero terminal SNR"):
        start(make_config(f"model.base={tmp_path / 'base'}", f"model.prediction_type={prediction_type}", *options))
    assert not (tmp_path / "cache").exists()


def test_a_run_that_trains_on_after_its_end_leaves_the_earlier_model_under_its_step(make_config, train):
    config = make_config("output.format=single_file", "max_steps=1")
    models = train(config).run_folder.models_dir
    earlier = (models / "model_kohya.safetensors").read_bytes()
    trainer = train(make_config("output.format=single_file"), resume=True)
    assert {path.name for path in models.iterdir()} == {"model_kohya.safetensors", "model-step000001_kohya.safetensors"}
    assert (models / "model-step000001_kohya.safetensors").read_bytes() == earlier
    assert [path.name for path in trainer.callbacks.saved] == ["model_kohya.safetensors"]


def test_a_resume_warns_that_it_keeps_the_batch_size_of_its_backup(make_config, train):
    train(make_config("max_steps=2"))
    trainer = train(make_config("batch_size=2"), resume=True)
    assert trainer.prepared.global_batch == 4
    assert any(text.startswith("batch_size: the run continues with the 4") for text in trainer.callbacks.warnings)


def test_repeats_without_any_sample_are_refused(make_config, start):
    with pytest.raises(UserError, match="leave no sample in an epoch"):
        start(make_config("concepts.0.repeats=0.01"))


def test_trained_components_are_loaded_after_the_encoders_are_released(make_config, start, monkeypatch):
    in_memory = []

    def attach(config, method, base, parts, **options):
        in_memory.append([name for name in ("unet", "vae", "text_encoder") if base.module(name) is not None])
        attach_method(config, method, base, parts, **options)

    monkeypatch.setattr("modules.trainer.prepare_run.attach_method", attach)
    trainer = start(make_config())
    assert in_memory == [[]]
    assert trainer.prepared.base.module("unet") is not None


def test_what_was_written_is_told_where_another_format_fails(make_config, start, monkeypatch):
    trainer = start(make_config("method=full", "output.every=2", "output.unit=steps", "output.format=both"))

    def refuse(*args):
        raise WeightsError("The layer 'x' has no name in a single-file checkpoint; save in diffusers' format instead.")

    monkeypatch.setattr("modules.weights.model_files.save_single_file", refuse)
    trainer.train()
    assert trainer.step == 4
    assert [path.name for path in trainer.callbacks.saved] == ["model-step000002", "model-step000004"]
    assert all("has no name in a single-file checkpoint" in text for text in trainer.callbacks.warnings)
    with pytest.raises(TrainingError, match=r"has no name.*instead: resume from the backup of step 4\.$"):
        trainer.end()
    assert [path.name for path in trainer.callbacks.saved[2:]] == ["model"]
    assert trainer.callbacks.saved[2].is_dir()


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_format_without_names_for_the_model_is_refused_before_training(method, make_config, start, monkeypatch):
    def refuse(*args):
        raise WeightsError("The layer 'x' has no name.")

    monkeypatch.setattr("modules.weights.single_file.unet_modules", refuse)
    monkeypatch.setattr("modules.weights.lora_layers.kohya_name", refuse)
    with pytest.raises(WeightsError, match="'x' has no name"):
        start(make_config(f"method={method}", "output.format=both"))
    start(make_config(f"method={method}"))


def test_a_base_without_the_only_part_that_would_train_is_refused(make_config, start, tiny_sd35):
    settings = ("family=sd3", f"model.base={tiny_sd35}", "method=full", "data.bucket_step=16")
    with pytest.raises(UserError, match="does not have this text encoder"):
        start(make_config(*settings, "denoiser.train=false", "text_encoder.train=true", "text_encoder.only=[3]"))


def test_a_chosen_text_encoder_that_the_base_lacks_is_refused_though_others_train(make_config, start, tiny_sd35):
    settings = ("family=sd3", f"model.base={tiny_sd35}", "method=full", "data.bucket_step=16")
    with pytest.raises(UserError, match=r"text_encoder.only 3: .* does not have this text encoder; remove 3"):
        start(make_config(*settings, "text_encoder.train=true", "text_encoder.only=[1, 3]"))


def test_pictures_without_a_mask_are_counted_once_each(make_config, start):
    config = make_config("loss.masked_training=true", "data.resolutions=[32, 40]")
    Image.new("L", (32, 32), 255).save(Path(config.concepts[0].path) / "000-mask.png")
    assert "10 images have no mask (trained unmasked)." in start(config).callbacks.warnings


def test_names_and_captions_that_are_no_unicode_train(make_config, train):
    config = make_config("concepts.0.captions=file_name", "concepts.0.augmentation.rotation=5", "max_steps=2")
    picture = pictures(config)[0]
    picture.rename(picture.with_name("caf\udce9 \udcff.png"))
    assert train(config).step == 2
