"""Write docs/scaling.md, the expected efficiency on several GPUs and machines, or check that it is up to date.

    python scripts/scaling_model.py --write
    python scripts/scaling_model.py --check
    python scripts/scaling_model.py --measure    # on CPU ranks, what the page compares the model with; two minutes

The model is modules/machine/scaling.py; no GPU has been measured.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from modules.machine.architectures import load_architectures  # noqa: E402
from modules.machine.link_speeds import PCIE_LANE  # noqa: E402
from modules.machine.scaling import Work, ddp_seconds, efficiency, fsdp_seconds, linked  # noqa: E402
from scripts.benchmarks.gloo_scaling import measure, predictions  # noqa: E402
from scripts.generated_file import write_or_check  # noqa: E402

PAGE = ROOT / "docs" / "scaling.md"
MEASURED = ROOT / "scripts" / "benchmarks" / "gloo_scaling.json"

FORWARD_FLOPS = {"sdxl": 6.76e12, "flux1": 74.4e12}  # of an image of 1024 x 1024, by torch's FlopCounterMode
EXAMPLES = {"SDXL": ("sdxl", 4, False), "FLUX.1": ("flux1", 2, True)}  # (family, images, gradient checkpointing)
GPU_FLOPS = 0.4 * 989e12  # per second: 40 % of the dense bf16 peak of an H100 (NVIDIA's data sheet)
LORA_RANK = 16
LINK_SHARE, NETWORK_SHARE = 0.75, 0.9  # of the nominal speed that large collectives reach
NODE_HOP, NETWORK_HOP = 10e-6, 30e-6  # seconds
LINKS = {"PCIe 4.0": 16 * PCIE_LANE[4] * 1e9, "PCIe 5.0": 16 * PCIE_LANE[5] * 1e9, "NVLink": 450e9}  # bytes/s one way
GPU_COUNTS, NODE_COUNTS, GPUS_OF_A_NODE = (1, 2, 4, 8), (2, 4, 8, 16, 32, 64), 8
NETWORKS = (25, 50, 100, 200, 400)  # Gbit/s of a machine
STRATEGIES = {"DDP": ddp_seconds, "FSDP": fsdp_seconds}

HEAD = """\
# Expected scaling

Made by `scripts/scaling_model.py`. **These figures are predicted, not measured: no GPU has run them.** They show which
links a run needs, and whether DDP or FSDP suits them, not what a particular machine reaches.

Efficiency is the throughput divided by that of one GPU times the number of GPUs, when each GPU takes a batch of its own
(`batch_size_mode: per_device`). Waiting for data, saving and sampling are left out, and whether the model fits.

## The model

A GPU computes {flops:.0f} TFLOP/s, 40 % of the bf16 peak of an H100; slower GPUs wait less for the same links. A step
has a forward pass, the gradients of the activations and, in a full fine-tune, those of the weights, each as long as the
first; FLUX.1 also repeats the forward pass for gradient checkpointing.

| | forward pass of an image of 1024 x 1024 | images per GPU | computing | gradients | weights, in bf16 |
|---|---|---|---|---|---|
{works}

* Collectives run on a ring: an all-reduce of B bytes on N ranks takes 2 (N - 1) / N x B / speed, the all-gather and
  the reduce-scatter half of that. Each hop adds {node_hop:.0f} µs within a machine, {network_hop:.0f} µs to the next.
  An all-reduce may also run on a tree, which has fewer hops.
* The ring is as fast as its slowest link: {link_share} % of the nominal speed within a machine, or {network_share} % of
  the network's between machines.
* DDP exchanges gradients in buckets of 25 MiB while the backward pass goes on. FSDP gathers the weights of each block
  for the forward and for the backward pass, one block ahead, and exchanges its gradients after its backward pass.
* Gradients are exchanged in float32: `gradient_reduce_precision: bf16` halves their bytes. With gradient accumulation
  over K micro-batches, DDP computes K times as long for one exchange; FSDP gathers K times as well.
