"""A family's published model on the simulated GPU, and what goes into it.

In place of the pipelines' calls, text encoders are run on the tokens of a caption. What needs values or files has a
stand-in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from modules.config.families import model_of
from modules.config.methods import facts_of, fixed_prompts
from modules.config.TrainConfig import TrainConfig
from modules.families.conditions import FirstFrame, Inpainting, References, SectionHistory, Sizes, Sound, SourceClip

if TYPE_CHECKING:
    import torch
    from diffusers.models.modeling_utils import ModelMixin
    from torch import Tensor

    from modules.data.Batch import Batch
    from modules.families.Family import Family
    from modules.families.TextEncoding import Conditioning
    from modules.weights.BaseModel import BaseModel


def make_vae(base: BaseModel) -> ModelMixin:
    """The VAE, on the meta device if it is not loaded."""
    return base.meta_module(base.family.vae)


class _Words:
    """A tokenizer of one token."""

    unk_token, eos_token_id = None, 2

    def __call__(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[1])

    def tokenize(self, word: str) -> list[str]:
        return list(word)

    def get_vocab(self) -> dict[str, int]:
        return {}

    def add_tokens(self, names: list[str]) -> None:
        """It needs none."""

    def convert_tokens_to_ids(self, name: str) -> int:
        return 1


class PublishedComponents:
    """Those of the published model, made when they are loaded (as modules/weights/Components.py).

    parts: component -> its architecture.
    """

    path = Path()
    own_parts: Mapping[str, Path] = MappingProxyType({})
    stored_quantized: Sequence[str] = ()

    def __init__(self, family: Family, dtype: torch.dtype, channels_last: bool, parts: Mapping[str, Any]):
        self._family, self._dtype, self._channels_last, self._parts = family, dtype, channels_last, parts
        self._loaded: dict[str, Any] = dict.fromkeys(parts)
        self.put({})

    @property
    def names(self) -> list[str]:
        return list(self._parts)

    def missing(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self._parts and self._loaded[name] is None]

    def load(self, names: Iterable[str], lazily: bool = False) -> None:
        from modules.weights.frozen import frozen

        for name in names:
            component = self.new(name)
            if name in self._family.denoisers:
                self._family.adapt(component)
            self._loaded[name] = frozen(component, self._channels_last)
        self.put({})

    def new(self, name: str) -> Any:
        """A component without values. A run on a real GPU gives it zeros (scripts/gpu/preset_memory.py)."""
        from scripts.published_models import build

        return build(self._parts[name], self._dtype)

    def unload(self, names: Iterable[str]) -> list[str]:
        self.put(dict.fromkeys(names))
        return []

    def put(self, modules: Mapping[str, Any]) -> None:
        from diffusers import DDPMScheduler

        self._loaded.update(modules)
        tokenizers = dict.fromkeys(self._family.text.tokenizers, _Words())
        self.pipe: Any = SimpleNamespace(
            **self._loaded, **tokenizers, scheduler=DDPMScheduler(), config={"boundary_ratio": 0.9}
        )

    def on_meta(self, name: str) -> Any:
        import torch

        from scripts.published_models import build

        return build(self._parts[name], torch.float32)

    def files(self, names: Iterable[str]) -> list[Path]:
        return []


def make_base(config: TrainConfig) -> BaseModel:
    """The published model of the family, none of it on the GPU."""
    import torch

    from modules.families.registry import sized_family
    from modules.weights.BaseModel import BaseModel
    from scripts.published_models import published_model
    from scripts.simulated_gpu import GPU

    family = sized_family(model_of(config).name)
    published = published_model(family)
    parts = dict.fromkeys((*family.denoisers, *family.guidance_denoisers), published.denoiser)
    parts[family.vae] = published.vae
    parts |= {name: part for name, (part, _) in zip(family.text.encoders, published.text_encoders, strict=True)}
    parts |= dict(zip(family.text.connectors, published.connectors, strict=True))

    dtype = getattr(torch, config.model.weight_dtype)
    components = PublishedComponents(family, dtype, config.model.channels_last, parts)
    model = replace(config.model, denoiser="", denoiser_2="")  # files of parts would be downloaded
    return BaseModel(family, model, GPU, components=components)


@contextlib.contextmanager
def with_stand_ins() -> Iterator[None]:
    """Inside, what needs values or files has a stand-in."""
    import torch
    from torch import nn

    import scripts.simulated_gpu  # noqa: F401 - before a backward pass
    from modules.families import expert_routing
    from modules.methods import full, lora, vae
    from modules.methods.DenoisingLoss import DenoisingLoss

    def route(experts: nn.ModuleList, tokens: Tensor, expert_of: Tensor, weights: Tensor) -> Tensor:
        """The experts get equal numbers of tokens; which ones depends on values."""
        count = len(expert_of) // len(tokens)
        share = len(tokens) * count // len(experts)
        result = tokens.new_zeros(tokens.shape)
        for expert in experts:
            rows = torch.arange(share, device=tokens.device)
            result = result.index_add(0, rows, (expert(tokens[rows]) * weights[rows]).to(result.dtype))
        return result

    def text(self: DenoisingLoss, batch: Batch) -> Conditioning:
        if batch.text is not None:
            return batch.text
        whole = sum(output.float().mean() for output in encode_text(self.base, batch.count))
        return {name: value + whole for name, value in make_text(self.base.family, batch.count).items()}

    def unchanged(tensor: Tensor, *_: Any, **__: Any) -> Tensor:
        """Adapters are made on the CPU, where values would take long."""
        return tensor

    with (
        mock.patch.multiple(
            nn.init, zeros_=unchanged, uniform_=unchanged, normal_=unchanged, kaiming_uniform_=unchanged
        ),
        mock.patch.object(expert_routing, "route_tokens", route),
        mock.patch.object(DenoisingLoss, "_text", text),
        mock.patch.object(full.Full, "check_output"),
        mock.patch.object(lora.Lora, "check_output"),
        mock.patch.object(vae.Vae, "check_output"),
    ):
        yield


# --- what goes into it ------------------------------------------------------------------------------------------------


def trained_encoders(config: TrainConfig, base: BaseModel) -> list[str]:
    from modules.methods.parts import trained_in
    from modules.methods.registry import METHODS

    return [name for name in trained_in(METHODS[config.method], base, config) if name in base.family.text.encoders]


def encode_text(base: BaseModel, count: int) -> list[Tensor]:
    """The outputs of all text encoders for the tokens of `count` captions."""
    import torch

    from scripts.published_models import published_model, read_text
    from scripts.simulated_gpu import GPU

    outputs = []
    published = published_model(base.family)
    for name, (_, tokens) in zip(base.family.text.encoders, published.text_encoders, strict=True):
        ids = torch.empty(count, tokens, dtype=torch.long, device="meta").to(GPU)
        outputs.append(read_text(getattr(base.pipe, name), ids)[0])
    return outputs


def largest_side(config: TrainConfig, family: Family) -> int:
    """The side of a square with the area of the run's largest images."""
    from modules.config.image_sizes import largest_area

    return round(largest_area(config) ** 0.5 / family.align) * family.align


