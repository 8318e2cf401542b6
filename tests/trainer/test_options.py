"""Every optimizer, schedule and other training option, each in a short complete run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from modules.config.errors import ConfigError, UserError
from modules.weights.safe import load_tensors

RATES = {"prodigy": 1.0}


def trained_tensors(trainer, name: str = "model") -> dict[str, torch.Tensor]:
    return load_tensors(trainer.run_folder.models_dir / f"{name}.safetensors")


# Those with states unlike AdamW's, which test_resume.py resumes; test_optimizers.py saves and loads the state of each.
@pytest.mark.parametrize("name", ["adamw_8bit", "schedule_free", "prodigy", "came"])
def test_an_optimizer_trains_saves_and_resumes(name, make_config, train, tmp_path):
    if name.endswith("_8bit"):
        pytest.importorskip("bitsandbytes", reason="an optional package")
    settings = (f"optimizer.name={name}", f"optimizer.learning_rate={RATES.get(name, 1e-3)}", "batch_size=2")
    straight = train(make_config(*settings, "max_steps=5", f"workspace_dir={tmp_path / 'straight'}"))
    assert all(loss is not None for loss in straight.callbacks.losses)
    assert any(value.abs().max() > 0 for key, value in trained_tensors(straight).items() if "lora_B" in key)
    train(make_config(*settings, "max_steps=3"))
    resumed = train(make_config(*settings, "max_steps=5"), resume=True)
    assert resumed.callbacks.losses == straight.callbacks.losses[3:]
    own, expected = trained_tensors(resumed, "model"), trained_tensors(straight)
    assert all(torch.equal(own[key], expected[key]) for key in expected)


def test_a_missing_package_is_told_before_anything_is_encoded(make_config, start, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # makes an import raise ImportError
    with pytest.raises(UserError, match="needs the package bitsandbytes"):
        start(make_config("optimizer.name=adamw_8bit"))
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_missing_package_for_quantized_weights_is_told_before_anything_is_encoded(make_config, start, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"model.denoiser_quantization 'nf4' needs the package bitsandbytes"):
        start(make_config("model.denoiser_quantization=nf4"))


def test_the_schedule_sets_the_rate_of_each_step(make_config, train):
    from modules.trainer.schedules import schedule_factor

    config = make_config("schedule.name=cosine", "schedule.warmup=2", "schedule.final_share=0.1", "max_steps=5")
    trainer = train(config)
    shares = [schedule_factor(config.schedule, step, 5) for step in range(5)]
    assert [info.lr for info in trainer.callbacks.steps] == pytest.approx([1e-3 * share for share in shares])
    assert shares[:3] == [0.5, 1.0, 1.0]


# --- averages ---------------------------------------------------------------------------------------------------------


def test_plain_and_averaged_weights_are_saved_side_by_side(make_config, train):
    trainer = train(make_config("ema.enabled=true", "output.save_ema=both", "max_steps=6"))
    plain, averaged = trained_tensors(trainer), trained_tensors(trainer, "model_ema")
    assert {path.name for path in trainer.callbacks.saved} == {"model.safetensors", "model_ema.safetensors"}
    assert plain.keys() == averaged.keys()
    key = next(key for key in plain if "lora_B" in key)
    name = next(n for n in trainer.loop.trainable if torch.equal(trainer.loop.trainable[n].detach(), plain[key]))
    assert torch.equal(averaged[key], trainer.loop.ema.averages[name])
    assert not torch.equal(averaged[key], plain[key])


@pytest.mark.parametrize(("wanted", "is_average"), [("averaged", True), ("plain", False)])
def test_one_kind_of_weights_is_saved_under_the_name_alone(wanted, is_average, make_config, train):
    trainer = train(make_config("ema.enabled=true", f"output.save_ema={wanted}", "max_steps=3"))
    (path,) = trainer.callbacks.saved
    assert path.name == "model.safetensors"
    saved = [value for key, value in load_tensors(path).items() if "lora_B" in key]
    averages = [value for name, value in trainer.loop.ema.averages.items() if "lora_B" in name]
    assert any(torch.equal(value, averages[0]) for value in saved) == is_average


def test_a_second_end_replaces_neither_kind_of_weights(make_config, train):
    settings = ("ema.enabled=true", "output.save_ema=both")
    train(make_config(*settings, "max_steps=1"))
    trainer = train(make_config(*settings, "max_steps=2"), resume=True)
    names = {path.stem for path in trainer.run_folder.models_dir.iterdir()}
    assert names == {"model", "model_ema", "model-step000001", "model-step000001_ema"}


def test_a_schedule_free_run_samples_and_saves_its_average_and_trains_on_as_if_it_had_not(make_config, train, tmp_path):
    settings = ("optimizer.name=schedule_free", "optimizer.learning_rate=0.01", "max_steps=4")
    plain = train(make_config(*settings))
    sampled = train(
        make_config(
            *settings, "sampling.every=1", "sampling.unit=steps", "sampling.samples.0.prompt=a cat",
            "sampling.samples.0.width=32", "sampling.samples.0.height=32", "sampling.samples.0.steps=1",
            "output.every=2", "output.unit=steps", f"workspace_dir={tmp_path / 'sampled'}",
        )
    )  # fmt: skip
    assert sampled.callbacks.losses == plain.callbacks.losses
    assert len(sampled.callbacks.samples) == 4
    saved = trained_tensors(plain)
    trained = [param.detach() for name, param in plain.loop.trainable.items() if "lora_B" in name]
    assert not any(torch.equal(value, param) for value in saved.values() for param in trained)


def test_an_average_of_averages_is_refused(make_config, start):
    with pytest.raises(UserError, match="schedule_free: it averages by itself"):
        start(make_config("optimizer.name=schedule_free", "ema.enabled=true"))


# --- bfloat16 ---------------------------------------------------------------------------------------------------------


def test_a_bfloat16_model_learns_with_stochastic_rounding(make_config, train, tmp_path):
    # at this learning rate most updates are smaller than half a bfloat16 unit in the last place
    settings = ("method=full", "optimizer.learning_rate=1e-5", "max_steps=8", "optimizer.weight_decay=0")

    def change(*options: str):
        trainer = train(make_config(*settings, *options, f"workspace_dir={tmp_path / options[-1]}"))
        base = trainer.prepared.base
        before = load_tensors(base.path / "unet" / "diffusion_pytorch_model.safetensors")
        unet = {name: param.detach().double() for name, param in base.module("unet").named_parameters()}
        dtype = base.dtype
        return torch.cat([(unet[key] - before[key].to(dtype).double()).flatten() for key in sorted(unet)]), trainer

    exact, _ = change("model.weight_dtype=float32")
    lossy, plain = change("model.weight_dtype=bfloat16")
    rounded, trainer = change("model.weight_dtype=bfloat16", "optimizer.stochastic_rounding=true")
    assert all(param.dtype == torch.bfloat16 for param in trainer.loop.trainable.values())
    # the fraction of the exact training's progress
    assert (lossy @ exact / (exact @ exact)).item() < 0.5
    assert (rounded @ exact / (exact @ exact)).item() == pytest.approx(1.0, abs=0.25)
    assert any("switch optimizer.stochastic_rounding on" in text for text in plain.callbacks.warnings)
    assert not any("lost to rounding" in text for text in trainer.callbacks.warnings)


def test_optimizers_that_step_all_weights_at_once_refuse_stochastic_rounding(make_config, start):
    options = ("method=full", "optimizer.learning_rate=1", "optimizer.stochastic_rounding=true")
    with pytest.raises(UserError, match=r"stochastic_rounding with optimizer\.name prodigy"):
        start(make_config(*options, "optimizer.name=prodigy"))


# --- the files that come out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_lora_is_written_in_the_precision_asked_for(dtype, make_config, train):
    trainer = train(make_config(f"output.dtype={dtype}", "output.format=both", "max_steps=1"))
    assert len(trainer.callbacks.saved) == 2
    for path in trainer.callbacks.saved:
        weights = {name: value for name, value in load_tensors(path).items() if not name.endswith(".alpha")}
        assert {value.dtype for value in weights.values()} == {getattr(torch, dtype)}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_whole_model_is_written_in_the_precision_asked_for(dtype, make_config, train):
    trainer = train(make_config("method=full", f"output.dtype={dtype}", "output.format=both", "max_steps=1"))
    folder, file = trainer.callbacks.saved
    for path in (file, *folder.rglob("*.safetensors")):
        floats = {value.dtype for value in load_tensors(path).values() if value.is_floating_point()}
        assert floats == {getattr(torch, dtype)}, path


# --- compiled blocks --------------------------------------------------------------------------------------------------


def test_compiled_blocks_train_alike_and_keep_every_name(make_config, train, tiny_model, tmp_path):
    """With all that keeps or moves activations and weights, and with sizes that are not trained.

    The graphs of a model's blocks run as they are: test_compiling.py has one made into machine code.

    On a transformer, whose two kinds of blocks take half the time of a U-Net's in three widths.
    """
    base = ("family=flux1", f"model.base={tiny_model('flux1')}", "data.bucket_step=16")
    # a single shape, because each shape is compiled again
    settings = (*base, "data.bucketing=false", "batch_size=11", "max_steps=3", "ema.enabled=true")
    settings += ("text_encoder.train=true", "validation.every=2", "validation.unit=steps", "data.validation_share=0.3")
    settings += ("sampling.samples=[{prompt: 'a cat', width: 48, height: 32, steps: 1}]", "sampling.at_end=true")
    plain = train(make_config(*settings))
    settings += ("model.compile=blocks", "model.gradient_checkpointing=true", "model.activation_offloading=true")
    torch._dynamo.reset()
    with torch.compiler.set_stance(force_backend="aot_eager"):
        compiled = train(make_config(*settings, f"workspace_dir={tmp_path / 'compiled'}"))
    torch._dynamo.reset()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert compiled.callbacks.losses == pytest.approx(plain.callbacks.losses, rel=1e-4)
    (one,), (other,) = compiled.callbacks.validations, plain.callbacks.validations
    assert one == pytest.approx(other, rel=1e-4)
    assert len(compiled.callbacks.samples) == len(plain.callbacks.samples) == 1
    state, expected = compiled.loop.state()[0], plain.loop.state()[0]
    assert {file: set(tensors) for file, tensors in state.items()} == {f: set(t) for f, t in expected.items()}
    assert trained_tensors(compiled).keys() == trained_tensors(plain).keys()


def test_a_compiled_model_is_saved_under_its_own_names(make_config, start):
    trainer = start(make_config("model.compile=blocks", "method=full", "output.format=both"))
    trainer.end()  # before the first step, which would compile
    base = trainer.prepared.base.path / "unet" / "diffusion_pytorch_model.safetensors"
    folder, _ = trainer.callbacks.saved
    assert load_tensors(folder / "unet" / base.name).keys() == load_tensors(base).keys()
    assert not any("_orig_mod" in name for name in trainer.loop.state()[0]["model"])


def test_the_blocks_that_are_compiled_are_those_that_repeat(make_config, start):
    trainer = start(make_config("model.compile=blocks"))
    unet = trainer.prepared.base.module("unet")
    compiled = {type(m).__name__ for m in unet.modules() if m._compiled_call_impl is not None}
    assert compiled == {"BasicTransformerBlock"}


def test_without_a_compiler_the_start_is_refused_in_a_sentence(make_config, start):
    import torch._inductor.config

    refused = pytest.raises(UserError, match=r"model.compile 'blocks': torch finds no C\+\+ compiler; install g\+\+")
    with torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)}), refused:
        start(make_config("model.compile=blocks"))


@pytest.mark.parametrize("tf32", [False, True])
def test_float32_is_multiplied_on_gpus_as_the_setting_says(tf32, make_config, start):
    of_cpu = torch.backends.mkldnn.matmul.fp32_precision  # another test may have set it in this process
    start(make_config(f"model.tf32={str(tf32).lower()}"))
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is tf32
    assert torch.backends.mkldnn.matmul.fp32_precision == of_cpu


# --- validation -------------------------------------------------------------------------------------------------------


@pytest.fixture
def validation(picture_folder) -> tuple[str, ...]:
    """Settings of a run that validates on three images of two shapes."""
    folder = picture_folder(((32, 32), (48, 32), (32, 32)), name="held_out")
    concept = (f"concepts.1.path={folder}", "concepts.1.validation=true")
    return (*concept, "validation.every=2", "validation.unit=steps", "max_steps=6")


def test_validation_does_not_affect_training(make_config, train, validation, tmp_path):
    settings = (*validation, "ema.enabled=true", "lora.dropout=0.2", "data.caption_dropout=0.5")
    plain = train(make_config(*settings, "validation.unit=never"))
    validated = train(make_config(*settings, f"workspace_dir={tmp_path / 'validated'}"))
    assert validated.callbacks.losses == plain.callbacks.losses
    for (file, tensors), others in zip(validated.loop.state()[0].items(), plain.loop.state()[0].values(), strict=True):
        assert all(torch.equal(value, others[name]) for name, value in tensors.items()), file
    assert [number for number, *_ in validated.callbacks.validations] == [2, 4, 6]
    assert plain.callbacks.validations == []


def test_the_validation_loss_is_the_mean_over_the_held_out_samples_at_fixed_timesteps(make_config, start, validation):
    from dataclasses import replace

    trainer = start(make_config(*validation, "validation.timesteps=3"))
    samples = trainer.prepared.plan.validation_samples
    assert len(samples) == 3
    loss = trainer._validation_loss().measure(trainer.loop.model)
    assert loss == trainer._validation_loss().measure(trainer.loop.model)

    expected = []
    trainer.loop.model.eval()
    for micro_batch in trainer.prepared.plan.validation(0, 1, batch_size=1):
        batch = trainer.prepared.source.batch(micro_batch, 0)
        for u in (1 / 6, 3 / 6, 5 / 6):
            with torch.no_grad():
                expected.append(trainer.loop.model(replace(batch, u=torch.full_like(batch.u, u)))[0].item())
    assert len(expected) == 3 * len(samples)
    assert loss == pytest.approx(sum(expected) / len(expected), rel=1e-5)


def test_the_weights_that_are_measured_are_those_as_trained_and_the_averages(make_config, train, validation):
    # bf16: autocast caches casted weights
    settings = ("model.mixed_precision=bf16", "ema.enabled=true", "optimizer.learning_rate=0.01")
    trainer = train(make_config(*validation, *settings, "max_steps=2"))
    ((_, samples, loss, ema_loss),) = trainer.callbacks.validations
    assert samples == len(trainer.prepared.plan.validation_samples)
    with torch.autocast("cpu", torch.bfloat16):
        assert loss == trainer._validation_loss().measure(trainer.loop.model)
    with trainer.loop.inference_weights(), torch.autocast("cpu", torch.bfloat16):
        assert ema_loss == trainer._validation_loss().measure(trainer.loop.model)
    assert loss != ema_loss


def test_pixel_methods_are_validated_too(make_config, train, validation):
    trainer = train(make_config(*validation, "method=vae", "max_steps=2"))
    ((_, _, loss, ema_loss),) = trainer.callbacks.validations
    assert loss > 0
    assert ema_loss is None


@pytest.mark.parametrize(("weights", "mixed", "own"), [("bfloat16", "fp16", "bf16"), ("float16", "bf16", "fp16")])
def test_two_kinds_of_half_precision_are_refused_on_a_cpu(make_config, start, weights, mixed, own):
    message = (
        rf"model\.mixed_precision '{mixed}' with weight_dtype {weights}: .* set model.mixed_precision to {own}, or"
    )
    with pytest.raises(ConfigError, match=message):
        start(make_config(f"model.weight_dtype={weights}", f"model.mixed_precision={mixed}"))


def test_captions_that_are_missing_empty_or_not_read_are_told_at_the_start(make_config, start):
    config = make_config()
    folder = Path(config.concepts[0].path)
    (folder / "000.txt").write_text("")
    (folder / "001.txt").rename(folder / "001.cap")
    told = start(config).callbacks.warnings
    for text in ("1 image has no caption", "1 image has an empty caption", "set concepts.0.caption_extension to .cap"):
        assert sum(text in warning for warning in told) == 1


def test_validation_without_held_out_pictures_is_a_warning(make_config, train):
    trainer = train(make_config("validation.every=2", "validation.unit=steps", "max_steps=2"))
    assert any("no image is held out" in text for text in trainer.callbacks.warnings)
    assert trainer.callbacks.validations == []


# --- what is told -----------------------------------------------------------------------------------------------------


def test_a_run_and_its_resume_write_one_table_and_one_run_at_each_service(make_config, tmp_path, monkeypatch):
    from tests.support.train_here import train_here

    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "support" / "stand_ins")
    monkeypatch.setenv("WANDB_MODE", "offline")
    server = tmp_path / "server"
    settings = ("csv=true", "wandb.enabled=true", "mlflow.enabled=true", f"mlflow.tracking_uri={server}")
    assert train_here(make_config(*settings, "max_steps=2", "backup.at_end=true")) == 0
    assert train_here(make_config(*settings, "max_steps=3", "backup.at_end=true"), resume=True) == 0
    rows = (tmp_path / "run" / "metrics.csv").read_text(encoding="utf-8").splitlines()
    assert [row.partition(",")[0] for row in rows] == ["step", "1", "2", "3"]
    (of_wandb,), (of_mlflow,) = (tmp_path / "run" / "wandb").iterdir(), server.iterdir()
    calls = [json.loads(line) for line in of_wandb.read_text(encoding="utf-8").splitlines()]
    assert calls[0]["config"]["max_steps"] == 2
    assert [call["data"]["step"] for call in calls if call["call"] == "log"] == [1, 2, 3]
    assert of_mlflow.read_text(encoding="utf-8").count('"status": "FINISHED"') == 2


def test_tensorboard_gets_pictures_validation_and_every_metric(make_config, validation, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from tests.support.train_here import train_here

    config = make_config(
        *validation, "tensorboard=true", "max_steps=2", "sampling.at_end=true", "ema.enabled=true",
        "sampling.samples.0.prompt=a cat", "sampling.samples.0.count=2", "sampling.samples.0.width=32",
        "sampling.samples.0.height=32", "sampling.samples.0.steps=1",
    )  # fmt: skip
    assert train_here(config) == 0
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    assert {"loss", "lr/unet", "validation/loss", "validation/ema_loss"} <= set(tags["scalars"])
    assert len(tags["images"]) == 2
    (image,) = events.Images(tags["images"][0])
    assert (image.step, image.width, image.height) == (2, 32, 32)
    lines = (tmp_path / "run" / "events" / "rank-0.jsonl").read_text(encoding="utf-8").splitlines()
    told = {event["type"]: event for event in map(json.loads, lines)}
    assert told["validation"]["step"] == told["samples"]["step"] == 2
    assert told["validation"]["loss"] == pytest.approx(events.Scalars("validation/loss")[0].value, rel=1e-6)
