"""What every family promises, checked against diffusers' own pipeline. A new family is found here by its name.

The oracle is the pipeline itself: a spy on its scheduler sees what the denoiser really predicts in sampling, so a wrong
time scale, sign, packing or text input of ours shows as a difference.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, field
from functools import cached_property, wraps

import diffusers
import numpy as np
import pytest
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL import Image
from torch.utils._pytree import tree_leaves

from modules.config.families import load_families
from modules.config.ModelConfig import ModelConfig
from modules.config.SampleConfig import SampleConfig
from modules.data.conditions.first_frame import encode_ends, image_features
from modules.data.conditions.SampleLayers import SampleLayers
from modules.data.images import to_array
from modules.data.LatentEncoder import LatentEncoder
from modules.data.TensorCache import TensorCache
from modules.families.conditioning import encode_records, encode_text, is_unconditional_zero
from modules.families.conditions import FirstFrame, Inpainting, Layers, References, SectionHistory, Sizes, SourceClip
from modules.families.Family import Family
from modules.families.inpainting import clip_mask_channels, mask_channels
from modules.families.latents import decode_latents, encode_pieces, encode_pixels, latent_shape
from modules.families.prediction import objective_of, predict, predict_all
from modules.families.registry import FAMILIES, adapt_denoisers, family_of_pipeline
from modules.families.TextEncoding import collate_text
from modules.layers import ActivationOffload, rotary
from modules.layers.frozen_norms import fuse_norms
from modules.layers.rotary import fuse_rotary
from modules.layers.training_passes import is_training_pass
from modules.layers.transfers import DirectTransfers
from modules.methods.parts import prepare_for_training, trained_in
from modules.methods.registry import METHODS
from modules.sampling.generation import ImageRequest, call_attributes, generate_images, image_requests, images_in
from modules.sampling.SamplePrompts import SamplePrompts
from modules.trainer.autocasting import autocast
from modules.weights.BaseModel import BaseModel
from modules.weights.component_classes import refused_class
from modules.weights.libraries import import_pipeline
from modules.weights.processors import load_processors
from modules.weights.safe import load_tensors
from tests.support import alike_families
from tests.support.alike_families import once_for_each
from tests.support.counted_attention import count_attentions
from tests.support.prepared import prepared
from tests.support.short_training import load_plainly
from tests.support.small_inputs import real_inputs
from tests.support.tiny_models import VARIANTS

# Of the largest value. Most predictions are the pipeline's in every bit. Others differ where a pipeline converts them
# to clean latents and back, attends over a text with its padding, keeps keys and values of the first step, or converts
# the pixels of an image that it sees in another order.
ROUNDING = 3e-6
ABSTRACT = ("PreTrainedModel", "PreTrainedTokenizerBase", "Schedulers", "SchedulerMixin")  # ends of names of classes
PROMPTS = ["a photo of a cat", "the dog, moving below a red and blue sky"]


@dataclass(frozen=True)
class Case:
    """A family with a tiny model of it. pipe: plain, shared by the tests, which leave it as it is.

    frames: per clip, or the image and its layers.
    """

    family: Family
    folder: str
    pipe: diffusers.DiffusionPipeline = field(repr=False)
    frames: int = 1

    @property
    def width(self):
        return 3 * self.unit  # not square: else swapped axes would not show

    @property
    def height(self):
        return 2 * self.unit

    @property
    def unit(self):
        # of the area of `reference_images` where texts see these as samples fit them to it: so they stay as they are
        fits_seen = self.family.text.sees_images and self.family.fact(References, "size") is None
        return max(32 if fits_seen else 16, self.family.align)

    def fresh_pipe(self):
        return load_pipe(self.family, self.folder)

    def copied_pipe(self):
        """In less time; but its weights lie elsewhere in memory, so that last bits may be others."""
        tensors = [
            tensor
            for name in self.pipe.components
            for module in getattr(getattr(self.pipe, name), "modules", list)()
            for tensor in vars(module).values()
            if isinstance(tensor, torch.Tensor)  # as by `weight_norm`: of a graph, which has no copy
        ]
        return copy.deepcopy(self.pipe, {id(tensor): tensor.detach() for tensor in tensors})

    def same_pipe(self):
        """With the same weights, but its own scheduler, and a VAE and denoisers whose attributes can be set."""
        pipe = copy.copy(self.pipe)
        pipe.scheduler = copy.deepcopy(pipe.scheduler)
        for name in ("vae", *self.family.denoisers):
            setattr(pipe, name, copy.copy(getattr(pipe, name)))
        return pipe

    def text(self, pipe=None):
        """The conditioning of PROMPTS, each encoded alone, as a pipeline does it for one picture."""
        return collate_text(self.family.text, self.records(pipe))

    def records(self, pipe=None):
        return self.plain_records if pipe in (None, self.pipe) else self.encode(pipe)

    @cached_property
    def plain_records(self):
        return self.encode(self.pipe)

    def encode(self, pipe):
        with torch.no_grad():
            return [self.encode_one(prompt, pipe) for prompt in PROMPTS]

    def encode_one(self, prompt, pipe=None):
        return encode_records(self.family, pipe or self.pipe, [prompt], self.seen_with([prompt]))[0]

    def text_with(self, *references):
        """The conditioning of PROMPTS, or the first of them, as many as there are lists of references."""
        seen = self.seen(references)
        prompts = PROMPTS[: len(references)]
        with torch.no_grad():
            return encode_text(self.family, self.pipe, prompts, seen)

    def seen_with(self, prompts):
        """The images that the text encoders see with each prompt where the model can't do without."""
        if self.family.text.sees_first_frame:
            return [[self.input_image] for _ in prompts]
        return self.seen([self.reference_images() if self.family.fact(References, "needed") else [] for _ in prompts])

    def seen(self, references):
        """These references of each prompt as the text encoders see them; None if they see none."""
        size_for = self.family.text.reference_size
        if size_for is None:
            return None
        return [
            [resized(image, size_for(image.width / image.height) or image.size) for image in own] for own in references
        ]

    @cached_property
    def plain_prediction(self):
        """Of `noised_pair`, by the plain pipeline."""
        return predict_pair(self, self.pipe)

    @cached_property
    def sampled(self):
        """What `spied_sampling` sees of the first prompt."""
        return spied_sampling(self, PROMPTS[0])

    def predict(self, noised, timestep, text, pipe=None, **given):
        """Of pictures that were not cut and have the size in which they are made, as a pipeline takes it."""
        given = {**self.conditions(noised), **given}
        given = {name: value for name, value in given.items() if value is not None}
        with torch.no_grad():
            return predict(self.family, pipe or self.pipe, noised, timestep, text, given)

    def conditions(self, noised):
        """What a prediction for these latents needs besides the text."""
        conditions = {"sizes": self.sizes(noised)}
        if self.family.has(Inpainting):
            conditions["inpainting"] = self.inpainting.expand(len(noised), -1, -1, -1)
        if self.family.fact(FirstFrame, "needed"):
            conditions["first_frame"] = self.first_frame.expand(len(noised), -1, -1, -1, -1)
        if self.family.fact(FirstFrame, "last") == "needed":
            conditions["last_given"] = torch.ones(len(noised), dtype=torch.bool)
        if self.family.fact(FirstFrame, "features") and self.family.fact(FirstFrame, "needed"):
            conditions["image_features"] = self.image_features.expand(len(noised), -1, -1)
        if self.family.fact(References, "needed"):
            conditions["references"] = [self.reference_latents() for _ in noised]
        if (spec := self.family.condition(SectionHistory)) is not None:  # as the first section has it
            channels, _, *cells = self.latent_shape()
            conditions["history"] = torch.zeros(len(noised), channels, 1 + spec.before, *cells)
        if self.family.fact(SourceClip, "needed"):
            conditions["source_clip"] = self.source_latents.expand(len(noised), -1, -1, -1, -1)
        return conditions

    @property
    def is_clip(self):
        return self.frames > 1 and not self.family.has(Layers)

    @property
    def num_clean(self):
        """How many latent frames at the start stay as they are, without a prediction."""
        return int(bool(self.family.fact(FirstFrame, "clean")))

    def given_frames(self):
        """Those of a clip that the model is given."""
        yield to_array(self.input_image)
        if self.family.fact(FirstFrame, "last") == "needed":
            yield to_array(self.last_image)

    @cached_property
    def first_frame(self):
        """As the `first_frame` in Batch.given, of `given_frames`."""
        encoder = LatentEncoder(self.family, self.pipe.vae)
        return encode_ends(
            encoder, self.given_frames, self.frames, last=self.family.fact(FirstFrame, "last") == "needed"
        )[None]

    @cached_property
    def image_features(self):
        """As the `image_features` in Batch.given, of `given_frames`."""
        encoder = LatentEncoder(self.family, self.pipe.vae, self.pipe)
        return image_features(encoder, self.given_frames)[None]

    @cached_property
    def inpainting(self):
        """As the `inpainting` in Batch.given, of `input_image` and `mask`."""
        pixels = torch.from_numpy(to_array(self.input_image))[None]
        mask = torch.from_numpy(np.asarray(self.mask, np.float32) / 255)[None, None]
        with torch.no_grad():
            latents = encode_pixels(self.family, self.pipe.vae, pixels * (1 - mask))
        channels = mask_channels(self.family.fact(Inpainting, "resolution"), mask, *latents.shape[-2:])
        return torch.cat([channels, latents], dim=1)

    @property
    def source(self):
        """The frames of a source clip."""
        pixels = np.random.default_rng(6).integers(0, 255, (self.frames, self.height, self.width, 3), np.uint8)
        return [Image.fromarray(frame) for frame in pixels]

    @cached_property
    def source_latents(self):
        """As the `source_clip` in Batch.given, of `source` and `source_masks`."""
        pixels = torch.from_numpy(np.stack([to_array(frame) for frame in self.source], 1))[None]

        def encode(part):
            with torch.no_grad():
                return encode_pixels(self.family, self.pipe.vae, part if self.frames > 1 else part[:, :, 0])

        if not self.family.fact(SourceClip, "masked"):
            return encode(pixels)
        masks = torch.from_numpy(np.stack([np.asarray(mask) > 127 for mask in self.source_masks])).float()[:, None]
        stays, made = (encode(pixels * part.movedim(1, 0)) for part in (1 - masks, masks))
        return torch.cat([stays, made, clip_mask_channels(masks, stays.shape[1:])[None]], 1)

    @property
    def source_masks(self):
        """Another one for each frame, for a model that sees masks of source clips."""
        turns = range(self.frames if self.family.fact(SourceClip, "masked") else 0)
        return [self.mask.transpose(Image.Transpose.ROTATE_180) if turn % 3 else self.mask for turn in turns]

    @property
    def mask(self):
        """White in a part that does not end at a latent cell."""
        mask = Image.new("L", (self.width, self.height))
        mask.paste(255, (5, 3, self.width // 2, self.height - 7))
        return mask

    @property
    def painted(self):
        """What the pipeline takes to paint in an image."""
        return {"image": self.input_image, "mask_image": self.mask} if self.family.has(Inpainting) else {}

    @property
    def layers(self):
        """The pipeline's arguments for decomposing an image."""
        options = self.family.fact(Layers, "options")
        return options(self.frames - 1, self.width, self.height) if options else {}

    @property
    def input_image(self):
        """In the size of the picture."""
        return Image.fromarray(np.random.default_rng(4).integers(0, 255, (self.height, self.width, 3), np.uint8))

    @property
    def last_image(self):
        """The other end of a clip that starts with `input_image`."""
        return self.input_image.transpose(Image.Transpose.ROTATE_180)

    def sizes(self, latents):
        return torch.tensor([[self.height, self.width, 0, 0, self.height, self.width]]).float().repeat(len(latents), 1)

    def latent_shape(self):
        return latent_shape(self.family, self.pipe.vae, self.width, self.height, self.frames)

    def objective(self):
        return objective_of(self.family, self.pipe.scheduler.config)

    def sample(self, folder, **settings):
        """Of the first prompt in two steps; where it has to be, from `input_image`."""
        size = {"width": self.width, "height": self.height, "layers": max(1, self.frames - 1)}
        sample = SampleConfig(prompt=PROMPTS[0], steps=2, **size, **settings)
        if self.family.fact(FirstFrame, "needed") or self.family.has(Inpainting):
            sample.reference = str(folder / "input.png")
            self.input_image.save(sample.reference)
        if self.family.fact(FirstFrame, "last") == "needed":
            sample.last_frame = str(folder / "last.png")
            self.last_image.save(sample.last_frame)
        if self.is_clip:
            sample.frames = self.frames
        if self.family.has(Inpainting):
            sample.mask = str(folder / "white.png")
            self.mask.save(sample.mask)
        for number, image in enumerate(self.reference_images() if self.family.fact(References, "needed") else ()):
            sample.reference = str(folder / "references")
            (folder / "references").mkdir(exist_ok=True)
            image.save(folder / "references" / f"{number}.png")
        for number, image in enumerate(self.source if self.family.fact(SourceClip, "needed") else ()):
            sample.reference = str(folder / "source")
            (folder / "source").mkdir(exist_ok=True)
            image.save(folder / "source" / f"{number}.png")
        for number, mask in enumerate(self.source_masks):
            sample.mask = str(folder / "masks")
            (folder / "masks").mkdir(exist_ok=True)
            mask.save(folder / "masks" / f"{number}.png")
        return sample

    def reference_images(self):
        """One for a model that takes one, else two, of unlike sizes that the pipeline keeps.

        One that is decomposed has the size of the layers, and transparent parts.
        """
        if self.family.has(Layers):
            transparent = np.random.default_rng(5).integers(0, 255, (self.height, self.width), np.uint8)
            image = self.input_image.convert("RGBA")
            image.putalpha(Image.fromarray(transparent))
            return [image]
        if self.family.fact(References, "has_shape_of_image"):
            return [self.input_image]
        sizes = [(64, 96), (128, 64)][: self.family.fact(References, "most")]
        if size_for := self.family.fact(References, "size"):
            sizes = [size_for(width / height) for width, height in sizes]
        colors = np.random.default_rng(4)
        return [Image.fromarray(colors.integers(0, 255, (h, w, 3), np.uint8)) for w, h in sizes]

    def given_references(self):
        """The pipeline's argument."""
        images, spec = self.reference_images(), self.family.condition(References)
        return {spec.argument: images if spec.most > 1 else images[0]}

    def reference_latents(self, images=None):
        images = images or self.reference_images()
        # As pipelines have them in memory, by which convolutions round: where a denoiser then rounds to bfloat16, as
        # Kandinsky 5 does queries and keys, a last bit of float32 can become one of bfloat16.
        pixels = [torch.from_numpy(to_array(one))[None].clone(memory_format=torch.channels_last) for one in images]
        with torch.no_grad():
            return [encode_pixels(self.family, self.pipe.vae, one)[0] for one in pixels]

    def make_picture(self, pipe, **arguments):
        """[B, 3, H, W] in [0, 1], or [B, 3, F, H, W], of a plain call of the pipeline, without guidance."""
        arguments = {
            "max_area": self.width * self.height,
            **self.family.text.options,
            **self.family.call_options,
            **self.family.step_options(3),
            "width": self.width,
            "height": self.height,
            self.family.frames_argument: self.frames,
            **({"image": self.input_image} if self.family.fact(FirstFrame, "needed") else {}),
            **({"last_image": self.last_image} if self.family.fact(FirstFrame, "last") == "needed" else {}),
            **self.painted,
            **(self.given_references() if self.family.fact(References, "needed") else {}),
            **(
                {self.family.fact(SourceClip, "argument"): self.source}
                if self.family.fact(SourceClip, "needed")
                else {}
            ),
            **({"mask": masks} if (masks := self.source_masks) else {}),
            **self.layers,
            "num_inference_steps": 3,
            "sample_audio": False,
            self.family.guidance_argument: no_guidance(pipe),
            "generator": torch.Generator().manual_seed(5),
            "output_type": "pt",
            **arguments,
        }
        taken = inspect.signature(pipe.__call__).parameters
        with call_attributes(self.family, pipe, self.width, self.height, no_guidance(pipe)):
            output = pipe(**{name: value for name, value in arguments.items() if name in taken})
        images = images_in(output)
        if self.family.has(Layers):
            return torch.stack(images).movedim(1, 2)
        return output.frames.movedim(1, 2).squeeze(2) if images is None else images


def encode_alone(case, prompt, references):
    with torch.no_grad():
        return encode_records(case.family, case.pipe, [prompt], case.seen([references]))


def resized(image, size):
    """As pipelines do it."""
    return image.resize(size, Image.Resampling.LANCZOS)


def family_named(name):
    """name: as of `make_tiny`."""
    return FAMILIES[VARIANTS.get(name, (name,))[0]]


@pytest.fixture(scope="module", params=[*FAMILIES, *VARIANTS])
def case(request, tiny_model) -> Case:
    folder = str(tiny_model(request.param))
    family = family_named(request.param)
    # between two frames, after one that stays as it is, or in sections, there is no still
    has_ends = family.fact(FirstFrame, "last") == "needed" or family.fact(FirstFrame, "clean")
    is_clip = has_ends or family.has(SectionHistory)
    frames = 3 if family.has(Layers) else family.frame_step + family.frame_rest if is_clip else 1
    return Case(family, folder, load_pipe(family, folder), frames)


def makes_clips_at_once(family):
    """Not in sections, of which test_history.py has several."""
    return bool(family.frame_step) and not family.has(SectionHistory)


@pytest.fixture(params=[name for name in (*FAMILIES, *VARIANTS) if makes_clips_at_once(family_named(name))])
def clip_case(request, tiny_model) -> Case:
    """A clip of two pieces beyond the first frame."""
    family, folder = family_named(request.param), str(tiny_model(request.param))
    return Case(family, folder, load_pipe(family, folder), 2 * family.frame_step + family.frame_rest)


def once_for_each_denoiser():
    """The first family with LoRA for each class of denoisers and each choice of their blocks."""
    names = {}
    for name, family in FAMILIES.items():
        if "lora" in family.methods:  # else all weights train, so that none can be swapped
            names.setdefault((family.published.denoiser.class_name, repr(family.lora_blocks)), name)
    return list(names.values())


def load_pipe(family, folder):
    pipeline = import_pipeline(family.pipeline)
    # diffusers wants to be told of each part that a model goes without
    parts = pipeline.load_config(folder)
    lacking = {name: None for name in (*family.optional, *family.unused) if parts.get(name) == [None, None]}
    processors = load_processors(folder, parts)  # which diffusers would only load with torchvision
    pipe = pipeline.from_pretrained(folder, local_files_only=True, **lacking, **processors)
    pipe.set_progress_bar_config(disable=True)
    adapt_denoisers(pipe)
    return pipe


def no_guidance(pipe):
    """The scale at which a pipeline asks its denoiser once for each step; some count from 0."""
    pipe._guidance_scale = 1.0
    return 0.0 if getattr(pipe, "do_classifier_free_guidance", False) else 1.0


def spied_sampling(case, prompt, **arguments):
    """A pipeline's picture and latents, and each (prediction, timestep, latents) that its scheduler was given."""
    pipe = case.same_pipe()
    if case.family.objective == "ddpm":
        # of the same noise schedule, and one that scales no input of the denoiser
        pipe.scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config)
    calls, latents = [], []
    only_pictures(case.family, pipe)
    seen_alone = case.family.fact(FirstFrame, "encode") or case.family.fact(References, "has_shape_of_image")
    if case.family.has(Inpainting) or seen_alone:
        take_modes(pipe.vae)
    step = pipe.scheduler.step
    shape = (1, *case.latent_shape())

    def unpacked(value):
        if case.num_clean:  # the pipeline steps the frames after it
            rest = case.family.unpack(value, (*shape[:2], shape[2] - case.num_clean, *shape[3:]))
            return torch.cat([case.first_frame, rest], 2)
        return case.family.unpack(value, shape).clone()

    @wraps(step)  # pipelines look at its signature
    def spy(prediction, timestep, sample, *args, **kwargs):
        velocity, time = unpacked(prediction), torch.as_tensor(timestep).clone()
        seen, result = unpacked(sample), step(prediction, timestep, sample, *args, **kwargs)
        if isinstance(pipe.scheduler, diffusers.SCMScheduler):
            scale = pipe.scheduler.config.sigma_data
            velocity, time, seen = flow_of_trigflow(velocity / scale, time.double().view(-1), seen / scale)
            latents.append(unpacked(result[1] / scale))
        else:
            latents.append(unpacked(result[0]))
        if pipe.scheduler.config.get("invert_sigmas"):  # the way from noise to data
            velocity, time = -velocity, 1000 - time.double()
        velocity = of_tokens(velocity, kwargs)
        if isinstance(pipe.scheduler, diffusers.MiniMaxH3Scheduler):  # likewise, and from 0 to 1
            velocity, time = -velocity, 1000 * (1 - time.double())
        calls.append((velocity, time, seen))
        return result

    pipe.scheduler.step = spy
    picture = case.make_picture(pipe, prompt=[prompt], **arguments)
    return picture, latents[-1], calls


def of_tokens(prediction, options):
    """What a scheduler is given with these options; where tokens have timesteps of their own, it is negative."""
    return -prediction if options.get("per_token_timesteps") is not None else prediction


def flow_of_trigflow(prediction, angle, latents):
    """The same prediction, time and latents of a flow. Source: Chen et al. 2025, arXiv 2503.09641, section 3.1."""
    sin, cos = angle.sin(), angle.cos()
    clean, noise = cos * latents - sin * prediction, sin * latents + cos * prediction
    share = sin / (sin + cos)
    return (noise - clean).float(), 1000 * share, ((1 - share) * clean + share * noise).float()


def take_modes(vae):
    """Keeps a pipeline from sampling the latents of its input image, which training takes by their mode."""
    encode = vae.encode

    def encode_to_mode(*args, **kwargs):
        encoded = encode(*args, **kwargs)
        encoded.latent_dist.sample = lambda generator=None: encoded.latent_dist.mode()
        return encoded

    vae.encode = encode_to_mode


def only_pictures(family, pipe):
    """Keeps a model that makes videos with sound from mixing the two, because videos are trained alone."""
    if hasattr(pipe, "sound_length"):
        pipe.sound_length = lambda frames: 0
    denoiser = getattr(pipe, family.denoisers[0])
    if "isolate_modalities" not in inspect.signature(denoiser.forward).parameters:
        return
    for_sound = copy.deepcopy(pipe.scheduler)
    pipe.scheduler.__deepcopy__ = lambda memo: for_sound  # not a copy that is spied on, too
    forward = denoiser.forward
    denoiser.forward = lambda *args, **given: forward(*args, **{**given, "isolate_modalities": True})


def noised_pair(case, times=(0.3, 0.9)):
    """Two noised latents with unlike timesteps, of unlike experts where there are some, as `objective.noise`."""
    shape = (len(PROMPTS), *case.latent_shape())
    generator = torch.Generator().manual_seed(1)
    clean, noise = (torch.randn(shape, generator=generator) for _ in range(2))
    return case.objective().noise(clean, noise, torch.tensor(times))


def predict_pair(case, pipe):
    noised, timestep, _ = noised_pair(case)
    text = case.text(pipe if case.family.trainable_text_encoders else None)
    return case.predict(noised, timestep, text, pipe)


def training_base(case, method, **settings):
    # channels_last is off: the other layout of convolutions rounds otherwise
    options = {"text_encoder": {"train": True}, "output": {"format": "diffusers"}, **settings}
    return prepared(case.folder, method, case.family.name, model={"channels_last": False}, **options)


def shake(base, config):
    """Changes what trains, as training would; returns the components that were."""
    parts = trained_in(METHODS[config.method], base, config)
    torch.manual_seed(3)
    with torch.no_grad():
        for name in parts:
            for parameter in base.module(name).parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter), alpha=0.05)
            base.module(name).eval()
    return set(parts)


