"""What single options of a training cost: each against the same run without it."""

from __future__ import annotations

# Name of an option -> its settings. A new optimizer or option that may change the time of a step belongs here.
OPTIONS = {
    "ema": ("ema.enabled=true",),
    "ema_every_10": ("ema.enabled=true", "ema.update_every=10"),
    "schedule_free": ("optimizer.name=schedule_free",),
    "lion": ("optimizer.name=lion", "optimizer.learning_rate=1e-5"),
    "adafactor": ("optimizer.name=adafactor",),
    "came": ("optimizer.name=came",),
    "ademamix": ("optimizer.name=ademamix",),
    "prodigy": ("optimizer.name=prodigy", "optimizer.learning_rate=1"),
    "sgd": ("optimizer.name=sgd",),
    "muon": ("optimizer.name=other", "optimizer.other_name=Muon"),
    "adan": ("optimizer.name=other", "optimizer.other_name=Adan"),
    "rounding": ("model.weight_dtype=bfloat16", "optimizer.stochastic_rounding=true"),
    "compile": ("model.compile=blocks",),
    "min_snr": ("loss.weighting=min_snr_gamma",),
    "huber": ("loss.mse=0.5", "loss.mae=0.25", "loss.huber=0.25", "loss.huber_schedule=snr"),
    "timesteps": ("diffusion.timesteps=logit_normal",),
    "offset_noise": ("diffusion.offset_noise=0.1", "diffusion.offset_noise_random=true"),
    "offset_noise_by_timestep": ("diffusion.offset_noise=0.02", "diffusion.offset_noise_by_timestep=true"),
    "perturbation": ("diffusion.input_perturbation=0.1",),
    "zero_terminal_snr": ("model.zero_terminal_snr=true", "model.prediction_type=v_prediction"),
    "caption_dropout": ("data.caption_dropout=0.1",),
    "rank_dropout": ("lora.rank_dropout=0.1",),
    "module_dropout": ("lora.module_dropout=0.1",),
    "nested_ranks": ("lora.nested_unit=4",),
    "norm_layers": ("lora.train_norms=true",),
    "ia3": ("lora.adapter=ia3",),
    "output_preservation": (
        "loss.output_preservation=true",
        "concepts.0.trigger_word=number",  # in every caption
        "concepts.0.class_word=count",
    ),
    "blank_preservation": ("loss.blank_preservation=true",),
    "oft": ("lora.adapter=oft", "lora.rank=8"),
    "frozen_prior": ("loss.prior_by_frozen_model=true", "concepts.0.regularisation=true"),
}
