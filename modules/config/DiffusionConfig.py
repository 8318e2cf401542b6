from typing import Literal

from pydantic.dataclasses import dataclass

from modules.config.families import families_with
from modules.config.setting import STRICT, Float, Int, setting

OTHERS = ["uniform", "logit_normal", "sigmoid", "beta", "mode", "cosmap"]


@dataclass(config=STRICT)
class DiffusionConfig:
    """Which timesteps are trained, and with what noise."""

    timesteps: Literal["trained", "family", "uniform", "logit_normal", "sigmoid", "beta", "mode", "cosmap"] = setting(
        "trained",
        label="Timestep distribution",
        also_called="heavy_tail, cos_map",
        help="How often each noise level is trained. As the makers train: as in their training code or, where that "
        "isn't public, as in other trainers. Sampling shift: logit-normal, shifted as in sampling; the same for most "
        "models, uniform for Stable Diffusion. What kohya's scripts and ai-toolkit call sigmoid is logit-normal here.",
        group="training",
        choice_labels={
            "trained": "As the makers train",
            "family": "With the sampling shift",
            "uniform": "Uniform",
            "logit_normal": "Logit-normal",
            "sigmoid": "Sigmoid",
            "beta": "Beta",
            "mode": "Mode (heavy tails)",
            "cosmap": "Cosine map",
        },
        importance="advanced",
    )
    logit_normal_mean: Float = setting(
        0.0,
        label="Logit-normal mean",
        help="Above 0 trains noisier samples more often, below 0 cleaner ones.",
        group="training",
        ge=-10,
        le=10,
        importance="advanced",
        visible_when={".timesteps": ["logit_normal"]},
    )
    logit_normal_std: Float = setting(
        1.0,
        label="Logit-normal std",
        help="Small values train the middle almost alone; above 2 most samples are nearly clean or nearly noise.",
        group="training",
        gt=0,
        le=10,
        importance="advanced",
        visible_when={".timesteps": ["logit_normal"]},
    )
    sigmoid_slope: Float = setting(
        8.0,
        label="Sigmoid scale",
        also_called="noising_weight",
        help="Steepness of the transition from rarely to often trained timesteps. Positive favors noisy samples, "
        "negative clean ones.",
        group="training",
        ge=-50,
        le=50,
        importance="advanced",
        visible_when={".timesteps": ["sigmoid"]},
    )
    sigmoid_centre: Float = setting(
        0.5,
        label="Sigmoid bias",
        also_called="noising_bias",
        help="Position of the transition from rarely to often trained timesteps: 0 is no noise, 1 is pure noise.",
        group="training",
        ge=0,
        le=1,
        importance="advanced",
        visible_when={".timesteps": ["sigmoid"]},
    )
    beta_alpha: Float = setting(
        2.0,
        label="Beta distribution alpha",
        help="Above 1 avoids samples with almost no noise, below 1 favors them.",
        group="training",
        gt=0,
        le=100,
        importance="advanced",
        visible_when={".timesteps": ["beta"]},
    )
    beta_beta: Float = setting(
        2.0,
        label="Beta distribution beta",
        help="Above 1 avoids samples that are almost pure noise, below 1 favors them.",
        group="training",
        gt=0,
        le=100,
        importance="advanced",
        visible_when={".timesteps": ["beta"]},
    )
    mode_scale: Float = setting(
        1.29,
        label="Mode scale",
        also_called="noising_weight",
        help="Above 0 trains the middle more and both ends less, below 0 the reverse; 0 is uniform.",
        group="training",
        ge=-1,
        le=1.75,
        importance="advanced",
        visible_when={".timesteps": ["mode"]},
    )
    shift_by: Literal["none", "factor", "resolution"] = setting(
        "none",
        label="Timestep shift",
        also_called="discrete_flow_shift",
        help="Shifts the timesteps toward noise (factor above 1) or detail (below 1): by a fixed factor, or by one "
        "that grows with the image as the model's scheduler defines.",
        group="training",
        choice_labels={"none": "Off", "factor": "By a factor", "resolution": "By the image's size"},
        importance="advanced",
        visible_when={".timesteps": OTHERS},
    )
    shift: Float = setting(
        3.0,
        label="Shift value",
        also_called="noising shift",
        help="Factor that multiplies the noise-to-image ratio. Stable Diffusion 3 is sampled with 3.",
        group="training",
        gt=0,
        le=100,
        importance="advanced",
        visible_when={".timesteps": OTHERS, ".shift_by": ["factor"]},
    )
    min_timestep: Int = setting(
        0,
        label="Min timestep",
        help="Lowest timestep to train. The distribution is rescaled to the range. 0 is no noise.",
        group="training",
        ge=0,
        le=999,
        importance="advanced",
    )
    max_timestep: Int = setting(
        1000,
        label="Max timestep",
        help="Timesteps stay below this one. The distribution is rescaled to the range. 1000 is pure noise.",
        group="training",
        ge=1,
        le=1000,
        importance="advanced",
    )
    expert_share: Float | None = setting(
        0.5,
        label="High-noise share",
        also_called="switch_boundary_every, high noise, low noise, boundary_ratio",
        help="Fraction of samples that train the high-noise expert; the others train the low-noise one, each on its "
        "own timesteps. Empty: according to the timestep distribution, which gives the high-noise expert a sixth.",
        group="training",
        gt=0,
        lt=1,
        importance="advanced",
        empty_means="by timestep",
        visible_when={"family": families_with(experts=True), "denoiser.expert": ["both"]},
    )
    guidance: Float = setting(
        1.0,
        label="Guidance (embedded)",
        also_called="flux_guidance_value",
        help="The guidance scale given to the model in training, if it takes one as an input, like FLUX.1 dev. 1 is "
        "usual, whatever samples are generated with. Models without that input, such as FLUX.1 schnell, ignore it.",
        group="training",
        ge=0,
        le=100,
        importance="advanced",
        visible_when={"family": families_with(takes_guidance=True)},
    )
    offset_noise: Float = setting(
        0.0,
        label="Offset noise",
        help="Adds a constant offset per channel to the noise, so the model can learn very dark or bright images. 0: "
        "none; 0.05 to 0.1 is usual.",
        group="training",
        ge=0,
        le=1,
        importance="advanced",
    )
    offset_noise_random: bool = setting(
        False,
        label="Random offset noise",
        help="Choose the strength of the offset noise at random for each sample, from 0 to the value above.",
        group="training",
        importance="advanced",
    )
    offset_noise_adaptive: Float = setting(
        0.0,
        label="Adaptive offset noise",
        help="Increases the offset noise of each channel by this times the absolute mean of the image's latents in "
        "that channel: more for dark or bright images. Negative values reduce it for them. 0: off; a tenth of the "
        "offset noise is usual.",
        group="training",
        ge=-1,
        le=1,
        importance="advanced",
    )
    offset_noise_by_timestep: bool = setting(
        False,
        label="Generalized offset noise",
        help="Scales offset noise with the noise level, so details suffer less. 0.02 is a good start for its strength.",
        group="training",
        importance="advanced",
        visible_when={"family": families_with(objective="ddpm")},
    )
    multires_noise_iterations: Int = setting(
        0,
        label="Multires noise iterations",
        also_called="pyramid noise",
        help="Adds noise at this many coarser resolutions, so the model learns to change large areas, as in very dark "
        "and very bright images. 0: none; 6 to 10 is usual.",
        group="training",
        ge=0,
        le=16,
        importance="advanced",
    )
    multires_noise_discount: Float = setting(
        0.3,
        label="Multires noise discount",
        help="Strength of each coarser noise relative to the one before. 0.1 to 0.3 for LoRA, up to 0.8 for full "
        "fine-tunes on many images.",
        group="training",
        gt=0,
        lt=1,
        importance="advanced",
    )
    input_perturbation: Float = setting(
        0.0,
        label="Input perturbation",
        also_called="perturbation_noise_weight",
        help="Adds a little more noise to the model's input than it has to predict, to simulate the model's own "
        "errors in sampling. 0: none; 0.1 is usual.",
        group="training",
        ge=0,
        le=1,
        importance="advanced",
    )