def largest_difference(a, b):
    if isinstance(a, list):
        return max(largest_difference(one, other) for one, other in zip(a, b, strict=True))
    assert a.shape == b.shape
    return (a.float() - b.float()).abs().max().item()


def assert_same(ours, theirs):
    assert largest_difference(ours, theirs) <= ROUNDING * theirs.abs().max()


def rows_of(text, rows):
    return {
        name: [value[row] for row in rows] if isinstance(value, list) else value[rows] for name, value in text.items()
    }


def test_a_model_is_known_for_its_own_family(case):
    assert family_of_pipeline(case.pipe) is case.family


def test_a_folder_may_name_the_classes_that_its_pipeline_declares(case):
    for name, kinds in type(case.pipe)._get_signature_types().items():
        for kind in kinds:
            module = kind.__module__.split(".")
            library = module[2] if module[:2] == ["diffusers", "pipelines"] else module[0]
            index = {name: [library, kind.__name__]}
            if library in ("builtins", "inspect") or kind.__name__.endswith(ABSTRACT):
                continue  # no class of a component, or no concrete one
            assert refused_class(index, case.family) is None or not case.family.accepts(index)


def test_texts_are_as_long_as_the_pipelines_own_call_makes_them(case):
    with real_inputs():
        own = FAMILIES[case.family.name].text.options.get("max_sequence_length")
    taken = inspect.signature(case.pipe.__call__).parameters
    default = taken["max_sequence_length"].default if "max_sequence_length" in taken else None
    assert own in (None, default) or default is None


