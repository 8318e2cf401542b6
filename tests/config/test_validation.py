"""Checks of settings against each other: each mistake is reported at its setting, and nothing else is."""

import re

import pytest

from modules.config.ConceptConfig import ConceptConfig
from modules.config.errors import ConfigError
from modules.config.files import apply_overrides, config_from_values
from modules.config.labels import with_labels
from modules.config.methods import METHODS
from modules.config.rules.ranks import check_batch
from modules.config.SampleConfig import SampleConfig
from modules.config.TrainConfig import TrainConfig
from modules.config.validation import find_problems
from tests.support.remedies import with_remedy


def good_config(*overrides: str) -> TrainConfig:
    values = {"model": {"base": "model"}, "concepts": [{"path": "pictures"}]}
    return config_from_values(apply_overrides(values, overrides))


def paths(config: TrainConfig, blocking: bool = True) -> list[str]:
    return [problem.path for problem in find_problems(config) if problem.blocking == blocking]


def test_a_good_config_has_no_problems():
    assert find_problems(good_config()) == []


def test_an_untouched_config_lacks_only_model_and_pictures():
    assert paths(TrainConfig()) == ["model.base", "concepts"]
    assert paths(TrainConfig(), blocking=False) == []


CHECKPOINTS, GRAPHS = ("model.gradient_checkpointing=true",), ("model.cuda_graphs=on",)
SLIDER = ("method=slider", "slider.positive=old")
MATMUL, ROTATION = ("model.quantized_matmul=on",), "model.quantized_matmul_rotation=true"
FUSED = ("method=full", "optimizer.fused_backward=true", "optimizer.max_grad_norm=0")

