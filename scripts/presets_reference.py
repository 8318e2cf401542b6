"""Write docs/presets.md from the presets, or check that it is up to date.

python scripts/presets_reference.py --write
python scripts/presets_reference.py --check
"""

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.config.batch_size import global_batch, learning_rate_factor, scientific  # noqa: E402
from modules.config.files import config_from_values  # noqa: E402
from modules.config.ModelConfig import ModelConfig  # noqa: E402
from modules.config.presets import (  # noqa: E402
    GPU_COUNTS,
    MEMORY_SIZES,
    Preset,
    gpu_counts,
    has_variants,
    list_presets,
    sized_preset,
    variant_name,
    why_not_offered,
)
from modules.config.TrainConfig import TrainConfig  # noqa: E402
from modules.machine.architectures import load_architectures  # noqa: E402
from modules.machine.memory_estimate import GIB, estimate_memory  # noqa: E402
from modules.machine.system_memory import OTHER_BYTES, needed_in_ram  # noqa: E402
from scripts.generated_file import write_or_check  # noqa: E402
from scripts.memory import load_results  # noqa: E402

FILE = ROOT / "docs" / "presets.md"
SIZE_TITLES = (
    "preset",
    "micro-batch x accumulation",
    "checkpointing",
    "weights",
    "optimizer",
    "estimate",
    "system memory",
)
_USUAL_GIGABYTES = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # of system memory in a machine
ARCHITECTURE_TITLES = (
    "family or variant",
    "denoiser, weights",
    "text encoders, weights",
    "LoRA, bytes a pixel (checkpointing)",
    "full, bytes a pixel (checkpointing)",
    "sampling, bytes a pixel: denoiser, autoencoder",
)
INTRODUCTION = """\
# Presets

<!-- Made by scripts/presets_reference.py from resources/presets: change those, and run scripts/generate.py. -->

A preset is a start for a family and a method; it lacks only your images. The button at the top left of the window
lists them, for the memory and the number of GPUs that are chosen above the list, and *Show changes…* shows what one
would change; your concepts, folders and prompts [stay](window.md). In a terminal, the name says all of it:

```bash
.venv/bin/python scripts/train.py --preset sdxl-lora --config run.yaml            # as the file has it
.venv/bin/python scripts/train.py --preset sdxl-lora-16gb --config run.yaml       # for a GPU with 16 GB
.venv/bin/python scripts/train.py --preset sdxl-lora-16gb-x4 --config run.yaml    # for four of them
```

Your own settings lie over it. `resources/presets/NAME.yaml` holds a preset, `resources/preset_sizes.yaml` what it
changes by the memory; a name with `-x2`, `-x4` or `-x8` adds `enable_multi_gpu`, `world_size`, and what is said below.

"""
MEMORY_RULE = """\
## Where the memory figures come from

**They are calculated**; five were compared with [what a GPU took](memory.md#compared-with-a-gpu). What a run takes on
yours also depends on its driver, on the versions of torch and its libraries, and on what else uses it. The sum, for
one GPU, is the largest one of these:

- training: the weights that a step needs (text encoders leave once all captions are encoded), with gradients, the
  optimizer's state and the average of what trains; then the activations of a micro-batch, with a tenth on top for gaps
  in the allocator, or what the optimizer needs while it steps, whichever is more; and 0.66 GiB for CUDA's context and
  the workspaces of cuBLAS, on several GPUs 0.25 more for what NCCL holds.
- caching: the text encoders together, or the autoencoder with the images that it encodes at once: up to four of a
  million pixels together, or a single larger one.
- sampling, where a run makes samples by itself, as all presets do but those of autoencoders: the weights of a step, the
  optimizer's state and the average; and the autoencoder with what it holds of the image that it decodes, 3,072 bytes a
  pixel in float32 and 1,536 in bfloat16, or what the denoiser holds of the images that are made at a time, 912 bytes a
  pixel in mixed precision or bfloat16 and 1,824 in float32, whichever is more, with the tenth on top. Of a family that
  holds more, in half precision for one image and in float32, the table says how much. Prompts are encoded with the
  captions.

Weights and activations are counted on the real architectures, without their weights (`scripts/memory.py --counts sdxl`
prints a family's), then corrected by what the step takes at its peak in the simulation below:

{table}

Activations are what autograd keeps for the backward pass in bf16 mixed precision, and grow with the number of pixels
and of images. The autoencoder (84 million weights) is counted in float32: 35,067 and 14,958 bytes a pixel.

`scripts/memory.py` checks the sum. It runs the code of a run at the real size of the model (encoding, the step with its
backward pass and optimizer, a sample's prediction and decoding) on a simulated GPU, whose tensors have no values, and
adds up the bytes that exist at once. Its results are in `resources/preset_memory.json`, and the sum
differs from them [by a few percent](memory.md). `python scripts/memory.py sdxl-lora-12gb` prints a preset's.
{simulated}

A preset is offered for a size if on one GPU and on several the sum stays 5 % and at least 1 GiB below it, which is for
the system.
**Samples may need more memory** than training, above all than a LoRA in small batches: presets make them smaller where
they would not fit otherwise. If yours don't fit, the run says so and continues without them; lower
`sampling.batch_size` first, then their width and height.

All presets but those of autoencoders make two samples every 250 steps and at the end, at the size they train at. Their
prompts are the first two captions of your images that differ; without captions, the names of the concepts.
"""
BY_MEMORY = """\
## By memory

Presets keep the batch size and the learning rate for every memory size. On smaller GPUs, a step is computed in more
parts (gradient accumulation), or activations are recomputed instead of stored (gradient checkpointing).
The step of a [fused backward pass](memory.md#full-fine-tunes), which full fine-tunes of the largest models need, has
only one part: in less memory, activations wait in system memory ("offloaded").
Where that is not enough, LoRAs and embeddings train on a quantized model, which hardly changes the result
([memory](memory.md)): "int8 + nf4" stands for a denoiser in int8 and text encoders in nf4. nf4 needs
`pip install bitsandbytes`. Only the full fine-tune of Stable Diffusion 1.5 goes down in precision, too, and does
without the average of the weights below 24 GB. A size that is not in the table is as the next smaller one. The last
column is what a machine with one such GPU should have of [system memory](memory.md#system-memory).
"""
BY_GPUS = """\
## By number of GPUs

Where the batch size is per GPU, N GPUs make steps of N times as many images: `lr_scaling: sqrt` raises the learning
rate by the root of N, and `max_steps` is divided by N, so that a run goes through as many images. A full fine-tune has
a global batch: several GPUs share it, with fewer accumulation steps, and the result is that of one. Presets with a
fused backward pass are for one GPU. A name with `-xN` is exact for N GPUs in all, over all machines; for another number
`max_steps` is yours to set. The table has the images of a step, the learning rate and `max_steps`.
"""