def test_a_family_of_embeddings_has_a_name_for_those_of_each_encoder(case):
    encoders = case.family.text.encoders if "embedding" in case.family.methods else ()
    assert set(case.family.embedding_keys) == set(encoders)


def test_our_prediction_is_what_the_pipeline_feeds_its_scheduler(case):
    _, _, calls = case.sampled
    assert len(calls) == 3
    text = collate_text(case.family.text, case.records()[:1])
    for prediction, timestep, latents in calls:
        ours = case.predict(latents, timestep.reshape(1), text)
        assert_same(ours[:, :, case.num_clean :], prediction[:, :, case.num_clean :])


def test_our_prediction_with_reference_images_is_the_pipelines(case):
    if not case.family.has(References):
        pytest.skip("takes no reference images")
    _, _, calls = spied_sampling(case, PROMPTS[0], **case.given_references())
    text = case.text_with(case.reference_images())
    for prediction, timestep, latents in calls:
        ours = case.predict(latents, timestep.reshape(1), text, references=[case.reference_latents()])
        assert largest_difference(ours, prediction) <= 2e-6
        flipped = [[latents.flip(-1) for latents in case.reference_latents()]]
        is_bound = case.family.text.sees_images or case.family.fact(References, "needed")
        for others in (flipped,) if is_bound else (flipped, None):
            without = case.predict(latents, timestep.reshape(1), text, references=others)
            assert largest_difference(without, prediction) > 1e-4


