"""The description of a model family: data and a few short functions, without training code or torch at import.

Noise, target and loss are computed on unpacked, normalized latents. If a denoiser needs other conventions (packing,
time scale, sign), `pack`, `unpack`, `inputs` and `output` of the family convert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from modules.config.methods import methods_for
from modules.config.ResolutionShift import ShiftLaw
from modules.config.TrainingTimesteps import TrainingTimesteps
from modules.families.Codec import Codec
from modules.families.conditions import Condition, Conditioned
from modules.families.LayerNames import LayerNames
from modules.families.PublishedModel import PublishedModel
from modules.families.TextEncoding import Conditioning, TextEncoding
from modules.families.Undistilled import Undistilled

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from torch import Tensor

    from modules.config.ModelConfig import ModelConfig

    CallAttributes = Callable[[DiffusionPipeline, int | None, int | None, float], Mapping[str, Any]]


@dataclass(frozen=True)
class DenoiserCall:
    """The arguments of one forward pass, from which a family's `inputs` builds those of the denoiser."""

    denoiser: ModelMixin
    latents: Tensor  # noised, normalized and packed
    timestep: Tensor  # [B], 0..1000
    text: Conditioning  # batched outputs of TextEncoding by name
    shape: tuple[int, ...]  # of the latents before packing: [B, C, H, W] or [B, C, F, H, W]
    given: Mapping[str, Any] = field(default_factory=dict)  # as in Batch, but the lists of rows as tuples of [B, ...]
    guidance: Tensor | None = None  # [B], float32; None unless the family `takes_guidance`

    def token_timesteps(self, patch_size: int) -> Tensor:
        """[B, N], the timestep of each token: 0 in a first frame that is given. patch_size: as in Family."""
        batch, _, frames, height, width = self.shape
        of_frames = self.timestep[:, None].expand(batch, frames)
        if (first_given := self.given.get("first_given")) is not None:
            of_frames = of_frames.clone()
            of_frames[:, 0] = of_frames[:, 0].masked_fill(first_given, 0)
        return of_frames.repeat_interleave((height // patch_size) * (width // patch_size), dim=1)

    def beside(self, name: str) -> Tensor | None:
        """What of a first frame the denoiser sees beside the latents, [B, ...]; None for clips without, and images."""
        return next(iter(self.given.get(name, ())), None)

    def text_tensor(self, name: str) -> Tensor:
        """An output of the text encoding that is one tensor, as all are unless the family collates them to lists."""
        value = self.text[name]
        assert not isinstance(value, list)
        return value


@dataclass(frozen=True)
class Family(Conditioned):
    """A family of models with the same architecture and conventions.

    name: as in the settings. label: as shown to users.
    pipeline: the diffusers class. other_pipelines: further class names whose folders have the same architecture.
    denoisers: the pipeline's components that predict; experts from high to low noise.
    vae: the component that encodes images.
    objective: "ddpm" (epsilon or v, by the scheduler config of the base model) or "flow".
    align: image sizes must be multiples of this many pixels.
    inputs: DenoiserCall -> keyword arguments for the denoiser's forward.
    output: (DenoiserCall, first output of the denoiser) -> prediction, packed like the latents.
    sound_output: (DenoiserCall, second output of the denoiser) -> prediction for the sound, in the shape of the `sound`
        in `given`; None for families without a Sound.
    pack: latents -> the denoiser's input. unpack: (packed, shape of the latents) -> latents.
    adapt: corrects, once it is loaded, faults of a denoiser or of how its pipeline calls it.
    guidance_denoisers: components of the denoisers' architecture that predict without the text, for guidance in
        sampling. They are never trained.
    experts: pipeline config -> denoiser -> its half-open interval of timesteps [start, end); None if a single denoiser
        handles all timesteps. An expert that a step does not use is not updated.
    codec: how the VAE converts images to latents and back.
    lora_targets: component -> names of its attention projections. lora_mlp: the same for its feed-forward layers.
    lora_blocks: component -> prefixes of the blocks whose layers can be adapted.
    unquantized: component -> names of linear layers in its blocks that are never quantized, because they are small and
        sensitive. Layers outside of the blocks never are.
    unchecked_blocks: module lists of a denoiser whose blocks run without gradient checkpointing, so that they can't be
        swapped.
    latent_bytes_per_pixel, caption_bytes: size of a cache entry in float32, for estimating disk space.
    typical_bytes: size of a whole model in float32, for estimating disk space before the base model is downloaded.
    is_default: whether this is the default of the setting `family`.
    unused: components that training never needs, which are not loaded.
    read_when_built: components that the pipeline looks at when it is created, loaded or not.
    optional: components that a model may lack -> prefix of their tensors in a single-file checkpoint.
    takes_guidance: whether the denoiser takes a guidance scale, as guidance-distilled models do.
    takes_one_timestep: whether a forward pass has one timestep for all of its rows, which then go through one by one.
    conditions: what the denoiser sees beside text and latents, at most one of each kind.
    frame_step: a clip of a video model has a multiple of this many frames, and `frame_rest` more; 0 for models of
        images.
    frame_rest: see there. An image is a clip of one frame.
    frame_latents: how many latent frames the VAE makes of `frame_step` frames, and of `frame_rest`.
    frames_per_token: how many further frames of a clip take the denoiser as long as an image does; 0 for as many as
        `frame_step`.
    fps: frames per second of the videos that a video model was trained on.
    min_sample_steps: the fewest steps that the pipeline can sample in.
    patch_size: latent cells along each side of a token, for shifting timesteps by resolution.
    shift_law: how the shift of timesteps by resolution grows with the size of an image, as in ResolutionShift.
    training_timesteps: what its makers or, where that isn't public, peers train it with; None for a logit-normal
        distribution with the sampling shift, or a uniform one for "ddpm".
    expert_boundary: of the published model, the normalized timestep between its experts, for the preview.
    partly_unused: components with weights that the forward pass does not use, so that they never get a gradient.
    frozen_layers: component -> layers that are never trained, because other programs' file formats can't hold them.
    further_classes: component -> classes, with their library, that its folders may name beside those of `published`.
        Only a family that has AutoTokenizer or AutoProcessor here loads it, and then without the code of its folder.
    accepts: whether a model_index.json with one of the pipelines belongs to this family and not to a variant. The
        denoiser's config is in it as DENOISER_CONFIG, and tells families apart whose pipelines have the same class.
    other_model: model_index.json with one of the pipelines -> the name of the model, if it is one that no family has,
        else ""; the family doesn't accept it.
    unsupported: config of the first denoiser -> the name of its version, if it is one that can't be trained, else "".
    matches_lora: whether tensor names and shapes of a LoRA file are of this family, by further marks than the names and
        widths of its published model's layers.
    file_mark: a pattern that only tensor names of its denoiser have, in its makers' files; "" where none is known.
    takes_loras_of: the family whose LoRA files also fit this one, because both have the same layers; "" for none.
    published: the model that the memory estimate is for; None if its architecture is unknown.
    can_train_vae: whether the method "vae" can train its VAE, which has to encode to a distribution.
    call_options: further arguments for the pipeline's `__call__`, besides `text.options`.
    step_options: number of steps -> arguments for the pipeline's `__call__` that depend on it.
    plain_noise_schedule: whether its makers have trained it, whatever the scheduler's config says, without a shift of
        the noise schedule (`snr_shift_scale`); such a scheduler is replaced when it is loaded.
    has_own_sampler: whether the pipeline samples with the scheduler of its models only.
    sampling_package: the package without which it only trains, because the license of its models asks for it; "" for
        none.
    guidance_argument, frames_argument: the arguments of the pipeline's `__call__` for the guidance scale and the number
        of frames.
    call_attributes: (pipeline, width, height, guidance scale) -> attributes that are set on the pipeline while it
        samples, in place of arguments that its `__call__` lacks. width, height: as in ImageRequest.
    single_file: the key layout for writing single-file checkpoints, None if they can't be written: "ldm" for the
        original latent diffusion, "sgm" for Stability's models with two text encoders, "mmdit" with three.
    kohya_prefixes: component -> prefix of its layers in kohya's LoRA format.
    layer_names: component -> the names of its layers in LoRA files for ComfyUI; for families without `kohya_prefixes`.
    original_names: how LoRA files of other programs name the first denoiser's layers, where `layer_names` don't say it;
        they are read by it, and not written.
    kohya_blocks: whether that format names the denoiser's blocks as diffusers or as single-file checkpoints do.
    kohya_version: the configs of denoiser and scheduler -> the name of the base model's kind in the metadata of kohya's
        LoRAs (ss_base_model_version); "" if his scripts have none.
    embedding_keys: text encoder -> key of its vectors in an embedding file; empty where the method "embedding" can't
        train the family.
    distilled: its models that are distilled to few steps -> what to train in their place.
    undistilled: where published models have that denoiser, if their index names a distilled one; else None.
    remarks: for docs/families.md, what its users should know: how to write captions, how saved files are loaded, what
        can't be trained. One paragraph of Markdown, in lines of any length.
    """

    name: str
    label: str
    pipeline: str
    denoisers: tuple[str, ...]
    text: TextEncoding
    objective: Literal["ddpm", "flow"]
    align: int
    inputs: Callable[[DenoiserCall], dict[str, Any]]
    lora_targets: Mapping[str, tuple[str, ...]]
    lora_mlp: Mapping[str, tuple[str, ...]]
    lora_blocks: Mapping[str, tuple[str, ...]]
    latent_bytes_per_pixel: float
    caption_bytes: int
    typical_bytes: float
    is_default: bool = False
    output: Callable[[DenoiserCall, Any], Tensor] = lambda call, output: output
    sound_output: Callable[[DenoiserCall, Tensor], Tensor] | None = None
    pack: Callable[[Tensor], Tensor] = lambda latents: latents
    unpack: Callable[[Tensor, tuple[int, ...]], Tensor] = lambda packed, shape: packed
    adapt: Callable[[ModelMixin], None] = lambda denoiser: None
    guidance_denoisers: tuple[str, ...] = ()
    experts: Callable[[Mapping[str, Any]], Mapping[str, tuple[float, float]]] | None = None
    codec: Codec = field(default_factory=Codec)
    unquantized: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unchecked_blocks: tuple[str, ...] = ()
    other_pipelines: tuple[str, ...] = ()
    vae: str = "vae"
    unused: tuple[str, ...] = ()
    read_when_built: tuple[str, ...] = ()
    optional: Mapping[str, str] = field(default_factory=dict)
    takes_guidance: bool = False
    takes_one_timestep: bool = False
    conditions: tuple[Condition, ...] = ()
    frame_step: int = 0
    frame_rest: int = 1
    frame_latents: tuple[int, int] = (1, 1)
    frames_per_token: int = 0
    fps: float = 16.0
    min_sample_steps: int = 1
    patch_size: int = 2
    shift_law: ShiftLaw = "exponential"
    training_timesteps: TrainingTimesteps | None = None
    expert_boundary: float = 0.0
    partly_unused: tuple[str, ...] = ()
    frozen_layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    further_classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    accepts: Callable[[Mapping[str, Any]], bool] = lambda index: True
    other_model: Callable[[Mapping[str, Any]], str] = lambda index: ""
    unsupported: Callable[[Mapping[str, Any]], str] | None = None
    matches_lora: Callable[[Mapping[str, tuple[int, ...]]], bool] = lambda shapes: False
    file_mark: str = ""
    takes_loras_of: str = ""
    published: PublishedModel | None = None
    can_train_vae: bool = False
    call_options: Mapping[str, Any] = field(default_factory=dict)
    step_options: Callable[[int], Mapping[str, Any]] = lambda steps: {}
    plain_noise_schedule: bool = False
    has_own_sampler: bool = False
    sampling_package: str = ""
    guidance_argument: str = "guidance_scale"
    frames_argument: str = "num_frames"
    call_attributes: CallAttributes = lambda pipeline, width, height, guidance: {}
    single_file: Literal["ldm", "sgm", "mmdit"] | None = None
    kohya_prefixes: Mapping[str, str] = field(default_factory=dict)
    layer_names: Mapping[str, LayerNames] = field(default_factory=dict)
    original_names: LayerNames | None = None
    kohya_blocks: Literal["diffusers", "single_file"] = "diffusers"
    kohya_version: Callable[[Mapping[str, Any], Mapping[str, Any]], str] = lambda denoiser, scheduler: ""
    embedding_keys: Mapping[str, str] = field(default_factory=dict)
    distilled: Mapping[str, str] = field(default_factory=dict)
    undistilled: Undistilled | None = None
    remarks: str = ""

    @property
    def pipelines(self) -> tuple[str, ...]:
        """All diffusers pipeline classes whose folders this family can train."""
        return (self.pipeline, *self.other_pipelines)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods that can train it, as their facts say."""
        return methods_for(self)

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return self.text.encoders

    @property
    def trainable_text_encoders(self) -> tuple[str, ...]:
        """The text encoders that a method which trains weights can train."""
        return self.text.encoders if self.text.trainable else ()

    @property
    def text_components(self) -> tuple[str, ...]:
        return self.text.encoders + self.text.tokenizers + self.text.connectors

    def with_clip_skip(self, clip_skip: int) -> Family:
        """The same family, with text from an earlier layer of its CLIP encoders. clip_skip: as in ModelConfig."""
        if clip_skip == 1 or not self.text.skips_layers:
            return self
        options = {**self.text.options, "clip_skip": clip_skip - 1}
        unused = (*self.partly_unused, *self.text.encoders)  # the layers behind the one that is used
        return replace(self, text=replace(self.text, options=options), partly_unused=unused)

    def with_clip_skips(self, model: ModelConfig) -> Family:
        """The same family, whose CLIP encoders leave out layers one by one, beside the model's `least_clip_skip`."""
        if not model.clip_skips or not self.text.skips_layers:
            return self
        own = dict(zip(self.text.encoders, model.clip_skips, strict=False))
        further = {name: own.get(name, model.clip_skip) - model.least_clip_skip for name in self.text.encoders}
        unused = (*self.partly_unused, *self.text.encoders)
        return replace(self, text=replace(self.text, layer_skips=further), partly_unused=unused)

    def with_text_chunks(self, count: int) -> Family:
        """The same family, with prompts encoded in chunks where its encoders allow it. count: as in ModelConfig."""
        if count == 1 or not self.text.takes_chunks:
            return self
        return replace(self, text=replace(self.text, chunks=count), caption_bytes=count * self.caption_bytes)

    def with_word_weights(self, weighted: bool) -> Family:
        """The same family, with weights of words in prompts, as model.word_weights, where its encoders allow it."""
        if not weighted or not self.text.takes_chunks:
            return self
        return replace(self, text=replace(self.text, weighted=True))

    def with_text_settings(self, model: ModelConfig) -> Family:
        """The same family, with prompts encoded as the settings of the model say."""
        family = self.with_clip_skip(model.least_clip_skip).with_text_chunks(model.text_chunks)
        return family.with_clip_skips(model).with_word_weights(model.word_weights)

    def denoisers_of(self, expert: str) -> tuple[str, ...]:
        """The denoisers that a setting means. expert: as in DenoiserConfig; of families without experts all."""
        if self.experts is None or expert == "both":
            return self.denoisers
        return (self.denoisers[0 if expert == "high" else 1],)

    def tokenizer_of(self, encoder: str) -> str:
        return self.text.tokenizers[self.text.encoders.index(encoder)]
