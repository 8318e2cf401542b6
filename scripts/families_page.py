"""Write docs/families.md and the list of families in README.md, or check that both are up to date.

python scripts/families_page.py --write
python scripts/families_page.py --check
"""

import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.config.attentions import ATTENTIONS, AttentionFacts  # noqa: E402
from modules.config.families import load_families  # noqa: E402
from modules.config.presets import list_presets  # noqa: E402
from modules.families.conditions import FirstFrame, Inpainting, Layers, References, SectionHistory, SourceClip  # noqa: E402
from modules.families.Family import Family  # noqa: E402
from modules.families.LayerNames import LayerNames  # noqa: E402
from modules.families.PublishedModel import Variant  # noqa: E402
from modules.families.registry import FAMILIES, VARIANTS  # noqa: E402
from scripts.generated_file import write_or_check  # noqa: E402

PAGE = ROOT / "docs" / "families.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- families: made by scripts/families_page.py -->\n", "<!-- end of families -->\n"
LAYOUTS = {
    "ldm": "the layout of the first release",
    "sgm": "the layout of the first release, with `conditioner.embedders.0` and `.1`",
    "mmdit": "`joint_blocks`, with `text_encoders.clip_l`, `.clip_g` and, where there is one, `.t5xxl`",
}
FORMATS = ("whole model, single file", "LoRA, `*_kohya.safetensors`", "embedding")
INTRODUCTION = """\
# Model families

<!-- Made by scripts/families_page.py from modules/families: change those, and run scripts/generate.py. -->

The models that Chorus trains. The setting `family` takes the names in the second column, and `method` those in the
column [methods](methods.md). The last three columns name the classes of diffusers and transformers.
"""
IMAGES = """\
## Images

What it means that a model sees [reference images](methods.md#reference-images), [a mask](methods.md#inpainting) or [the
image that it decomposes](methods.md#layered-images) is described with the methods.
"""
VIDEOS = """\
## Videos

They are described in [video](video.md). Those that start from text train on images, too.
"""
VARIANTS_OF = """\
## Other sizes and versions

Further models of these families that have [presets](presets.md) of their own. The setting `family` takes the name in
the second column; the memory estimate goes by the size of the model that `model.base` names.
"""
DISTILLED = """\
## Distilled models

What to train in place of models that sample in few steps, and [why](methods.md#distilled-models):
"""
FILES = """\
## Model files

All families are read from diffusers folders and saved as such; these have further formats. LoRAs of other programs are
read [for every family](formats.md#loras-of-other-programs).
"""


ATTENTION = """\
## Attention

`model.attention` chooses what computes the attentions of a model on NVIDIA GPUs. `auto` is PyTorch, whose own kernels
have FlashAttention, too; `cudnn` is [another of its kernels](multi_gpu.md#troubleshooting). The others are kernels of
[optional packages](install.md#install) and of PyTorch's compiler:

{table}
They work in every family, whichever class of diffusers computes its attentions. What one of them does not take, PyTorch
computes, and the run says so. The second table shows how many of the attentions in a pass of the denoiser each of them
computes, for two images with texts of different lengths: in some models, masks then hide the end of the shorter one.
Linear attentions, which have no softmax, are not affected by the setting. Before the first step, each GPU tries the
kernels with lengths of the run, forward and backward; if they fail or give other gradients than PyTorch on one of them,
no GPU uses them. `flex` is compiled then, which takes a minute or two, and leaves samples and validation to PyTorch.

SageAttention and a FlashAttention 3 that is built from its sources have no backward pass, so they can't train. None of
these kernels has been measured in Chorus on a GPU: `python scripts/gpu_tests.py` does so where their packages are
installed.
"""


def main() -> int:
    families = FAMILIES.values()
    readme = with_families(README.read_text(encoding="utf-8"), families)
    return write_or_check(__doc__.splitlines()[0], {PAGE: families_page(families), README: readme})