def test_rows_with_other_references_or_none_equal_single_predictions(case):
    if not case.family.has(References):
        pytest.skip("takes no reference images")
    noised, timestep, _ = noised_pair(case)
    images = case.reference_images()
    with_or_without = [] if case.family.fact(References, "needed") else [(images, []), ([], images)]
    for rows in ((images[:1], images[-1:]), *with_or_without):
        references = [case.reference_latents(own) if own else [] for own in rows]
        together = case.predict(noised, timestep, case.text_with(*rows), references=references)
        for row in range(2):
            text = collate_text(case.family.text, encode_alone(case, PROMPTS[row], rows[row]))
            one = slice(row, row + 1)
            alone = case.predict(noised[one], timestep[one], text, references=references[one])
            assert largest_difference(together[one], alone) <= 2e-6


def test_gradient_checkpointing_changes_no_gradient_where_there_are_reference_images(case):
    if not case.family.has(References):
        pytest.skip("takes no reference images")
    noised, timestep, _ = noised_pair(case)
    gradients = []
    for checkpointing in (True, False):
        pipe = case.copied_pipe()
        denoiser = getattr(pipe, case.family.denoisers[0]).requires_grad_(True)
        prepare_for_training(denoiser, gradient_checkpointing=checkpointing)
        references, text = [case.reference_latents()] * 2, case.text_with(*[case.reference_images()] * 2)
        given = {"sizes": case.sizes(noised), "references": references}
        predict(case.family, pipe, noised, timestep, text, given).square().mean().backward()
        gradients.append({name: value.grad for name, value in denoiser.named_parameters() if value.grad is not None})
    with_it, without = gradients
    assert with_it.keys() == without.keys()
    assert all(largest_difference(with_it[name], gradient) <= 1e-6 for name, gradient in without.items())
    assert any(gradient.abs().max() > 1e-3 for gradient in without.values())


def test_the_prediction_heeds_the_mask_and_what_it_leaves_of_the_image(case):
    if not case.family.has(Inpainting):
        pytest.skip("sees no mask")
    noised, timestep, _ = noised_pair(case)
    seen = case.inpainting.expand(len(noised), -1, -1, -1)
    channels = seen.shape[1] - noised.shape[1]
    for changed in (slice(0, channels), slice(channels, None)):
        other = seen.clone()
        other[:, changed] = 1 - other[:, changed]
        prediction = case.predict(noised, timestep, case.text(), inpainting=other)
        assert largest_difference(prediction, case.plain_prediction) > 1e-4


