"""What the scripts of captioners and maskers share: options, and what is said when memory is full."""

from __future__ import annotations

import argparse

from modules.annotators.safe_loading import DTYPES
from modules.session.out_of_memory import is_out_of_memory, is_out_of_system_memory
from scripts.number_options import positive

PREVIEWED = 3


def add_device_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dtype", choices=DTYPES, default="", help="default: bfloat16 on GPUs that have it")
    device = group.add_mutually_exclusive_group()
    device.add_argument("--gpu", type=int, metavar="N", help="number of the GPU; default: the first")
    device.add_argument("--cpu", action="store_true", help="don't use a GPU")


def add_preview_option(group: argparse._ActionsContainer, what: str) -> None:
    """what: is done with the images, such as "try"; {} stands for them."""
    group.add_argument(
        "--preview",
        type=positive,
        nargs="?",
        const=PREVIEWED,
        default=0,
        metavar="N",
        help=f"{what.format('N images')} ({PREVIEWED} by default) and write nothing",
    )


def add_report_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print each event as a line of JSON")
    parser.add_argument("--listen", action="store_true", help="end at the line `cancel` on stdin, or at its end")


def memory_message(error: BaseException, lower: str = "") -> str:
    """What to do if an error means that memory is full; "" for another one. lower: options that need less."""
    where = "GPU's" if is_out_of_memory(error) else "system's" if is_out_of_system_memory(error) else ""
    first = f"lower {lower}, or " if lower else ""
    return f"The {where} memory is too small: {first}choose a smaller model or --dtype bfloat16." if where else ""
