"""The parts: what each checks, for how long it may, and how much memory it takes of the GPU."""

from __future__ import annotations

from dataclasses import dataclass

RIGHT, FAST, LATER = "right", "fast", "later"
HALVES = {
    RIGHT: "whether results are right; most parts run beside each other",
    FAST: "how fast and how large; one part after another",
    LATER: "what takes longer or needs more than one GPU or optional packages",
}


@dataclass(frozen=True)
class Part:
    """checks: "module:function" of this package. limit: seconds; its process is ended then. gib: GPU memory that it
    takes at most. is_alone: nothing else may run meanwhile, since it is timed. processes: how many run at once where
    each case has a process of its own; 0: all cases run in one. is_open: there are more cases than time, the most
    important ones first.
    """

    name: str
    half: str
    checks: tuple[str, ...]
    limit: int
    gib: float = 2.0
    is_alone: bool = False
    processes: int = 0
    is_open: bool = False


_ALL = (
    # if these fail, the rest would only repeat it
    Part("facts", RIGHT, ("machine:facts", "machine:pinned_memory"), 90, is_alone=True),
    Part("kernels", RIGHT, ("kernels:rounding", "kernels:checksums", "kernels:quantized", "kernels:skipping"), 120),
    Part("fused", RIGHT, ("dequantizing:fused",), 240),
    Part("matmul", RIGHT, ("quantized_matmul:products_in_8_bits",), 120),
    Part("lora", RIGHT, ("lora_layers:lora",), 60, is_alone=True),
    Part("fewer_operations", RIGHT, ("fewer_operations:fewer_operations",), 60, is_alone=True),
    Part(
        "attention",
        RIGHT,
        ("attention:gradients", "attention:other_gradients", "attention:unmatched_gradients"),
        300,
        gib=8,
    ),
    Part("runs", RIGHT, ("runs:runs", "runs:same_results", "runs:curve_of_the_cpu", "runs:out_of_memory"), 300, gib=4),
    Part("families", RIGHT, ("families:families",), 300, gib=8, processes=6),
    Part("ranks", RIGHT, ("ranks:two_ranks", "ranks:lone_rank", "ranks:ranks_of_train_py"), 300, gib=6),
    Part("resuming", RIGHT, ("resuming:resuming",), 240),
    Part("compiled", RIGHT, ("compiled:compiled",), 240),
    Part("graphs", RIGHT, ("graphs:graphs",), 300, gib=4),
    Part("memory", RIGHT, ("preset_memory:presets",), 300, gib=48, is_open=True),
    Part("pytest", RIGHT, ("own_tests:marked_tests",), 240, gib=4),
    Part("races", RIGHT, ("streams:races",), 90, is_alone=True),
    Part("overlap", FAST, ("streams:overlap",), 60, is_alone=True),
    Part("ceilings", FAST, ("ceilings:matrix_peak", "ceilings:attention_times"), 150, is_alone=True),
    Part("dequantizing", FAST, ("dequantizing:times",), 120, is_alone=True),
    Part("matmul_speed", FAST, ("quantized_matmul:times_in_8_bits",), 180, is_alone=True),
    Part("speed", FAST, ("step_speed:steps",), 300, gib=20, is_alone=True),
    Part("graph_speed", FAST, ("graphs:graph_speed",), 300, gib=20, is_alone=True),
    Part("benchmark", FAST, ("own_tests:benchmark",), 120, is_alone=True),
    Part("full", LATER, ("own_tests:benchmark_full",), 300, is_alone=True),
    Part("large_memory", LATER, ("preset_memory:large_presets",), 600, is_alone=True, is_open=True),
    Part("real", LATER, ("step_speed:real_steps",), 1200, gib=40, is_alone=True, is_open=True),
    Part("options", LATER, ("own_tests:benchmark_options",), 600, is_alone=True),
    Part("bitsandbytes", LATER, ("runs:bitsandbytes",), 300),
    Part("several_gpus", LATER, ("own_tests:several_gpus",), 300, gib=4),
)
PARTS = {part.name: part for part in _ALL}


def parts_of(half: str) -> list[Part]:
    """In the order in which they begin."""
    return [part for part in _ALL if part.half == half]