def test_the_prediction_heeds_the_source_clip(case):
    if not case.family.fact(SourceClip, "needed"):
        pytest.skip("sees no source clip")
    noised, timestep, _ = noised_pair(case)
    other = case.source_latents.flip(-1).expand(len(noised), -1, -1, -1, -1)
    prediction = case.predict(noised, timestep, case.text(), source_clip=other)
    assert largest_difference(prediction, case.plain_prediction) > 1e-4


def test_our_decoding_is_the_pipelines(case):
    picture, latents, _ = case.sampled
    picture = picture[:, :3]  # without transparency
    if case.family.has(Layers):
        latents = latents[:, :, 1:]  # the pipeline leaves out the image itself
    with torch.no_grad():
        ours = (decode_latents(case.family, case.pipe.vae, latents) / 2 + 0.5).clamp(0, 1)
    assert ours.std() > 0.01  # not one colour, which any scale would give
    assert largest_difference(ours, picture) <= 4e-6  # some pipelines multiply where we divide, in all latents


def test_clips_are_predicted_decoded_and_encoded_as_the_pipeline_does_it(clip_case, monkeypatch):
    test_our_prediction_is_what_the_pipeline_feeds_its_scheduler(clip_case)
    test_our_decoding_is_the_pipelines(clip_case)
    pixels = torch.rand(2, 3, clip_case.frames, clip_case.height, clip_case.width) * 2 - 1
    normalized = shapes_in_group_norms(monkeypatch)
    with torch.no_grad():
        latents = encode_pixels(clip_case.family, clip_case.pipe.vae, pixels)
        first = encode_pixels(clip_case.family, clip_case.pipe.vae, pixels[:, :, 0])
        further = clip_case.frames - 1
        pieces = iter(pixels[1:].split([1, *lengths_of_pieces(further, clip_case.family.frame_step)], 2))
        in_pieces = encode_pieces(clip_case.family, clip_case.pipe.vae, pieces)
    assert latents.shape[1:] == clip_case.latent_shape()
    is_still = largest_difference(latents[:, :, : first.shape[2]], first) <= 1e-5  # a still is a clip of one frame
    # normalized over several frames, the first latent frame depends on those after it
    assert is_still == all(len(shape) < 5 or shape[2] == 1 for shape in normalized)
    assert largest_difference(latents[1:], in_pieces) <= 1e-5
    noised, timestep, _ = noised_pair(clip_case)
    both = clip_case.predict(noised, timestep, clip_case.text())
    alone = clip_case.predict(noised[:1], timestep[:1], collate_text(clip_case.family.text, clip_case.records()[:1]))
    assert largest_difference(both[:1], alone) <= 1e-5


def lengths_of_pieces(num_frames, step):
    return [min(step, num_frames - start) for start in range(0, num_frames, step)]


def shapes_in_group_norms(monkeypatch):
    """A list that gets the shape of what each is given."""
    normalize, shapes = torch.nn.functional.group_norm, []

    def spy(values, *args, **kwargs):
        shapes.append(values.shape)
        return normalize(values, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "group_norm", spy)
    return shapes


def pipeline_from_image(family, pipe, monkeypatch):
    """That which takes a first frame, of the parts of `pipe`."""
    take_mode = lambda self, *args, **kwargs: self.mode()  # noqa: E731 - as some pipelines do
    monkeypatch.setattr(DiagonalGaussianDistribution, "sample", take_mode)
    kind = import_pipeline(family.fact(FirstFrame, "pipeline"))
    parts = {**pipe.config, **pipe.components}
    return kind(**{name: parts[name] for name in inspect.signature(kind.__init__).parameters if name in parts})


def test_a_first_frame_beside_the_latents_is_seen_as_in_the_pipeline(clip_case, monkeypatch):
    family, pipe = clip_case.family, clip_case.fresh_pipe()
    if not family.fact(FirstFrame, "beside"):
        pytest.skip("sees no first frame beside noised latents")
    from_image, calls = pipeline_from_image(family, pipe, monkeypatch), []
    step, shape = from_image.scheduler.step, (1, *clip_case.latent_shape())
    packed = family.pack(torch.empty(shape)).shape  # without what some pipelines put behind it

    @wraps(step)
    def spy(prediction, timestep, sample, *args, **kwargs):
        of_clip = [value[tuple(map(slice, packed))].clone() for value in (prediction, sample)]
        calls.append((timestep, *(family.unpack(value, shape) for value in of_clip)))
        return step(prediction, timestep, sample, *args, **kwargs)

    from_image.scheduler.step = spy
    clip_case.make_picture(from_image, prompt=[PROMPTS[0]], image=clip_case.input_image)
    seen = {"first_frame": clip_case.first_frame[0]}
    if family.fact(FirstFrame, "features"):
        seen["image_features"] = clip_case.image_features[0]
    text = collate_text(family.text, clip_case.records()[:1])
    assert len(calls) == 3
    for timestep, prediction, latents in calls:
        ours = clip_case.predict(latents, timestep.reshape(1), text, **{name: [[one]] for name, one in seen.items()})
        assert_same(ours, prediction)
    without = clip_case.predict(latents, timestep.reshape(1), text)
    assert largest_difference(without, prediction) > 1e-4
    both, times = torch.cat([latents, latents]), timestep.reshape(1).expand(2)
    text = collate_text(family.text, clip_case.records()[:1] * 2)
    mixed = clip_case.predict(both, times, text, **{name: [[], [one]] for name, one in seen.items()})
    assert largest_difference(mixed, torch.cat([without, ours])) <= 1e-5


def test_clips_from_their_first_frame_are_predicted_as_the_pipeline_does_it(clip_case, monkeypatch):
    family, pipe = clip_case.family, clip_case.fresh_pipe()
    if not family.has(FirstFrame) or family.fact(FirstFrame, "needed") or family.fact(FirstFrame, "beside"):
        pytest.skip("never takes a first frame in place of text alone")
    from_image = pipeline_from_image(family, pipe, monkeypatch)
    picture, seen, predictions, timesteps = clip_case.input_image, [], [], []
    only_pictures(family, pipe)
    step, denoise = pipe.scheduler.step, pipe.transformer.forward

    @wraps(step)
    def spy_step(prediction, timestep, *args, **kwargs):
        own = prediction if prediction.ndim == 5 else family.unpack(prediction, (1, *clip_case.latent_shape()))
        predictions.append(of_tokens(own, kwargs))
        timesteps.append(timestep)
        return step(prediction, timestep, *args, **kwargs)

    @wraps(denoise)
    def spy_forward(*args, **kwargs):
        hidden_states = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        seen.append(family.unpack(hidden_states, (1, *clip_case.latent_shape())).clone())
        return denoise(*args, **kwargs)

    from_image.scheduler.step, from_image.transformer.forward = spy_step, spy_forward
    clip_case.make_picture(from_image, prompt=[PROMPTS[0]], image=picture)
    del from_image.transformer.forward
    with torch.no_grad():
        first = encode_pixels(family, pipe.vae, torch.from_numpy(to_array(picture))[None])
    text = collate_text(family.text, clip_case.records()[:1])
    assert len(seen) == 3
    for latents, prediction, timestep in zip(seen, predictions, timesteps, strict=True):
        assert largest_difference(latents[:, :, :1], first) <= 1e-5
        ours = clip_case.predict(latents, timestep.reshape(1), text, first_given=torch.tensor([True]))
        # without the given one, which has no loss: some pipelines leave it out, or put in what leads to it
        rest = slice(1 - latents.shape[2], None)
        assert prediction[:, :, rest].shape[2] >= 2
        assert_same(ours[:, :, rest], prediction[:, :, rest])
        without = clip_case.predict(latents, timestep.reshape(1), text)
        assert largest_difference(without[:, :, rest], prediction[:, :, rest]) > 1e-4