def families_page(families: Iterable[Family]) -> str:
    """The whole page."""
    images = [family for family in families if not family.frame_step]
    videos = [family for family in families if family.frame_step]
    guided = "; ".join(family.label for family in families if family.takes_guidance)
    parts = ("methods", "pipeline", "denoiser", "text encoders")
    return "\n".join(
        [
            INTRODUCTION,
            IMAGES,
            _table("family", "name", "task", *parts, rows=map(_image_row, images)),
            VIDEOS,
            _table("family", "name", "starts from", "frames of a clip", "fps", *parts, rows=map(_video_row, videos)),
            VARIANTS_OF,
            _table("model", "family", "`model.base`", "presets", rows=map(_variant_row, VARIANTS.values())),
            DISTILLED,
            _table("distilled model", "train instead", rows=_distilled(families).items()),
            *(
                [f"These take a [guidance scale](methods.md#distilled-models) as an input: {guided}.\n"]
                if guided
                else []
            ),
            _attention(families),
            FILES,
            _table("family", *FORMATS, rows=_grouped(families, _formats)),
            "## Remarks\n",
            *(_bullet(labels, remarks) for labels, remarks in _grouped(families, lambda family: (family.remarks,))),
            "",
        ]
    )


def _attention(families: Iterable[Family]) -> str:
    formats = {"bfloat16": "bf16", "float16": "fp16"}
    rows = [
        (
            f"`{facts.name}`",
            facts.label,
            f"`{facts.package}`, {facts.least_version} or newer" if facts.package else "PyTorch, Triton",
            ", ".join(formats.get(dtype, dtype) for dtype in facts.dtypes),
            _range(facts),
            "yes" if facts.masks else "no",
            ".".join(map(str, facts.least_capability)) + ("" if facts.only_capability else " and newer"),
        )
        for facts in ATTENTIONS.values()
    ]
    titles = ("value", "kernels", "package", "computes in", "width of heads", "masks", "compute capability")
    counted = _grouped(families, _attention_row)
    kernels = (f"`{name}`" for name in ATTENTIONS)
    return "\n".join(
        [
            ATTENTION.format(table=_table(*titles, rows=rows)),
            _table("family", "width of heads", *kernels, "linear ones", rows=counted),
        ]
    )


def _range(facts: AttentionFacts) -> str:
    step = f", multiples of {facts.width_step}" if facts.width_step > 1 else ""
    return f"{facts.narrowest} to {facts.widest}{step}"


def _attention_row(family: Family) -> tuple[str, ...]:
    counted = load_families()[family.name].attention if family.name in load_families() else None
    if counted is None:
        return ()
    rest = [sum(kind.count for kind in counted.not_taken(facts)) for facts in ATTENTIONS.values()]
    taken = [
        "all" if not number else "none" if number == counted.total else f"{counted.total - number} of {counted.total}"
        for number in rest
    ]
    widths = sorted({kind.width for kind in counted.kinds})
    return ", ".join(map(str, widths)), *taken, str(counted.linear or "")


def with_families(readme: str, families: Iterable[Family]) -> str:
    """The text of README.md, with the list of these families between its marks."""
    kinds = _grouped(families, lambda family: (_makes(family),))
    rows = [(makes, labels) for labels, makes in sorted(kinds, key=lambda row: "video" in row[1])]
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n{_table('task', 'model families', rows=rows)}\n{END}{rest.split(END)[1]}"


def _makes(family: Family) -> str:
    """The task, in the words that people search for."""
    if family.frame_step:
        if family.fact(SourceClip, "needed"):
            return "from a control video" if family.fact(SourceClip, "is_control") else "video editing (V2V)"
        if family.fact(FirstFrame, "last") == "needed":
            return "video between a first and a last frame (FLF2V)"
        if family.fact(FirstFrame, "needed"):
            return "image-to-video (I2V)" + (", also to a given last frame" if family.fact(FirstFrame, "last") else "")
        starts = {"image-to-video (I2V)": FirstFrame, "video-to-video (V2V)": SourceClip}
        tasks = _listed("text-to-video", *(task for task, kind in starts.items() if family.has(kind)))
        return tasks + ("" if family.has(SectionHistory) else "; text-to-image")
    if family.has(Layers):
        return "splitting an image into layers"
    if family.has(Inpainting):
        return "inpainting"
    if family.fact(References, "needed"):
        return "from a control image" if family.fact(References, "is_control") else "image editing"
    return "text-to-image" + (" and image editing" if family.has(References) else "")


def _variant_row(variant: Variant) -> tuple[str, ...]:
    presets = (preset.name for preset in list_presets() if preset.name.startswith(f"{variant.name}-"))
    return variant.label, f"`{variant.family}`", f"`{variant.base}`", _coded(presets)