"""


def main() -> int:
    if sys.argv[1:] == ["--measure"]:
        MEASURED.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8", newline="\n")
        return 0
    return write_or_check(__doc__.splitlines()[0], {PAGE: page()})


def page() -> str:
    """The whole page."""
    return "\n".join([_head(), *_one_machine(), *_machines(), *_check()])


def works() -> dict[str, Work]:
    """Name of a run -> a step of it on one GPU."""
    found = {}
    for label, (family, images, checkpoints) in EXAMPLES.items():
        model = load_architectures().get(family)
        if model is None:  # removed since
            continue
        weights, adapters = model.denoiser, LORA_RANK * model.adapter["attention"]
        # passes: forward, recomputation, gradients of the activations, and of the weights that train
        for method, trained, passes in (("LoRA", adapters, 2), ("full fine-tune", weights, 3)):
            passes += checkpoints
            seconds = passes * images * FORWARD_FLOPS[family] / GPU_FLOPS
            found[f"{label}, {method}"] = Work(
                seconds, 4 * trained, 2 * weights, model.blocks.count, backward_share=1 - 1 / passes
            )
    return found


def _head() -> str:
    rows = []
    for name, work in works().items():
        family, images, _ = EXAMPLES[name.partition(",")[0]]
        flops = f"{FORWARD_FLOPS[family] / 1e12:.1f} TFLOP"
        sizes = f"{_bytes(work.gradient_bytes)} | {_bytes(work.weight_bytes)}"
        rows.append(f"| {name} | {flops} | {images} | {work.seconds:.2f} s | {sizes} |")
    return HEAD.format(
        flops=GPU_FLOPS / 1e12,
        works="\n".join(rows),
        node_hop=NODE_HOP * 1e6,
        network_hop=NETWORK_HOP * 1e6,
        link_share=round(100 * LINK_SHARE),
        network_share=round(100 * NETWORK_SHARE),
    )


def _one_machine() -> Iterator[str]:
    links = ", ".join(f"{name} ({speed / 1e9:.0f} GB/s)" for name, speed in LINKS.items())
    yield f"## One machine\n\nBy the links between the GPUs, nominal in one direction: {links}.\n"
    yield f"| | links | {' | '.join(f'{count} GPU' + 's' * (count > 1) for count in GPU_COUNTS)} |"
    yield "|---|---" + "|---" * len(GPU_COUNTS) + "|"
    for name, work in works().items():
        for strategy, step in STRATEGIES.items():
            for link, speed in LINKS.items():
                fabrics = [linked(count, LINK_SHARE * speed, NODE_HOP) for count in GPU_COUNTS]
                shares = [_percent(efficiency(step, work, fabric)) for fabric in fabrics]
                yield f"| {name}, {strategy} | {link} | {' | '.join(shares)} |"
    yield ""


def _machines() -> Iterator[str]:
    yield (
        f"## Several machines\n\nWith {GPUS_OF_A_NODE} GPUs each, linked by NVLink, by the speed of each machine's "
        "network in Gbit/s. HSDP, which gathers weights\nwithin a machine only, exchanges over the network what DDP "
        "does.\n"
    )
    hop = NODE_HOP + (NETWORK_HOP - NODE_HOP) / GPUS_OF_A_NODE  # one of so many leads to the next machine
    yield f"| | network | {' | '.join(f'{count} machines' for count in NODE_COUNTS)} |"
    yield "|---|---" + "|---" * len(NODE_COUNTS) + "|"
    for name, work in works().items():
        for strategy, step in STRATEGIES.items():
            for network in NETWORKS:
                speed = NETWORK_SHARE * network * 1e9 / 8
                fabrics = [linked(GPUS_OF_A_NODE * count, speed, hop) for count in NODE_COUNTS]
                shares = [_percent(efficiency(step, work, fabric)) for fabric in fabrics]
                yield f"| {name}, {strategy} | {network} | {' | '.join(shares)} |"
    yield ""


CHECK = """\
## How good the model is

The same functions predict the steps of 2 and 4 CPU ranks with gloo on two cores, from the step of one rank and the
time of single collectives, both measured. The ranks sleep instead of computing
(`scripts/benchmarks/gloo_scaling.py`), so that cores are free for the exchange, as a GPU's processor is. On CPUs, FSDP
waits for each collective, which the prediction takes into account.
"""
CHECK_END = """
The largest error is {worst:.0f} %: the overlap, order and size of the exchange, on two cores that other programs used
as well. DDP is predicted well. FSDP on a CPU spends about as much time again on allocating and copying what it
exchanges, as a profile shows;
the model leaves that out, so its figures for FSDP are an upper bound. The assumed speeds of GPUs and links
are not part of the error, and differ between machines:
`python -m modules.distributed.probe` measures the links of yours.
"""


def _check() -> Iterator[str]:
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    rows = predictions(measured)
    yield CHECK
    yield "| ranks | strategy | measured | predicted | error |\n|---|---|---|---|---|"
    yield f"| 1 | | {_milliseconds(measured['1']['steps']['ddp'])} | | |"
    for count, strategy, seconds, predicted in rows:
        times = f"{_milliseconds(seconds)} | {_milliseconds(predicted)}"
        yield f"| {count} | {strategy.upper()} | {times} | {100 * (predicted / seconds - 1):+.0f} % |"
    worst = max(abs(predicted / seconds - 1) for _, _, seconds, predicted in rows)
    yield CHECK_END.format(worst=100 * worst).rstrip() + "\n"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


if __name__ == "__main__":
    sys.exit(main())