def test_clips_beside_a_source_are_predicted_as_the_pipeline_does_it(clip_case):
    spec, family = clip_case.family.condition(SourceClip), clip_case.family
    if spec is None or spec.needed:
        pytest.skip("never sees a source clip, or always")
    pipe, source = clip_case.fresh_pipe(), clip_case.source_latents
    kind, parts = import_pipeline(spec.pipeline), {**pipe.config, **pipe.components}
    from_clip = kind(**{name: parts[name] for name in inspect.signature(kind.__init__).parameters if name in parts})
    calls, denoise = [], pipe.transformer.forward

    @wraps(denoise)
    def spy(*args, **kwargs):
        seen = {name: value.clone() for name, value in kwargs.items() if torch.is_tensor(value)}
        calls.append((seen, denoise(*args, **kwargs)))
        return calls[-1][1]

    pipe.transformer.forward = spy
    clip_case.make_picture(from_clip, prompt=[PROMPTS[0]], **spec.arguments(clip_case.source))
    del pipe.transformer.forward
    text = collate_text(family.text, clip_case.records()[:1])
    assert len(calls) == 3
    for seen, (prediction, of_sound) in calls:
        own, beside = (family.unpack(half, source.shape) for half in seen["hidden_states"].chunk(2, 1))
        assert largest_difference(beside, source) <= 1e-5
        sound = seen["audio_hidden_states"][:, None]
        given = {**clip_case.conditions(own), "sound": sound, "sound_noise": sound}
        with torch.no_grad():
            ours = predict_all(family, pipe, own, seen["sigma"], text, {**given, "source_clip": source})
            alone = predict_all(family, pipe, own, seen["sigma"], text, given)
        assert_same(ours[0], family.unpack(prediction.chunk(2, 1)[0], own.shape))
        assert_same(ours[1], of_sound[:, None])
        assert largest_difference(alone[0], ours[0]) > 1e-4


@once_for_each(alike_families.vae)
def test_encoding_undoes_the_scale_and_shift_of_decoding(case):
    in_parts = case.family.has(Layers) or case.family.has(SectionHistory)  # each of which is coded by itself
    frames = 1 if in_parts else case.frames
    pixels = torch.rand(2, 3, *([frames] if frames > 1 else []), case.height, case.width) * 2 - 1
    vae = case.pipe.vae
    with torch.no_grad():
        latents = encode_pixels(case.family, vae, pixels)
        through_raw = case.family.codec.decode(vae, case.family.codec.encode(vae, pixels).mode())
        decoded = decode_latents(case.family, vae, latents)
    assert latents.shape[1:] == latent_shape(case.family, vae, case.width, case.height, frames)
    assert decoded.shape == pixels.shape
    assert largest_difference(decoded, through_raw) <= 5e-5


def test_integrating_the_exact_target_gives_the_clean_latents_back(case):
    config = case.pipe.scheduler.config
    if case.family.objective == "ddpm":
        options = {"clip_sample": False, "timestep_spacing": "leading", "set_alpha_to_one": True}
        kind = diffusers.CogVideoXDDIMScheduler if "snr_shift_scale" in config else diffusers.DDIMScheduler
        scheduler = kind.from_config(config, **options)
    else:
        options = {"use_dynamic_shifting": False, "invert_sigmas": False}
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler.from_config(config, **options)
    scheduler.set_timesteps(7)
    generator = torch.Generator().manual_seed(2)
    shape = (2, *case.latent_shape())
    clean, noise = (torch.randn(shape, generator=generator) for _ in range(2))
    latents = None
    for timestep in scheduler.timesteps:
        # the middle of a whole timestep's share of [0, 1)
        middle = 0.5 if case.family.objective == "ddpm" else 0.0
        u = (float(timestep) + middle) / scheduler.config.num_train_timesteps
        noised = case.objective().noise(clean, noise, torch.full((2,), u))
        assert noised.timestep.tolist() == pytest.approx([float(timestep)] * 2, abs=1e-3)
        latents = noised.latents if latents is None else latents
        latents = scheduler.step(noised.target, timestep, latents, return_dict=False)[0]
    assert largest_difference(latents, clean) <= 1e-4


@once_for_each(alike_families.denoiser)
def test_a_batch_of_two_equals_two_singles(case):
    noised, timestep, _ = noised_pair(case)
    text = case.text()
    both = case.predict(noised, timestep, text)
    singles = [
        case.predict(noised[row : row + 1], timestep[row : row + 1], collate_text(case.family.text, [record]))
        for row, record in enumerate(case.records())
    ]
    with torch.no_grad():
        text_of_both = encode_text(case.family, case.pipe, PROMPTS, case.seen_with(PROMPTS))
    assert largest_difference(both, torch.cat(singles)) <= 1e-5
    for name, value in text.items():
        assert largest_difference(text_of_both[name], value) <= 1e-5
    assert largest_difference(both[:1], both[1:]) > 1e-2


@once_for_each(alike_families.blocks)
def test_training_mode_and_gradient_checkpointing_change_no_prediction(case, monkeypatch):
    monkeypatch.setattr(rotary, "is_training_pass", lambda: False)  # a run in this process may have replaced functions
    pipe = case.fresh_pipe()
    for name in case.family.denoisers:
        prepare_for_training(getattr(pipe, name), gradient_checkpointing=True)
    noised, timestep, _ = noised_pair(case)
    # with gradients, or nothing would be checkpointed
    trained = predict(case.family, pipe, noised, timestep, case.text(), case.conditions(noised))
    assert largest_difference(trained, case.plain_prediction) == 0.0


@once_for_each(alike_families.blocks)
def test_norms_and_rotary_embeddings_of_a_step_compute_what_diffusers_does(case, monkeypatch):
    monkeypatch.setattr(rotary, "is_training_pass", lambda: False)
    pipe = case.fresh_pipe()
    denoisers = [getattr(pipe, name).requires_grad_(False).train() for name in case.family.denoisers]
    noised, timestep, _ = noised_pair(case)

    def results():
        latents = noised.clone().requires_grad_()
        prediction = predict(case.family, pipe, latents, timestep, case.text(), case.conditions(noised))
        prediction.sin().sum().backward()  # unlike gradients
        return prediction.detach(), latents.grad

    of_diffusers = results()
    monkeypatch.setattr(rotary, "is_training_pass", is_training_pass)
    for denoiser in denoisers:
        fuse_rotary(denoiser)
        fuse_norms(denoiser)
    for found, expected in zip(results(), of_diffusers, strict=True):
        assert largest_difference(found, expected) <= 3 * ROUNDING * expected.abs().max()