MISTAKES = [
    (["wandb.enabled=true", "wandb.project=me/flowers"], "wandb.project"),
    (["mlflow.enabled=true", "mlflow.tracking_uri=postgresql://me:secret@server/runs"], "mlflow.tracking_uri"),
    (["enable_multi_gpu=true", "num_nodes=2", "master_addr=a b"], "master_addr"),
    (["model.base= "], "model.base"),
    (["workspace_dir="], "workspace_dir"),
    (["family=sana", "method=vae"], "method"),
    (["family=wan22_a14b", "enable_multi_gpu=true", "ddp_static_graph=true"], "ddp_static_graph"),
    (["cache_dir="], "cache_dir"),
    (["family=sana", "lora.train_norms=true"], "lora.train_norms"),
    (["lora.train_norms=true", "output.format=diffusers"], "output.format"),
    (["family=sana", "method=full", "output.float8_denoiser=true"], "output.float8_denoiser"),
    (["family=sana", "diffusion.offset_noise_by_timestep=true"], "diffusion.offset_noise_by_timestep"),
    (
        [
            "model.zero_terminal_snr=true",
            "model.prediction_type=v_prediction",
            "diffusion.offset_noise=0.1",
            "diffusion.offset_noise_by_timestep=true",
        ],
        "diffusion.offset_noise_by_timestep",
    ),
    (["concepts.0.kept_separator=|||", "concepts.0.tag_separator="], "concepts.0.tag_separator"),
    (["concepts.0.enabled=false"], "concepts"),
    (["concepts.0.path="], "concepts.0.path"),
    (["concepts.0.loss_weight=0"], "concepts.0.loss_weight"),
    (["concepts.0.caption_extension=" + "x" * 33], "concepts.0.caption_extension"),
    (["concepts.0.caption_extension=captions/.txt"], "concepts.0.caption_extension"),
    (["denoiser.train=false"], "denoiser.train"),
    (["method=full", "denoiser.train=false"], "denoiser.train"),
    (["method=full", "model.weight_dtype=float16", "model.mixed_precision=fp16"], "model.weight_dtype"),
    (["method=vae", "model.weight_dtype=float16", "model.mixed_precision=fp16"], "model.weight_dtype"),
    (["model.weight_dtype=float64", "model.mixed_precision=bf16"], "model.mixed_precision"),
    (["method=full", "model.denoiser_quantization=int8"], "model.denoiser_quantization"),
    (["method=full", "model.text_encoder_quantization=nf4"], "model.text_encoder_quantization"),
    (["method=vae", "model.denoiser_quantization=float8"], "model.denoiser_quantization"),
    (["family=wan22_a14b", "model.denoiser=HIGH.gguf"], "model.denoiser_2"),
    (["family=wan22_a14b", "model.denoiser=HIGH.safetensors", "model.denoiser_2=LOW.gguf"], "model.denoiser"),
    (["model.weight_dtype=float64", "model.denoiser_quantization=nf4"], "model.denoiser_quantization"),
    (["method=full", "model.blocks_to_swap=4"], "model.blocks_to_swap"),
    (["model.activation_offloading=true"], "model.gradient_checkpointing"),
    (["model.blocks_to_swap=4"], "model.gradient_checkpointing"),
    (["model.blocks_to_swap="], "model.gradient_checkpointing"),
    ([*GRAPHS, "text_encoder.train=true"], "model.cuda_graphs"),
    ([*GRAPHS, "family=wan22_a14b"], "model.cuda_graphs"),
    ([*GRAPHS, *CHECKPOINTS, "model.blocks_to_swap=4"], "model.cuda_graphs"),
    ([*GRAPHS, *CHECKPOINTS, "model.blocks_to_swap="], "model.cuda_graphs"),
    ([*GRAPHS, *CHECKPOINTS, "model.activation_offloading=true"], "model.cuda_graphs"),
    ([*GRAPHS, *CHECKPOINTS, "lora.rank_dropout=0.1"], "model.cuda_graphs"),
    ([*GRAPHS, "model.denoiser_quantization=nf4"], "model.cuda_graphs"),
    ([*GRAPHS, *FUSED], "model.cuda_graphs"),
    ([*MATMUL, "method=lora"], "model.denoiser_quantization"),
    ([*MATMUL, "method=lora", "model.denoiser_quantization=nf4"], "model.denoiser_quantization"),
    ([*MATMUL, "method=lora", "family=flux1", "model.denoiser=a.gguf"], "model.quantized_matmul"),
    ([*MATMUL, "method=full"], "model.quantized_matmul"),
    (["method=full", "optimizer.fused_backward=true"], "optimizer.max_grad_norm"),
    ([*FUSED, "optimizer.name=prodigy", "optimizer.learning_rate=1"], "optimizer.name"),
    ([*FUSED, "gradient_accumulation_steps=2"], "gradient_accumulation_steps"),
    ([*FUSED, "model.mixed_precision=fp16"], "model.mixed_precision"),
    ([*FUSED, "enable_multi_gpu=true"], "optimizer.fused_backward"),
    (["optimizer.state_in_ram=true", "optimizer.name=lion"], "optimizer.name"),
    (["denoiser.stop_unit=steps"], "denoiser.stop_after"),
    (["denoiser.stop_unit=steps", "denoiser.stop_after=1.5"], "denoiser.stop_after"),
    (["method=embedding"], "embeddings"),
    (["method=slider"], "slider.positive"),
    ([*SLIDER, "text_encoder.train=true"], "text_encoder.train"),
    ([*SLIDER, "lora.dora=true"], "lora.dora"),
    ([*SLIDER, "loss.masked_training=true"], "loss.masked_training"),
    ([*SLIDER, "loss.prior_by_frozen_model=true"], "loss.prior_by_frozen_model"),
    ([*SLIDER, "concepts.0.regularisation=true"], "concepts.0.regularisation"),
    ([*SLIDER, "concepts=[]", "data.validation_share=0.1"], "data.validation_share"),
    ([*SLIDER, "concepts=[]", "family=wan22_a14b"], "concepts"),
    ([*SLIDER, "slider.source=pairs"], "concepts.0.pair_folder"),
    (["method=preference", "loss.huber=0.5"], "loss.huber"),
    (["method=preference", "loss.weighting=debiased"], "loss.weighting"),
    (["method=preference", "loss.masked_training=true"], "loss.masked_training"),
    (["method=preference", "data.frames=5", "family=wan21"], "data.frames"),
    (["method=preference", "family=wan21_i2v"], "method"),
    (["method=embedding", "embeddings.0.vectors=2"], "embeddings.0.placeholder"),
    (["method=embedding", "embeddings.0.placeholder=my cat"], "embeddings.0.placeholder"),
    (["method=embedding", "embeddings.0.placeholder=<Cat>"], "embeddings.0.placeholder"),
    (
        ["method=embedding", "embeddings.0.placeholder=<cat>", "embeddings.0.initial_text= "],
        "embeddings.0.initial_text",
    ),
    (
        ["method=embedding", "embeddings.0.placeholder=<cat>", "embeddings.1.placeholder=a<cat>"],
        "embeddings.1.placeholder",
    ),
    (
        [
            "method=embedding",
            "embeddings.0.placeholder=<cat>",
            "embeddings.1.placeholder=dog",
            "embeddings.1.file_name=Cat",
        ],
        "embeddings.1.file_name",
    ),
    (["schedule.warmup=1.5"], "schedule.warmup"),
    (["schedule.name=wsd", "schedule.decay=1.5"], "schedule.decay"),
    (["sampling.unit=never", "backup.every=0"], "backup.every"),
    (["output.unit=epochs"], "output.every"),
    (["validation.unit=steps", "validation.every=0", "data.validation_share=0.1"], "validation.every"),
    (["optimizer.name=schedule_free", "optimizer.beta1=0"], "optimizer.beta1"),
    (["optimizer.name=schedule_free", "ema.enabled=true"], "ema.enabled"),
    (["optimizer.name=sgd", "optimizer.sgd_nesterov=true", "optimizer.sgd_momentum=0"], "optimizer.sgd_momentum"),
    (["optimizer.name=lion_8bit", "model.weight_dtype=float64"], "optimizer.name"),
    (["optimizer.name=adamw_8bit", "optimizer.stochastic_rounding=true"], "optimizer.stochastic_rounding"),
    (["output.unit=steps", "output.every=2.5"], "output.every"),
    (["device_indexes=[1, 0, 1]"], "device_indexes"),
    (["enable_multi_gpu=true", "node_rank=1"], "node_rank"),
    (["batch_size_mode=global", "gradient_accumulation_steps=3"], "batch_size"),
    (["batch_size_mode=global", "enable_multi_gpu=true", "world_size=3"], "batch_size"),
    (["batch_size_mode=global", "enable_multi_gpu=true", "device_indexes=[0,1,2]"], "batch_size"),
    (["batch_size_mode=global", "enable_multi_gpu=true", "world_size=2", "num_nodes=3"], "batch_size"),
    (["data.resolution=32"], "data.bucket_step"),
    (["data.resolution=516"], "data.resolution"),
    (["data.resolutions=[512,516]"], "data.resolutions"),
    (["data.resolution=64", "concepts.0.resolution=32", "data.bucket_step=64"], "data.bucket_step"),
    (["concepts.0.resolution=100", "data.bucket_step=64"], "concepts.0.resolution"),
    (["sampling.samples.0.width=100"], "sampling.samples.0.width"),
    (["family=wan22_5b", "sampling.samples.0.reference=a.png"], "sampling.samples.0.reference"),
    (["family=wan22_i2v_a14b"], "data.frames"),
    (["family=wan22_i2v_a14b", "data.frames=5", "sampling.samples.0.prompt=a"], "sampling.samples.0.reference"),
    (["family=wan21_flf2v", "data.frames=5", "sampling.samples.0.reference=a.png"], "sampling.samples.0.last_frame"),
    (["family=wan21_flf2v", "data.frames=5", "sampling.samples.0.last_frame=a.png"], "sampling.samples.0.last_frame"),
    (["family=wan21_flf2v", "data.frames=5", "sampling.samples.0.frames=1"], "sampling.samples.0.frames"),
    (["family=helios"], "data.frames"),
    (["family=helios", "data.frames=33", "sampling.samples.0.frames=1"], "sampling.samples.0.frames"),
    (["family=helios", "method=preference", "concepts.0.pair_folder=b"], "method"),
    (["concepts.0.removed_tags=a, (b"], "concepts.0.removed_tags"),
    (["data.bucketing=false", "data.width=512"], "data.height"),
    (["data.bucketing=false", "data.width=512", "data.height=100"], "data.height"),
    (["data.max_side=256"], "data.max_side"),
    (["loss.output_preservation=true", "concepts.0.trigger_word=sks"], "concepts.0.class_word"),
    (["loss.output_preservation=true", "method=full"], "loss.output_preservation"),
    (["loss.blank_preservation=true", "method=full"], "loss.blank_preservation"),
    (["schedule.name=piecewise", "schedule.pieces=1, 0.1"], "schedule.pieces"),
    (["concepts.0.resolutions=[512, 516]"], "concepts.0.resolutions"),
    (["concepts.0.undropped_tags=a, (b"], "concepts.0.undropped_tags"),
    (["concepts.0.secondary_separator=;", "concepts.0.tag_separator="], "concepts.0.tag_separator"),
    (["concepts.0.tag_dropout=0.1", "concepts.0.tag_separator="], "concepts.0.tag_separator"),
    (["family=pixart_alpha", "method=full", "sampling.samples.0.steps=1"], "sampling.samples.0.steps"),
    (["family=sana_sprint", "sampling.sampler=heun"], "sampling.sampler"),
    (["lora.adapter=loha", "lora.dora=true"], "lora.dora"),
    (["lora.adapter=lokr", "lora.rslora=true"], "lora.rslora"),
    (["lora.adapter=lokr", "lora.dropout=0.1"], "lora.dropout"),
    (["lora.adapter=oft", "lora.rank_dropout=0.1"], "lora.rank_dropout"),
    (["lora.adapter=oft", "lora.max_norm=1"], "lora.max_norm"),
    (
        [
            "text_encoder.train=true",
            "text_encoder.stop_unit=steps",
            "text_encoder.stop_after=2",
            "text_encoder.stops_after=[1.5]",
        ],
        "text_encoder.stops_after.0",
    ),
    (
        [
            "text_encoder.train=true",
            "text_encoder.learning_rates=[1, 0.5]",
            "optimizer.name=prodigy",
            "optimizer.learning_rate=1",
        ],
        "text_encoder.learning_rates",
    ),
    (["lora.rank=1000000"], "lora.rank"),
    (["lora.adapter=loha", "lora.conv_rank=1000000"], "lora.conv_rank"),
    (["lora.layer_ranks=attn1"], "lora.layer_ranks"),
    (["lora.layer_ranks=attn1=0"], "lora.layer_ranks"),
    (["lora.adapter=loha", "lora.plus_ratio=16"], "lora.plus_ratio"),
    (["lora.plus_ratio=16", "optimizer.name=prodigy", "optimizer.learning_rate=1"], "lora.plus_ratio"),
    (["lora.max_norm=1", "optimizer.name=schedule_free"], "lora.max_norm"),
    (["lora.adapter=loha", "model.compile=blocks"], "model.compile"),
    (["lora.adapter=loha", "model.denoiser_quantization=nf4"], "model.denoiser_quantization"),
]
"""Overrides of a good config, and the setting at which each is a problem."""

