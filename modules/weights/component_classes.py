"""Which class each part of a model's folder may be loaded with, so that a folder never brings code of its own.

The index of a folder names a class for each part. Accepted are those of the family, and any concrete scheduler,
tokenizer or processor of diffusers and transformers. Classes such as AutoModel, which let the files of a part choose
the code that reads them, only where the family declares them. `refused_class` judges names alone, without torch, so
that a start can be refused early; `component_class` judges the class, too, and is the only way to one.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modules.config.model_index import names_component
from modules.layers.quiet_imports import imported_when_used

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    from modules.families.Family import Family

NO_PAIR = "model_index.json does not give it a library and a class"
LIBRARIES = ("diffusers", "transformers")
# Not AutoencoderKL or Autoformer, which are models like others.
_CHOOSES_ITSELF = re.compile(r"Auto[A-Z]\w*")
_SCHEDULER = re.compile(r"\w+Scheduler")
_TEXT_HELPER = re.compile(r"\w*(Tokenizer(Fast)?|Processor(Fast|Pil)?|Backend)")
# What follows the architecture in a class name of transformers.
_HEAD = re.compile(r"(Text|Encoder)?(Model(WithProjection)?|For[A-Z]\w*)")
_T5 = ("T5", "MT5", "UMT5")  # differ in their vocabularies and in where they hold the biases of positions
_SIMILAR_VAES = {"AutoencoderKL": ("AsymmetricAutoencoderKL", "AutoencoderTiny")}


def refused_class(
    index: Mapping[str, Any], family: Family | None, unused: Collection[str] = ()
) -> tuple[str, str] | None:
    """(component, reason as a clause) of the first part whose class is not accepted; None if all are.

    index: as from `read_model_index`. family: None if the pipeline is of none, so that any model may be in it.
    unused: components that are not loaded.
    """
    for name, pair in index.items():
        if name in unused:
            continue
        if names_component(pair):
            library, class_name = pair
            reason = _objection(name, library, class_name, family) if library is not None else ""
        else:
            reason = NO_PAIR if family and name in _slots(family) else ""
        if reason:
            return name, reason
    return None


def component_class(
    pipeline_class: type[DiffusionPipeline], name: str, pair: tuple[str, str], family: Family | None
) -> type[Any]:
    """The class of a component. Raises ValueError, with the reason as a clause, if the component can't be of it.

    Models, tokenizers and schedulers have no base class in common. pair: [library, class] of the index.
    """
    library, class_name = pair
    if reason := _objection(name, library, class_name, family):
        raise ValueError(reason)
    found = _find(library, class_name)
    if found is None:
        raise ValueError(f"there is no {library}.{class_name}")
    if not (_CHOOSES_ITSELF.fullmatch(class_name) or _fits(found, pipeline_class, name, family)):
        raise ValueError(f"model_index.json gives it {library}.{class_name}, which {pipeline_class.__name__} has not")
    return found


def component_names(pipeline_class: type[DiffusionPipeline]) -> set[str]:
    """The components that a pipeline takes. Other parts that an index may name are never loaded."""
    return set(pipeline_class._get_signature_keys(pipeline_class)[0])


def _objection(name: str, library: str, class_name: str, family: Family | None) -> str:
    """Why the component can't be of this class, "" if it may be. Looks at names alone."""
    gives = f"model_index.json gives it {library}.{class_name}"
    if library not in LIBRARIES and not _is_of_pipelines(library):
        return f"{gives}, and only classes of diffusers and transformers are loaded"
    expected = [*_expected(name, family)]
    if f"{library}.{class_name}" in expected:
        return ""
    if _CHOOSES_ITSELF.fullmatch(class_name):
        return f"{gives}, which could run code from the folder"
    if family is None:
        return ""
    if name in family.text.tokenizers:
        is_accepted = library != "diffusers" and _TEXT_HELPER.fullmatch(class_name) is not None
        has = "a tokenizer or processor of transformers"
    elif name == "scheduler":
        is_accepted = library == "diffusers" and _SCHEDULER.fullmatch(class_name) is not None
        has = "a scheduler of diffusers"
    else:
        is_accepted = not expected or any(_is_similar(one, library, class_name) for one in expected)
        has = " or ".join(one.rpartition(".")[2] for one in expected)
    return "" if is_accepted else f"{gives}, and {family.label} has {has} there"