@pytest.mark.parametrize("case", once_for_each_denoiser(), indirect=True, scope="module")
def test_swapped_blocks_and_offloaded_activations_give_the_gradients_of_those_on_the_device(case, monkeypatch):
    monkeypatch.setattr(ActivationOffload, "LEAST_BYTES", 1)
    transfers, copies = DirectTransfers(), []
    monkeypatch.setattr(transfers, "start", lambda target, source: copies.append(target.copy_(source)))
    offload = ActivationOffload.ActivationOffload(torch.device("cpu"), transfers)

    settings = {"gradient_checkpointing": True, "channels_last": False, "blocks_to_swap": 1000}
    base, config = prepared(case.folder, "lora", case.family.name, model=settings, lora={"targets": "linear"})
    shake(base, config)
    parameters = [param for name in case.family.denoisers for param in base.module(name).parameters()]
    for param in parameters:
        param.data = param.data.clone()  # aligned as in a slot: results depend on it in the last bit
    noised, timestep, _ = noised_pair(case)

    def gradients():
        prediction = predict(case.family, base.pipe, noised, timestep, case.text(), case.conditions(noised))
        prediction.square().sum().backward()
        return [param.grad.clone() for param in parameters if param.grad is not None]

    plain = gradients()
    for param in parameters:
        param.grad = None
    for name in case.family.denoisers:
        base.swap_blocks(name)
        base.denoiser(name).enable_gradient_checkpointing(offload.checkpoint)
    swapped, twice = gradients(), gradients()  # the second adds to the first
    assert all(swap.on_device for swap in base.swaps.values())
    assert copies
    for one, two, expected in zip(swapped, twice, plain, strict=True):
        assert torch.equal(one, expected)
        assert torch.equal(two, 2 * expected)


def rounds_time(case, base, noised, timestep):
    """Whether a denoiser in bfloat16 rounds its timestep to that, or the pipeline does before it calls the denoiser."""
    name, text = case.family.denoisers[0], case.text()
    denoiser = getattr(base.pipe, name)
    case.conditions(noised)  # what other tests share is not made under autocast
    with autocast(base.device, "bf16"), torch.no_grad():
        given = arguments_of(denoiser, lambda: case.predict(noised, timestep, text, base.pipe))
        times = {key: value for key, value in given.items() if key.startswith("timestep") and value.is_floating_point()}
        if any(value.dtype == torch.bfloat16 for value in times.values()):
            pipe = case.copied_pipe().to(torch.bfloat16)
            theirs = arguments_of(getattr(pipe, name), lambda: case.make_picture(pipe, prompt=[PROMPTS[0]]))
            return all(theirs[key].dtype == torch.bfloat16 for key in times)
        rounded = {key: value.bfloat16().float() for key, value in times.items()}
        outputs = [tree_leaves(denoiser(**{**given, **own})) for own in (times, rounded)]
    return bool(times) and all(torch.equal(one, other) for one, other in zip(*outputs, strict=True))


def arguments_of(denoiser, call):
    """By name, those of the first call of a denoiser, which is not made."""

    class Called(Exception):
        pass

    def stop(module, args, kwargs):
        raise Called({**dict(zip(inspect.signature(module.forward).parameters, args, strict=False)), **kwargs})

    hook = denoiser.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with pytest.raises(Called) as called:
            call()
    finally:
        hook.remove()
    return called.value.args[0]


@once_for_each(alike_families.denoiser)
def test_in_bfloat16_the_prediction_is_that_of_float32_but_for_rounding(case):
    model = ModelConfig(base=case.folder, weight_dtype="bfloat16", mixed_precision="bf16")
    base = BaseModel(case.family, model, torch.device("cpu"))
    base.require(*case.family.denoisers)
    # in bfloat16, the first would be off by one and a half timesteps, the second by two
    noised, timestep, _ = noised_pair(case, (0.3027, 0.9019))
    if rounds_time(case, base, noised, timestep):
        noised, timestep, _ = noised_pair(case, (0.25, 0.5))
    exact = case.predict(noised, timestep, case.text())
    with autocast(base.device, model.mixed_precision):
        rounded = case.predict(noised, timestep, case.text(), base.pipe)
    errors = (rounded.float() - exact).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)
    assert 0 < errors.min() <= errors.max() <= 0.015


@once_for_each(alike_families.denoiser)
def test_model_attention_chooses_what_computes_every_attention_with_a_softmax(case, monkeypatch):
    """Whichever of diffusers' processors a denoiser has."""
    pipe = case.copied_pipe()
    noised, timestep, _ = noised_pair(case)
    text, given = case.text(), case.conditions(noised)
    denoisers = torch.nn.ModuleList([getattr(pipe, name) for name in case.family.denoisers])
    with count_attentions(denoisers, monkeypatch) as counted:
        prediction = predict(case.family, pipe, noised, timestep, text, given)
    assert_same(prediction, case.plain_prediction)
    assert counted.masked
    assert counted.passed_by == []
    assert set(counted.masked) == {kind.masked for kind in load_families()[case.family.name].attention.kinds}


@once_for_each(alike_families.denoiser)
def test_the_prediction_heeds_prompt_and_timestep(case):
    noised, timestep, _ = noised_pair(case)
    text = case.text()
    plain = case.predict(noised, timestep, text)
    other_text = case.predict(noised, timestep, rows_of(text, [1, 0]))
    other_time = case.predict(noised, timestep.flip(0), text)
    assert largest_difference(plain, other_text) > 1e-4
    assert largest_difference(plain, other_time) > 1e-4


@once_for_each(alike_families.denoiser)
def test_the_prediction_heeds_sizes_where_the_family_takes_them(case):
    noised, timestep, _ = noised_pair(case)
    text = case.text()
    predictions = []
    for changed in range(6) if case.family.has(Sizes) else (0,):
        sizes = case.sizes(noised)
        sizes[:, changed] += 100
        predictions.append(case.predict(noised, timestep, text, sizes=sizes))
    predictions.append(case.predict(noised, timestep, text))
    differences = [
        largest_difference(one, other) for n, one in enumerate(predictions) for other in predictions[n + 1 :]
    ]
    assert min(differences) > 1e-4 if case.family.has(Sizes) else max(differences) == 0.0


@once_for_each(alike_families.weights)
def test_only_components_that_the_family_names_have_weights_that_no_step_reaches(case):
    base, config = training_base(case, "full")
    loss = METHODS["full"].loss(base, config)
    noised, timestep, _ = noised_pair(case)
    text = encode_text(case.family, base.pipe, PROMPTS, case.seen_with(PROMPTS))
    predict(case.family, base.pipe, noised, timestep, text, case.conditions(noised)).square().mean().backward()
    idle = {
        name
        for name in trained_in(METHODS["full"], base, config)
        if any(param.requires_grad and param.grad is None for param in base.module(name).parameters())
    }
    assert idle == set(case.family.partly_unused)
    assert loss.unused_parameters == bool(idle or case.family.experts)


@once_for_each(alike_families.text)
def test_a_text_is_read_from_the_cache_as_it_was_encoded(case, tmp_path):
    writer = TensorCache(tmp_path, "text", 0)
    for row, record in enumerate(case.records()):
        writer.put(f"key{row}", record)
    reader = TensorCache(tmp_path, "text", 1)  # another rank: the files, not what the writer keeps in memory
    for row, record in enumerate(case.records()):
        cached = reader.get(f"key{row}")
        assert cached.keys() == record.keys()
        for name, value in record.items():
            assert cached[name].dtype == value.dtype
            assert torch.equal(cached[name], value)