DOUBTS = [
    (["loss.output_preservation=true"], "concepts.0.trigger_word"),
    (["optimizer.name=prodigy"], "optimizer.learning_rate"),
    (["optimizer.learning_rate=1.0"], "optimizer.learning_rate"),
    (["optimizer.name=lion", "optimizer.learning_rate=0.1"], "optimizer.learning_rate"),
    (["optimizer.name=schedule_free", "schedule.name=cosine"], "schedule.name"),
    (["method=full", "model.weight_dtype=bfloat16"], "model.weight_dtype"),
    (["model.attention=cudnn"], "model.mixed_precision"),
    (["model.attention=cudnn", "model.weight_dtype=float64"], "model.weight_dtype"),
    (["model.attention=flash"], "model.mixed_precision"),
    (["model.attention=flex", "model.weight_dtype=float64"], "model.weight_dtype"),
    (["method=full", "model.weight_dtype=float16", "optimizer.stochastic_rounding=true"], "model.weight_dtype"),
    (["validation.unit=steps", "validation.every=10"], "validation.unit"),
    (
        ["optimizer.name=prodigy", "optimizer.learning_rate=1", "denoiser.learning_rate=1e-4"],
        "denoiser.learning_rate",
    ),
    (["optimizer.beta1=0.99", "optimizer.beta2=0.9"], "optimizer.beta1"),
    (["optimizer.name=adafactor", "optimizer.learning_rate=0.1"], "optimizer.learning_rate"),
    (["optimizer.name=came"], "schedule.warmup"),
    (["optimizer.fused_backward=true"], "optimizer.fused_backward"),
    (["optimizer.stochastic_rounding=true"], "optimizer.stochastic_rounding"),
    (["optimizer.stochastic_rounding=true", "model.weight_dtype=bfloat16"], "optimizer.stochastic_rounding"),
    (["method=full", "optimizer.stochastic_rounding=true"], "optimizer.stochastic_rounding"),
    (["loss.masked_training=true", "loss.unmasked_weight=1"], "loss.unmasked_weight"),
    (["loss.masked_training=true", "loss.unmasked_probability=1"], "loss.unmasked_probability"),
    (["concepts.0.regularisation=true"], "concepts.0.regularisation"),
    (["method=lora", "family=zimage", "text_encoder.train=true"], "text_encoder.train"),
    (["schedule.warmup=100", "max_steps=100"], "schedule.warmup"),
    (["sampling.unit=epochs", "sampling.every=1"], "sampling.samples"),
    (["sampling.at_start=true", "sampling.samples.0.enabled=false"], "sampling.samples"),
    (["concepts.0.captions=prompt"], "concepts.0.prompt"),
    (["data.resolution=64"], "data.bucket_step"),
    (["enable_multi_gpu=true", "num_nodes=2"], "master_addr"),
    (["method=lora", ROTATION], "model.denoiser_quantization"),
    (["method=lora", ROTATION, "model.denoiser_quantization=int8"], "model.quantized_matmul"),
    ([*MATMUL, "method=lora", ROTATION, "model.denoiser_quantization=float8"], "model.quantized_matmul_rotation"),
]


