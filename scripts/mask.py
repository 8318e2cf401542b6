"""Makes masks for the images of a folder: python scripts/mask.py FOLDER --model NAME, or --alpha"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.annotators.Cancellation import Cancellation
from modules.annotators.mask_edges import Edges
from modules.annotators.mask_run import ALPHA, MaskSource, WantedMasks, mask_concept
from modules.annotators.mask_service import MaskService, checked_edges
from modules.annotators.mask_writing import MaskWriter, interrupted_masks
from modules.annotators.Masker import Click, MaskHint
from modules.annotators.reports import JsonReport, TextReport
from modules.config.errors import UserError
from modules.config.installation import command_name, docs_page
from modules.session.printing import print_text
from modules.session.program_end import end_program
from scripts.annotator_options import (
    PREVIEWED,
    add_device_options,
    add_preview_option,
    add_report_options,
    memory_message,
)
from scripts.concept_option import add_concept_options, chosen_concept, chosen_paths
from scripts.number_options import share
from scripts.terminal import STOPPED, escape_unprintable, show


def main(argv: list[str] | None = None) -> int:
    """Returns 0 if all images have a mask, 1 if some have failed, 2 if none could be made, STOPPED if canceled."""
    args = parse(argv)
    escape_unprintable()
    canceled = Cancellation()
    report = (JsonReport if args.json or args.serve else TextReport)(show)
    try:
        with canceled.by_signals():
            num_failed = serve(args, canceled, report) if args.serve else mask(args, canceled, report)
    except UserError as error:
        print_text(error, sys.stderr)
        return 2
    except (RuntimeError, MemoryError, OSError) as error:
        if not (message := memory_message(error)):
            raise
        print_text(message, sys.stderr)
        return 2
    if canceled() and not args.serve:
        return STOPPED
    return int(num_failed > 0)


def mask(args: argparse.Namespace, canceled: Cancellation, report: JsonReport | TextReport) -> int:
    concept = chosen_concept(args)
    if args.listen:
        canceled.listen(sys.stdin)
    wanted = read_wanted(args, canceled)
    record = interrupted_masks(concept, wanted) if args.overwrite and not wanted.preview else None
    with MaskWriter(concept, f"Masks: {args.model or 'transparency'}") as write:
        return mask_concept(concept, wanted, write, record, report)


def serve(args: argparse.Namespace, canceled: Cancellation, report: JsonReport | TextReport) -> int:
    with tempfile.TemporaryDirectory() as folder:
        service = MaskService(MaskSource(read_wanted(args, canceled), report), Path(folder), report)
        canceled.listen(sys.stdin, service.hear)
        service.serve(canceled)
    return 0


def read_wanted(args: argparse.Namespace, canceled: Cancellation) -> WantedMasks:
    """Raises UserError."""
    if bool(args.model) == args.alpha:
        raise UserError("Name a model with --model, or say --alpha; one of the two.")
    if args.restart and not args.overwrite:
        raise UserError("--restart needs --overwrite: without it, masks that are there stay as they are.")
    try:
        threshold = None if args.soft else args.threshold
        edges = checked_edges(Edges(threshold, args.invert, args.grow, args.feather))
    except ValueError as error:
        raise UserError(f"{error}.") from error
    return WantedMasks(
        args.model or ALPHA,
        MaskHint(args.prompt.strip(), tuple(args.click)),
        edges,
        args.dtype,
        args.gpu,
        args.cpu,
        args.overwrite,
        args.restart,
        chosen_paths(args),
        args.preview or (PREVIEWED if args.preview_to else 0),
        args.preview_to,
        canceled,
    )


def click(text: str) -> Click:
    """X,Y or X,Y,out."""
    x, y, *rest = text.split(",")
    if rest not in ([], ["in"], ["out"]):
        raise ValueError(text)
    return Click(float(x), float(y), rest != ["out"])


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("mask"),
        description="Make masks for the images of a folder that have none, from their transparency or with a model. "
        f"{docs_page('dataset')} says which models there are.",
    )
    add_concept_options(parser)
    source = parser.add_argument_group("what finds the mask")
    source.add_argument("--alpha", action="store_true", help="the images' own transparency: what is opaque")
    source.add_argument("--model", default="", metavar="NAME", help="a folder, a model on the Hub, or an .onnx file")
    source.add_argument("--prompt", default="", metavar="TEXT", help='for CLIPSeg: what to mask, such as "face, hair"')
    source.add_argument(
        "--click",
        type=click,
        action="append",
        default=[],
        metavar="X,Y[,out]",
        help="for SAM: a pixel inside of what to mask, or, with out, outside of it; may be repeated",
    )
    add_device_options(source)
    edges = parser.add_argument_group("its edges, in this order")
    edges.add_argument(
        "--threshold", type=share, default=0.5, metavar="P", help="from which value on a pixel counts; default: 0.5"
    )
    edges.add_argument("--soft", action="store_true", help="keep what is in between as it is")
    edges.add_argument("--invert", action="store_true", help="mask the rest")
    edges.add_argument("--grow", type=int, default=0, metavar="PIXELS", help="less than 0 shrinks")
    edges.add_argument("--feather", type=int, default=0, metavar="PIXELS", help="over which an edge fades")
    parser.add_argument("--overwrite", action="store_true", help="also images that have a mask")
    parser.add_argument("--restart", action="store_true", help="with --overwrite: forget what an interrupted run did")
    add_preview_option(parser, "try {}")
    parser.add_argument(
        "--preview-to", default="", metavar="FOLDER", help="save the masks of a preview here, to be looked at"
    )
    add_report_options(parser)
    parser.add_argument("--serve", action="store_true", help="answer requests on stdin, lines of JSON, for the window")
    return parser.parse_args(argv)


if __name__ == "__main__":
    end_program(main)