def _starts_from(family: Family) -> str:
    if family.fact(SourceClip, "needed"):
        return "a source clip"
    if family.fact(FirstFrame, "last") == "needed":
        return "their first and last frame"
    first = "their first frame" + (", also with the last" if family.fact(FirstFrame, "last") else "")
    if family.fact(FirstFrame, "needed"):
        return first
    starts = {first: FirstFrame, "a source clip": SourceClip}
    return _listed("text", *(start for start, kind in starts.items() if family.has(kind)), word="or")


def _listed(*texts: str, word: str = "and") -> str:
    """The texts as a sentence names them."""
    return f" {word} ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def _image_row(family: Family) -> tuple[str, ...]:
    return family.label, f"`{family.name}`", _makes(family), *_parts(family)


def _video_row(family: Family) -> tuple[str, ...]:
    rest = f" + {family.frame_rest}" if family.frame_rest else ""
    clip = f"{family.frame_step}n{rest}", f"{family.fps:g}"
    return family.label, f"`{family.name}`", _starts_from(family), *clip, *_parts(family)


def _parts(family: Family) -> tuple[str, ...]:
    import diffusers

    own = {path.stem for path in (ROOT / "modules" / "families" / "pipelines").glob("*.py")}
    own -= set(dir(diffusers))  # some only change a pipeline of diffusers; the others load in Chorus alone
    pipelines = dict.fromkeys(
        (*family.pipelines, *filter(None, (family.fact(kind, "pipeline") for kind in (FirstFrame, SourceClip))))
    )
    model = family.published
    denoiser = _class_names([model.denoiser.class_name]) if model else ""
    encoders = [encoder.class_name for encoder, _ in model.text_encoders] if model else []
    return (
        _coded(family.methods),
        _coded(name for name in pipelines if name not in own and not family.other_model({"_class_name": name})),
        f"{len(family.denoisers)} x {denoiser}" if family.experts else denoiser,
        _class_names(encoders),
    )


def _class_names(paths: Iterable[str]) -> str:
    return _coded(dict.fromkeys(path.rpartition(".")[2] for path in paths))


def _coded(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _distilled(families: Iterable[Family]) -> dict[str, str]:
    found = {name: instead for family in families for name, instead in family.distilled.items()}
    return dict(sorted(found.items(), key=lambda row: row[0].casefold()))


def _formats(family: Family) -> tuple[str, ...]:
    layout = LAYOUTS[family.single_file] if family.single_file else ""
    embedding = _coded(dict.fromkeys(family.embedding_keys.values()))
    return layout, _kohya(family) if "lora" in family.methods else "", embedding


def _kohya(family: Family) -> str:
    """How the layers of its LoRA are named in the second file."""
    if family.kohya_prefixes:
        blocks = "diffusers' names" if family.kohya_blocks == "diffusers" else "the block numbers of single files"
        prefixes = _coded(f"{prefix}_" for prefix in family.kohya_prefixes.values())
        return f"kohya's: {prefixes}, with {blocks}"
    if not family.layer_names:
        return ""
    names = next(iter(family.layer_names.values()))
    said = [f"ComfyUI's: `{names.prefix}` with {_example(names)}"]
    said += ["one layer for query, key and value"] if names.fused else []
    said += ["the alpha multiplied into the second matrix"] if names.folds_alpha else []
    said += ["a file for each expert"] if len(family.layer_names) > 1 else []
    return ", ".join(said)


def _example(names: LayerNames) -> str:
    if not names.names:
        return "diffusers' names"
    first = next(iter(names.names.values())).replace("{}", "0")
    return f"the names of the original files (`{first.replace('.', '_') if names.flat else first}`)"


def _grouped(families: Iterable[Family], say: Callable[[Family], tuple[str, ...]]) -> list[tuple[str, ...]]:
    """(labels, *what is said of these families), for families of which anything is said."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for family in families:
        found[say(family)].append(family.label)
    return [("; ".join(labels), *said) for said, labels in found.items() if any(said)]


def _bullet(labels: str, remarks: str) -> str:
    text = f"- **{labels}.** {' '.join(remarks.split())}"
    return textwrap.fill(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _table(*titles: str, rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(
        [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *(f"| {' | '.join(row)} |" for row in rows), ""]
    )


if __name__ == "__main__":
    sys.exit(main())