@pytest.mark.parametrize(("overrides", "path"), MISTAKES)
def test_a_mistake_that_stops_the_run_is_found_at_its_setting(overrides, path):
    assert paths(good_config(*overrides)) == [path]


@pytest.mark.parametrize(("overrides", "path"), DOUBTS)
def test_a_doubtful_setting_is_a_warning(overrides, path):
    config = good_config(*overrides)
    assert paths(config, blocking=False) == [path]
    assert paths(config) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["denoiser.train=false", "text_encoder.train=true"],
        ["method=vae", "denoiser.train=false"],
        ["method=embedding", "embeddings.0.placeholder=<cat>", "denoiser.train=false"],
        ["method=embedding", "embeddings.0.placeholder=<cat>", "model.weight_dtype=bfloat16"],
        ["text_encoder.stop_unit=steps"],
        ["denoiser.stop_unit=epochs", "denoiser.stop_after=0.5"],
        ["model.weight_dtype=float16", "model.mixed_precision=fp16"],
        ["model.weight_dtype=float64"],
        ["schedule.warmup=0.5"],
        ["schedule.warmup=99", "max_steps=100"],
        ["backup.unit=epochs", "backup.every=0.5"],
        ["optimizer.name=prodigy", "optimizer.learning_rate=1"],
        ["optimizer.name=prodigy", "optimizer.learning_rate=1", "text_encoder.learning_rate=1e-5"],
        ["optimizer.name=schedule_free", "schedule.warmup=0.1"],
        ["optimizer.name=sgd", "optimizer.beta1=0.9999", "optimizer.learning_rate=0.5"],
        ["method=full", "model.weight_dtype=bfloat16", "optimizer.stochastic_rounding=true"],
        ["model.attention=cudnn", "model.weight_dtype=bfloat16"],
        ["model.attention=xformers"],
        ["validation.unit=epochs", "validation.every=1", "data.validation_share=0.05"],
        ["node_rank=1"],
        ["batch_size_mode=global", "batch_size=7"],
        ["batch_size_mode=global", "batch_size=7", "enable_multi_gpu=true"],
        ["concepts.1.enabled=false"],
        [*GRAPHS, "lora.dropout=0.1", "optimizer.state_in_ram=true", "model.compile=blocks"],
        [*GRAPHS, "method=vae", "model.gradient_checkpointing=true", "lora.dropout=0.1"],
        [*GRAPHS, "enable_multi_gpu=true"],
    ],
)
def test_a_setting_that_does_no_harm_is_no_problem(overrides):
    assert find_problems(good_config(*overrides)) == []