def main() -> int:
    return write_or_check(__doc__.splitlines()[0], {FILE: reference_text()})


def reference_text() -> str:
    """The whole page."""
    presets = list_presets()
    listed = [f"| `{preset.name}` | {preset.description} |" for preset in presets]
    varied = [preset for preset in presets if has_variants(preset.name)]
    sizes = [row for preset in varied for row in _size_rows(preset)]
    counts = ("1 GPU", *(f"{count} GPUs" for count in GPU_COUNTS))
    parts = [
        INTRODUCTION + _table("preset", "for", rows=listed),
        BY_MEMORY,
        _table(*SIZE_TITLES, rows=sizes),
        "".join(f"- {reason}\n" for reason in _reasons(varied)),
        BY_GPUS,
        _table("preset", *counts, rows=[_gpus_row(preset) for preset in varied]),
        MEMORY_RULE.format(
            table=_table(*ARCHITECTURE_TITLES, rows=list(_architecture_rows())).rstrip(), simulated=_simulated(varied)
        ),
    ]
    return "\n".join(parts)


def _simulated(presets: list[Preset]) -> str:
    """Which of the presets are simulated."""
    names = {name.rpartition("-")[0] for kept in load_results().values() for name in kept["presets"]}
    without = [f"`{preset.name}`" for preset in presets if preset.name not in names]
    return f"Only estimated so far: {', '.join(without)}." if without else "All presets are simulated."