@dataclass(frozen=True)
class Alone:
    """Two pictures of the product's own sampling, made one after the other: `pixels` of `requests`.

    given: (positional arguments, those by name) of each call of a denoiser for the first.
    """

    requests: list[ImageRequest]
    pixels: list[np.ndarray] = field(repr=False)
    given: list[tuple] = field(repr=False)


@pytest.fixture(scope="module")
def alone(case, tmp_path_factory) -> Alone:
    sample = case.sample(tmp_path_factory.mktemp("sample"), count=2)
    assert sample.guidance > 1
    pipe, requests, given = case.same_pipe(), image_requests(sample), []
    hooks = [
        getattr(pipe, name).register_forward_pre_hook(
            lambda module, args, kwargs: given.append((args, without_sound(kwargs))), with_kwargs=True
        )
        for name in case.family.denoisers
    ]
    try:
        ((_, first),) = generate_images(pipe, requests[:1], 1)
    finally:
        for hook in hooks:  # a copy has those of what is copied
            hook.remove()
    ((_, second),) = generate_images(pipe, requests[1:], 1)
    return Alone(requests, [as_pixels(first), as_pixels(second)], given)


def test_the_products_own_sampling_makes_pictures_with_guidance_and_otherwise_default_settings(case, alone):
    together = [as_pixels(image) for _, image in generate_images(case.same_pipe(), alone.requests, 2)]
    for one, other in zip(together, alone.pixels, strict=True):
        assert one.shape[-3:-1] == (case.height, case.width)
        assert np.abs(one - other).max() <= 2  # rounding, of 255
    assert np.abs(together[0] - together[1]).max() > 2


def as_pixels(made):
    """Of layers, all channels of all of them."""
    parts = made.images if isinstance(made, SampleLayers) else [made]
    return np.concatenate([np.asarray(part, int) for part in parts], axis=-1)


@once_for_each(alike_families.text)
def test_samples_are_the_same_with_prompts_encoded_before_and_no_text_encoder_loaded(case, tmp_path):
    sample = case.sample(tmp_path, negative_prompt="the sky")
    requests = image_requests(sample)
    base = BaseModel(case.family, ModelConfig(base=case.folder, channels_last=False), torch.device("cpu"))
    prompts = SamplePrompts(base)
    prompts.encode([requests])
    with prompts.pipeline() as pipe:
        assert not any(getattr(pipe, name) for name in case.family.text.encoders)
        ((_, image),) = generate_images(pipe, requests, 1)
    ((_, expected),) = generate_images(case.same_pipe(), requests, 1)
    assert np.abs(as_pixels(image) - as_pixels(expected)).max() <= 2  # rounding, of 255


def test_a_dropped_caption_is_what_the_pipeline_takes_where_no_negative_prompt_is_given(case, alone):
    name = case.family.text.outputs[0]
    with torch.no_grad():
        spoken, dropped = (case.encode_one(text)[name] for text in (PROMPTS[0], ""))
    if is_unconditional_zero(case.family, case.pipe):
        dropped = torch.zeros_like(dropped)
    spoken, dropped = unpadded(spoken), unpadded(dropped)
    texts = [text for text in map(unpadded, matrices_in(alone.given)) if text.shape in (spoken.shape, dropped.shape)]
    assert any(is_same(text, spoken) for text in texts)
    assert all(is_same(text, spoken) or is_same(text, dropped) for text in texts)


def without_sound(arguments):
    return {name: value for name, value in arguments.items() if not name.startswith("audio_")}


def unpadded(text):
    """Without the zeros at its ends, with which pipelines pad a text to the length of another."""
    rows = text.any(dim=-1).nonzero().flatten().tolist()
    return text[rows[0] : rows[-1] + 1] if rows else text[:1]


def matrices_in(value):
    """Every matrix among the arguments of denoisers: of tensors with more axes each row, of lists each item."""
    if isinstance(value, torch.Tensor):
        yield from value if value.dim() > 2 else [value] if value.dim() == 2 else ()
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from matrices_in(item)


def is_same(a, b):
    return a.shape == b.shape and torch.allclose(a, b, atol=1e-5)


@once_for_each(alike_families.text)
def test_an_empty_prompt_changes_no_other_that_is_encoded_with_it(case):
    prompts = [PROMPTS[0], ""]
    with torch.no_grad():
        together = encode_records(case.family, case.pipe, prompts, case.seen_with(prompts))
        alone = [case.encode_one(prompt) for prompt in prompts]
    for one, other in zip(together, alone, strict=True):
        for name, value in other.items():
            assert largest_difference(one[name], value) <= 1e-5, name


@once_for_each(alike_families.text)
def test_text_is_encoded_with_only_the_text_encoders_in_memory(case):
    base = BaseModel(case.family, ModelConfig(base=case.folder), torch.device("cpu"))
    with base.using(*case.family.text_components) as pipe:
        assert {getattr(pipe, name) for name in (*case.family.denoisers, "vae")} == {None}
        text = case.text(pipe)
    for name, value in case.text().items():
        assert largest_difference(text[name], value) == 0.0


@once_for_each(alike_families.text)
def test_text_is_never_encoded_in_float16_where_activations_may_overflow(case):
    with torch.autocast("cpu", torch.float16):
        text = case.text(case.pipe)
    for name, value in case.text().items():
        assert largest_difference(text[name], value) == 0.0, name


@once_for_each(alike_families.adapters)
def test_a_saved_lora_gives_a_fresh_pipeline_the_same_prediction(case, tmp_path):
    if "lora" not in case.family.methods:
        pytest.skip("the family has no LoRA")
    # alpha unlike the rank: a reader that takes them for equal would give another strength
    base, config = training_base(case, "lora", lora={"rank": 4, "alpha": 10.0})
    adapted = shake(base, config)
    assert adapted == set(case.family.lora_targets)
    files = METHODS["lora"].save(base, config, tmp_path, "x", {})
    assert len(files) == len(case.family.denoisers)
    pipe = case.fresh_pipe()
    for file in files:
        load_plainly(pipe, file)
    trained = predict_pair(case, base.pipe)
    assert largest_difference(predict_pair(case, pipe), trained) == 0.0
    difference = (case.plain_prediction - trained).abs().flatten(1).amax(1)
    assert difference.min() > 1e-3  # of each row, so of each expert


@once_for_each(alike_families.saved)
def test_saved_full_weights_give_a_fresh_pipeline_the_same_prediction(case, tmp_path):
    base, config = training_base(case, "full")
    trained_parts = shake(base, config)
    assert trained_parts == {*case.family.denoisers, *case.family.trainable_text_encoders} & {*base.component_names}
    (folder,) = METHODS["full"].save(base, config, tmp_path, "x", {})
    num_bytes = sum(tensor.nbytes for file in folder.rglob("*.safetensors") for tensor in load_tensors(file).values())
    assert METHODS["full"].saved_bytes(base, config) == pytest.approx(num_bytes, rel=0.01)
    trained = predict_pair(case, base.pipe)
    assert largest_difference(predict_pair(case, load_pipe(case.family, folder)), trained) == 0.0
    difference = (case.plain_prediction - trained).abs().flatten(1).amax(1)
    assert difference.min() > 1e-3