FSDP = ("enable_multi_gpu=true", "distributed_strategy=fsdp")
SHARDED = " or ".join(name for name, method in METHODS.items() if method.can_shard)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["method=vae"], f"method 'vae' ON: what it trains can't be sharded; use ddp, or {SHARDED}."),
        (["family=wan22_a14b"], "family 'wan22_a14b' ON: a step may use one of its denoisers alone; use ddp."),
        (
            ["text_encoder.train=true"],
            "text_encoder.train ON: only the denoiser can be sharded; turn it off, or use ddp.",
        ),
        (
            ["family=cogview4"],
            "family 'cogview4' ON: ranks may need different numbers of passes for their texts; use ddp.",
        ),
        (
            ["family=flux2_klein", "concepts.0.reference_folder=before"],
            "concepts.0.reference_folder ON: ranks may need different numbers of passes for their references; use ddp.",
        ),
        (
            ["family=motif_video", "data.image_to_video=0.5", "data.frames=9"],
            "data.image_to_video ON: ranks may need different numbers of passes for clips with and without "
            "it; use ddp.",
        ),
        (
            ["model.blocks_to_swap=4", "model.gradient_checkpointing=true"],
            "model.blocks_to_swap 4 ON: sharded blocks can't be swapped; set it to 0, or use ddp.",
        ),
        (
            ["optimizer.state_in_ram=true"],
            "optimizer.state_in_ram ON: each GPU has a part of the state already; turn it off, or use ddp.",
        ),
        (
            ["model.cuda_graphs=on"],
            "model.cuda_graphs on ON: each pass gathers weights from other GPUs; set it to off, or use ddp.",
        ),
        (["lora.max_norm=1"], "lora.max_norm 1 ON: it needs whole weights; leave it empty, or use ddp."),
        (
            ["model.denoiser_quantization=nf4"],
            "model.denoiser_quantization nf4 ON: quantized weights can't be sharded; set it to none, or use ddp.",
        ),
        (
            ["optimizer.name=adafactor"],
            "optimizer.name adafactor ON: it needs whole weights; use adamw, schedule_free, lion or ademamix.",
        ),
        (
            ["method=full", "model.weight_dtype=bfloat16", "optimizer.stochastic_rounding=true"],
            "optimizer.stochastic_rounding ON: it needs whole weights; turn it off, or use ddp.",
        ),
    ],
)
def test_what_ranks_that_share_a_model_do_not_support_is_refused(overrides, message):
    found = [problem.message for problem in find_problems(good_config(*FSDP, *overrides)) if problem.blocking]
    assert message.replace("ON", "with distributed_strategy fsdp") in found
    assert find_problems(good_config(*FSDP)) == []
    assert not any("fsdp" in problem.message for problem in find_problems(good_config(FSDP[1], *overrides)))