def _table(*titles: str, rows: list[str]) -> str:
    return "\n".join([f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *rows, ""])


def _size_rows(preset: Preset) -> Iterator[str]:
    before = None
    for memory in MEMORY_SIZES:
        if why_not_offered(preset.name, memory):
            continue
        name = variant_name(preset.name, memory)
        config = _config(name)
        if config == before:
            continue
        before = config
        batch = config.batch_size // (config.gradient_accumulation_steps if config.batch_size_mode == "global" else 1)
        cells = (
            f"`{name}`",
            f"{batch} x {config.gradient_accumulation_steps}",
            _spoken_checkpointing(config.model),
            _spoken_precision(config.model),
            config.optimizer.name,
            _spoken_estimate(config),
            f"{_machine_gigabytes(config)} GB",
        )
        yield f"| {' | '.join(cells)} |"


def _spoken_checkpointing(model: ModelConfig) -> str:
    if not model.gradient_checkpointing:
        return "off"
    return "on, offloaded" if model.activation_offloading else "on"


def _spoken_precision(model: ModelConfig) -> str:
    parts = (model.denoiser_quantization, model.text_encoder_quantization)
    held = [model.weight_dtype if part == "none" else part for part in parts]
    return " + ".join(dict.fromkeys(held))


def _spoken_estimate(config: TrainConfig) -> str:
    estimate = estimate_memory(config)
    return f"{estimate.peak / GIB:.1f} GiB" if estimate else "unknown"


def _machine_gigabytes(config: TrainConfig) -> int:
    """The smallest usual size of a machine's system memory that holds the run and the system."""
    needed = needed_in_ram(config)
    assert needed is not None  # of the families of presets, all sizes are known
    return next(size for size in _USUAL_GIGABYTES if needed + OTHER_BYTES <= size * GIB)


def _reasons(presets: list[Preset]) -> Iterator[str]:
    for preset in presets:
        reasons = {memory: why_not_offered(preset.name, memory) for memory in MEMORY_SIZES}
        names = [f"`{variant_name(preset.name, memory)}`" for memory, reason in reasons.items() if reason]
        if names:
            yield f"{', '.join(names)}: not offered. {reasons[MEMORY_SIZES[0]]}"


def _gpus_row(preset: Preset) -> str:
    cells = []
    for count in (1, *GPU_COUNTS):
        if count not in (1, *gpu_counts(preset.name)):
            cells.append("")
            continue
        config = _config(variant_name(preset.name, None, count))
        rate = scientific(config.optimizer.learning_rate * learning_rate_factor(config, count))
        steps = f", {config.max_steps}" if config.max_steps else ""
        cells.append(f"{global_batch(config, count)}, {rate}{steps}")
    return f"| `{preset.name}` | {' | '.join(cells)} |"


def _architecture_rows() -> Iterator[str]:
    for name, model in load_architectures().items():
        encoders = " + ".join(f"{count / 1e6:,.0f} M" for count in model.text_encoders)
        kept = (f"{kind.whole:,} ({kind.part:,})" for kind in (model.lora, model.full))
        held = f"{model.held['denoiser']}, {model.held['vae']:,}"
        yield f"| {name} | {model.denoiser / 1e6:,.0f} M | {encoders} | {' | '.join(kept)} | {held} |"


def _config(name: str) -> TrainConfig:
    return config_from_values(sized_preset(name), f"preset {name}")


if __name__ == "__main__":
    sys.exit(main())