def reference_size(family: Family, width: int, height: int) -> tuple[int, int]:
    """Of a reference image beside an image of that size."""
    size_for = family.fact(References, "size")
    return size_for(width / height) if size_for else (width, height)


def has_sources(config: TrainConfig) -> bool:
    """Whether clips have a source clip beside them, also where the model can do without."""
    return any(concept.source_folder for concept in config.concepts)


def make_inputs(
    base: BaseModel, count: int, width: int, height: int, frames: int, with_sources: bool = False
) -> dict[str, Any]:
    """The arguments of `predict` for `count` samples. with_sources: as `has_sources`."""
    import torch

    from modules.families.inpainting import num_mask_channels, num_source_channels
    from scripts.published_models import published_model
    from scripts.simulated_gpu import GPU

    family = base.family
    shape = family.codec.shape(make_vae(base), width, height, frames)
    latents = torch.empty(count, *shape, device=GPU)
    if (history := family.condition(SectionHistory)) is not None:
        latents = latents[:, :, : history.latents]
    timestep = torch.full((count,), 500.0)
    given: dict[str, Any] = {}
    if history is not None:
        given["history"] = torch.empty(count, shape[0], 1 + history.before, *shape[2:], device=GPU)
    if family.has(Sizes):
        given["sizes"] = torch.zeros(count, 6).to(GPU)
    if family.fact(FirstFrame, "needed"):
        given["first_frame"] = latents[:, :, :1] if family.fact(FirstFrame, "encode") else latents
    if family.fact(SourceClip, "needed") or with_sources:
        cell = height // latents.shape[-2]
        channels = num_source_channels(family.fact(SourceClip, "masked"), latents.shape[1], cell)
        given["source_clip"] = torch.empty(count, channels, *latents.shape[2:], device=GPU)
    if family.fact(FirstFrame, "beside") and frames > 1:
        given["first_frame"] = [[row] for row in latents[:, :, :1]]
    if (features := published_model(family).image_features) and (frames > 1 or family.fact(FirstFrame, "needed")):
        seen = torch.empty(count, *features, device=GPU)
        given["image_features"] = [[row] for row in seen] if family.fact(FirstFrame, "beside") else seen
    if family.fact(References, "most") == 1 or family.fact(References, "needed"):  # made for it
        shape = family.codec.shape(make_vae(base), *reference_size(family, width, height), 1)
        given["references"] = [[row] for row in torch.empty(count, *shape, device=GPU)]
    if family.has(Inpainting):
        channels = (
            num_mask_channels(family.fact(Inpainting, "resolution"), height // latents.shape[-2]) + latents.shape[1]
        )
        given["inpainting"] = torch.empty(count, channels, *latents.shape[2:], device=GPU)
    if (sound := family.condition(Sound)) is not None and (frames > 1 or sound.needed):
        channels = base.meta_module(family.denoisers[0]).config[sound.channels]
        heard = torch.empty(count, sound.rows, sound.length(frames), channels, device=GPU)
        given |= {"sound": heard, "sound_noise": heard, "sound_heard": torch.ones(count, dtype=torch.bool).to(GPU)}
    text = make_text(family, count)
    return {"noised": latents, "timestep": timestep.to(GPU), "text": text, "given": given, "host_timestep": timestep}


def make_batch(config: TrainConfig, base: BaseModel) -> Batch:
    """The largest micro-batch of the run, on the GPU."""
    import torch

    from modules.data.Batch import Batch
    from modules.machine.memory.SampleMemory import images_at_once
    from modules.methods.registry import METHODS
    from scripts.simulated_gpu import GPU

    count, family = config.batch_size, base.family
    if config.batch_size_mode == "global":
        count = -(-count // config.gradient_accumulation_steps)
    side = largest_side(config, family)
    weight, u = torch.ones(count), torch.full((count,), 0.3)
    fixed: dict[str, Any] = {
        "weight": weight.to(GPU),
        "u": u.to(GPU),
        "cpu_u": u,
        "count": count,
        "prompts": [""] * count,
    }
    if not METHODS[config.method].facts.uses_denoiser:
        shape = family.codec.shape(make_vae(base), side, side, 1)
        pixels = torch.empty(count, 3, side, side, device=GPU)
        return Batch(**fixed, noise=torch.empty(count, *shape, device=GPU), pixels=pixels)
    frames = config.data.frames * images_at_once(config)
    inputs = make_inputs(base, count, side, side, frames, has_sources(config))
    return Batch(
        **fixed,
        noise=torch.empty_like(inputs["noised"]),
        latents=inputs["noised"],
        given={**inputs["given"], **_counterparts(config, inputs["noised"])},
        **_texts(config, base, inputs["text"]),
    )


def _counterparts(config: TrainConfig, latents: Tensor) -> dict[str, Tensor]:
    """What a method that learns from pairs has in `given`."""
    import torch

    from modules.data.Batch import PAIRED

    return {PAIRED: torch.empty_like(latents)} if facts_of(config).takes_pairs(config) else {}


def _texts(config: TrainConfig, base: BaseModel, text: dict[str, Any]) -> dict[str, Any]:
    """The conditioning of captions and of the prompts that the method predicts for in each step."""
    if trained_encoders(config, base):
        return {"text": None}
    count = len(next(iter(text.values())))
    return {"text": text, "fixed_text": {role: make_text(base.family, count) for role in fixed_prompts(config)}}


def make_text(family: Family, count: int) -> dict[str, Any]:
    """The conditioning of `count` captions; masks have values, because some denoisers read the lengths of texts."""
    import torch

    from scripts.published_models import published_model
    from scripts.simulated_gpu import GPU

    text: dict[str, Tensor] = {}
    for name, shape in published_model(family).text.items():
        is_mask = "_mask" in name
        text[name] = (
            torch.ones(count, *shape, dtype=torch.long).to(GPU) if is_mask else torch.empty(count, *shape, device=GPU)
        )
    return {name: list(value) for name, value in text.items()} if family.text.collate == "list" else text