@pytest.mark.parametrize("name", ["prodigy", "schedule_free", "other"])
def test_optimizers_that_need_all_of_their_state_are_refused_where_it_is_divided(name):
    divided = ("enable_multi_gpu=true", "ddp_shard_optimizer=true")
    optimizer = (f"optimizer.name={name}", "optimizer.learning_rate=1")
    problem = next(problem for problem in find_problems(good_config(*divided, *optimizer)) if problem.blocking)
    assert problem.message == (
        f"optimizer.name {name} with ddp_shard_optimizer: it needs the state of all weights on each GPU; use adamw, "
        "adamw_8bit, lion, lion_8bit, adafactor, came, ademamix or sgd, or switch ddp_shard_optimizer off."
    )
    assert problem.remedy.values == {"ddp_shard_optimizer": False}
    assert find_problems(good_config(*divided)) == []
    assert not any(problem.blocking for problem in find_problems(good_config(divided[1], *optimizer)))


def test_blocking_problems_come_first():
    config = good_config("optimizer.name=prodigy", "backup.every=0")
    assert [problem.blocking for problem in find_problems(config)] == [True, False]


def test_samples_that_are_enabled_satisfy_sampling():
    config = good_config("sampling.unit=steps", "sampling.every=10")
    config.sampling.samples = [SampleConfig(prompt="a cat")]
    assert find_problems(config) == []


@pytest.mark.parametrize(
    ("prompts", "start"),
    [((), "slider.positive and slider.negative are empty: "), (("old", "old "), "slider.positive 'old' is the same")],
)
def test_prompts_of_a_slider_that_are_empty_are_not_called_the_same(prompts, start):
    overrides = [f"slider.{name}={value}" for name, value in zip(("positive", "negative"), prompts, strict=False)]
    problem = next(
        one for one in find_problems(good_config("method=slider", *overrides)) if one.path == "slider.positive"
    )
    assert problem.message.startswith(start)