def _slots(family: Family) -> tuple[str, ...]:
    """The components that the family knows."""
    parts = (*family.denoisers, *family.guidance_denoisers, family.vae, *family.text_components)
    return (*parts, *family.condition_components, "scheduler")


def _expected(name: str, family: Family | None) -> Iterator[str]:
    """The classes, with their library, that the family declares for a component."""
    if family is None:
        return
    yield from family.further_classes.get(name, ())
    published = family.published
    if published is None:
        return
    if name in (*family.denoisers, *family.guidance_denoisers):
        yield published.denoiser.class_name
    if name == family.vae:
        yield published.vae.class_name
    if name in family.text.encoders:
        yield published.text_encoders[family.text.encoders.index(name)][0].class_name
    if name in family.text.connectors:
        yield published.connectors[family.text.connectors.index(name)].class_name


def _is_similar(expected: str, library: str, class_name: str) -> bool:
    """Whether a class has the architecture of the expected one, if with another head, or is a variant of its VAE."""
    package, own = expected.partition(".")[0], expected.rpartition(".")[2]
    if package == "transformers":
        return library == package and _architecture(class_name) == _architecture(own)
    return library != "transformers" and class_name in (own, *_SIMILAR_VAES.get(own, ()))


def _architecture(class_name: str) -> str:
    """What transformers calls the architecture of a class, such as Qwen3 of Qwen3ForCausalLM."""
    stem = re.sub(f"{_HEAD.pattern}$", "", class_name)
    return _T5[0] if stem in _T5 else stem


def _is_of_pipelines(library: str) -> bool:
    """Whether diffusers has a folder of this name for pipelines with classes of their own, without importing it."""
    spec = find_spec("diffusers")
    folders = spec.submodule_search_locations if spec else None
    if not folders or not library.isidentifier():
        return False
    return Path(folders[0], "pipelines", library, "__init__.py").is_file()


def _find(library: str, class_name: str) -> type[Any] | None:
    package = importlib.import_module(library if library in LIBRARIES else f"diffusers.pipelines.{library}")
    former = class_name.replace("FeatureExtractor", "ImageProcessor")  # as transformers 5 has renamed them
    with imported_when_used():
        found = getattr(package, class_name, None) or getattr(package, former, None)
    return found if isinstance(found, type) else None


def _fits(found: type[Any], pipeline_class: type[DiffusionPipeline], name: str, family: Family | None) -> bool:
    """Whether a class that exists can be the component, by what kind of class it is and by the pipeline's signature."""
    from diffusers.models.modeling_utils import ModelMixin
    from transformers import PreTrainedModel

    declared = [*_expected(name, family)]
    if _is_helper(found):
        return not declared or name in (family.text.tokenizers if family else ())
    if not issubclass(found, ModelMixin | PreTrainedModel) or name == "scheduler":
        return False
    if declared or (family and name in family.text.tokenizers):
        return bool(declared)
    hints = pipeline_class._get_signature_types().get(name, ())
    kinds = [kind for kind in hints if isinstance(kind, type) and issubclass(kind, ModelMixin | PreTrainedModel)]
    return not kinds or issubclass(found, tuple(kinds)) or _architecture(found.__name__) in _architectures(kinds)


def _architectures(kinds: list[type[Any]]) -> set[str]:
    return {_architecture(kind.__name__) for kind in kinds}


def _is_helper(found: type[Any]) -> bool:
    """Whether it is a scheduler, a tokenizer, a processor or a guider: a class without weights."""
    from diffusers.guiders.guider_utils import BaseGuidance
    from diffusers.schedulers.scheduling_utils import SchedulerMixin
    from transformers import FeatureExtractionMixin, ImageProcessingMixin, PreTrainedTokenizerBase, ProcessorMixin

    text = (PreTrainedTokenizerBase, ProcessorMixin)
    return issubclass(found, (SchedulerMixin, BaseGuidance, FeatureExtractionMixin, ImageProcessingMixin, *text))


def no_code(found: type[Any]) -> dict[str, bool]:
    """The argument of a `from_pretrained` of transformers that forbids it to run code of the model."""
    return {"trust_remote_code": False} if found.__module__.startswith("transformers.") else {}