def test_one_concept_with_weight_is_enough():
    config = good_config()
    config.concepts = [ConceptConfig(path="a", loss_weight=0.0), ConceptConfig(path="b")]
    assert find_problems(config) == []


@pytest.mark.parametrize(
    ("batch_size", "num_ranks", "accumulation", "message"),
    [
        (18, 4, 1, "batch_size 18 (global) on 4 GPUs: 18 is not a multiple of 4; use 16 or 20."),
        (3, 4, 1, "batch_size 3 (global) on 4 GPUs: 3 is not a multiple of 4; use 4."),
        (18, 4, 2, "batch_size 18 (global) on 4 GPUs with gradient_accumulation_steps 2: "
                   "18 is not a multiple of 8; use 16 or 24."),
        (5, 1, 2, "batch_size 5 (global) on 1 GPU with gradient_accumulation_steps 2: "
                  "5 is not a multiple of 2; use 4 or 6."),
    ],
)  # fmt: skip
def test_a_global_batch_that_can_not_be_shared_names_what_would_fit(batch_size, num_ranks, accumulation, message):
    problem = check_batch(batch_size, "global", num_ranks, accumulation)
    assert (problem.path, problem.message, problem.blocking) == ("batch_size", message, True)


@pytest.mark.parametrize(("batch_size", "num_ranks", "accumulation"), [(32, 4, 2), (4, 4, 1), (7, 1, 1), (6, 1, 3)])
def test_a_global_batch_that_can_be_shared_is_fine(batch_size, num_ranks, accumulation):
    assert check_batch(batch_size, "global", num_ranks, accumulation) is None


def test_a_batch_per_device_fits_any_number_of_ranks():
    assert check_batch(3, "per_device", 4, 2) is None


def test_a_remedy_removes_its_problem_and_makes_no_new_one():
    seen = 0
    for overrides, _ in [*MISTAKES, *DOUBTS]:
        config = good_config(*overrides)
        for problem in find_problems(config):
            if problem.remedy is not None:
                left = find_problems(with_remedy(config, problem.remedy))
                seen += 1
                assert problem not in left, (overrides, problem)
                assert len(left) < len(find_problems(config)), (overrides, left)
    assert seen >= 25


def test_every_problem_can_be_said_without_the_names_of_settings():
    names = re.compile(r"(?<!-)\b(?:[a-z]+_[a-z_]+|[a-z_]+\.[a-z0-9_.]+[a-z])\b")
    values = {"schedule_free", "lion_8bit", "adamw_8bit", "v_prediction", "torch.compile"}
    for overrides, _ in [*MISTAKES, *DOUBTS]:
        for problem in find_problems(good_config(*overrides)):
            said = with_labels(problem.message, problem.path)
            assert set(names.findall(said)) <= values, said


def test_a_rank_above_the_width_of_all_layers_is_warned_of_but_of_lokr_it_asks_for_whole_matrices():
    config = good_config("lora.rank=6000")
    assert paths(config) == []
    (problem,) = find_problems(config)
    assert problem.message.startswith("lora.rank 6000: no layer of this model is wider than 5430; ")
    assert find_problems(with_remedy(config, problem.remedy)) == []
    assert find_problems(good_config("lora.rank=100000", "lora.adapter=lokr")) == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("optimizer.learning_rate", "9e15"),
        ("sampling.samples.0.guidance", "1e21"),
        ("loss.mse", "9e15"),
        ("concepts.0.loss_weight", "9e15"),
        ("model.blocks_to_swap", "2147483648"),
        ("lora.rank", "1000000000"),
        ("data.resolutions", "[2147483648]"),
        ("concepts.0.repeats", "1e9"),
        ("data.augmentation_variants", "2147483648"),
    ],
)
def test_a_number_that_can_only_be_a_typing_error_is_refused_with_its_range(setting, value):
    sample = ["sampling.samples=[{prompt: a}]"]
    with pytest.raises(ConfigError, match=rf"^{setting}.*{value.strip('[')[0]}.*(at most| to )"):
        good_config(*sample, f"{setting}={value}")
