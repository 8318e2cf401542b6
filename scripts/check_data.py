"""Finds problems with images and captions: python scripts/check_data.py FOLDER, or --config run.yaml for a run's."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.batch_size import global_batch
from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.files import apply_overrides, config_from_values, load_values
from modules.config.installation import command_name, docs_page
from modules.config.methods import facts_of
from modules.config.presets import load_preset, merge_values
from modules.config.TrainConfig import TrainConfig
from modules.config.visible_text import visible_line
from modules.curation.duplicates import Duplicates
from modules.curation.measure_findings import duplicates_in, measure_findings
from modules.curation.MeasureIndex import measure_images
from modules.curation.measures import ImageMeasures
from modules.curation.report import report_lines
from modules.curation.statistics import DatasetStatistics, dataset_statistics
from modules.data.caption_encodings import WESTERN
from modules.data.concepts import captions
from modules.data.convert_captions import convert_to_utf8, misencoded_captions
from modules.data.decode_check import MOST_DECODED
from modules.data.errors import DataError
from modules.data.health import Health, check_health
from modules.session.printing import print_line, print_text
from modules.session.program_end import end_program
from scripts.dataset_figures import json_lines, read_figures
from scripts.number_options import positive
from scripts.terminal import Progress, escape_unprintable, show

LISTED = 5
EXCERPT = 60  # characters of a converted caption, in which a wrong encoding shows


def main(argv: list[str] | None = None) -> int:
    """Returns 0 if the run can train, 1 if its data would make it fail, and 2 if the settings can't be read.

    With --figures, 2 also for data that would make it fail.
    """
    args = parse(argv)
    escape_unprintable()
    try:
        values = load_preset(args.preset) if args.preset else {}
        if args.config:
            values = merge_values(values, load_values(args.config))
        if args.folders:
            values = {**values, "concepts": [{"path": folder} for folder in args.folders]}
        source = args.config or (f"preset {args.preset}" if args.preset else "the command")
        config = config_from_values(apply_overrides(values, args.set), source=source)
        if args.convert_captions:
            convert_captions(config, args.convert_captions, sys.stderr if args.json else None)
        if args.figures:
            show_figures(config, args.ranks, args.json)
            return 0
        report = check(config, args.ranks, None if args.decode else MOST_DECODED)
    except UserError as error:
        print_text(error, sys.stderr)
        return 2
    show(as_json(report) if args.json else as_text(report))
    return 0 if report.health.can_train else 1


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("check_data"), description="Look for what is wrong with the images and captions of a run."
    )
    parser.add_argument("folders", metavar="FOLDER", nargs="*", help="images to check instead of those in the settings")
    parser.add_argument("--config", metavar="FILE", help=f"settings, YAML or JSON ({docs_page('settings')} lists them)")
    parser.add_argument("--preset", metavar="NAME", help=f"start from a preset ({docs_page('presets')} lists them)")
    parser.add_argument("--set", metavar="PATH=VALUE", action="append", default=[], help="change one setting")
    parser.add_argument("--ranks", metavar="N", type=positive, default=1, help="GPUs that will train together")
    parser.add_argument(
        "--decode", action="store_true", help=f"fully decode every image, not only {MOST_DECODED:,} of them"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--figures", action="store_true", help="only the figures, without decoding images; also tokens of captions"
    )
    parser.add_argument(
        "--convert-captions",
        metavar="ENCODING",
        nargs="?",
        const=WESTERN,
        type=encoding,
        help="first convert captions that are not UTF-8, keeping each original in a .bak file next to it; "
        f"ENCODING: of files without a byte order mark ({WESTERN}, that of Western European Windows, by default)",
    )
    args = parser.parse_args(argv)
    if not (args.folders or args.config or args.preset):
        parser.error("name a folder of images, or settings with --config FILE or --preset NAME")
    return args


def encoding(text: str) -> str:
    try:
        "a".encode(text)
    except LookupError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a text encoding") from None
    return text


def convert_captions(config: TrainConfig, unmarked: str, file: TextIO | None) -> None:
    """Converts captions and reports each file on `file` (stdout if None), and failures on stderr."""
    for path in misencoded_captions(config):
        try:
            done = convert_to_utf8(path, unmarked)
        except DataError as error:
            print_text(error, sys.stderr)
            continue
        text = " ".join(done.text[:EXCERPT].split())
        print_line(f"{done.path}: {done.encoding} -> UTF-8, kept as {done.kept_as}: {text}", file)


@dataclass(frozen=True)
class Report:
    """health: with what the pixels show among its findings. statistics: None if nothing can be trained."""

    health: Health
    duplicates: Sequence[Duplicates] = ()
    statistics: DatasetStatistics | None = None


def check(config: TrainConfig, num_ranks: int, most_decoded: int | None) -> Report:
    """Decodes each image once, for its damage and for what its pixels show; what was measured before is known."""
    measures: dict[str, ImageMeasures] = {}

    def decode(paths: Sequence[str]) -> dict[str, str]:
        progress = Progress("Decoding images")
        found = measure_images(config.concepts, paths, lambda done: progress(done, len(paths)))
        measures.update((path, one) for path, one in found.items() if not isinstance(one, str))
        return {path: one for path, one in found.items() if isinstance(one, str)}

    health = check_health(config, num_ranks, most_decoded, decode)
    dataset, buckets = health.dataset, health.buckets
    if dataset is None or buckets is None:
        return Report(health)
    duplicates = duplicates_in(dataset, measures)
    # notes, which come last
    health = dataclasses.replace(health, findings=[*health.findings, *measure_findings(dataset, measures, duplicates)])
    texts = captions(dataset, unreadable={}) if facts_of(config).uses_captions else ()
    return Report(health, duplicates, dataset_statistics(dataset, buckets, texts, global_batch(config, num_ranks)))


def show_figures(config: TrainConfig, num_ranks: int, in_json: bool) -> None:
    """Raises DataError for what can't train."""
    is_first = True
    for figures in read_figures(config, num_ranks):
        if in_json:
            show("\n".join(json_lines(figures, with_images=is_first or not figures.reading)))
        elif not figures.reading:
            count = counted(figures.statistics.num_images, "image")
            show("\n".join(map(visible_line, [count, *report_lines(figures.statistics)])))
        is_first = False


def as_text(report: Report) -> str:
    health = report.health
    lines = [counted(health.num_pictures, "image")]
    for finding in health.findings:
        lines.append(f"{finding.level + ':':<9}{finding.message}")
        lines += [f"{'':9}{path}" for path in finding.paths[:LISTED]]
        if finding.count > LISTED and finding.paths:
            lines.append(f"{'':9}... and {finding.count - LISTED} more")
    if not health.findings:
        lines.append("nothing unusual")
    if report.statistics:
        lines += ["", *report_lines(report.statistics, report.duplicates)]
    return "\n".join(map(visible_line, lines))


def as_json(report: Report) -> str:
    health = report.health
    return json.dumps(
        {
            "can_train": health.can_train,
            "num_pictures": health.num_pictures,
            "findings": [dataclasses.asdict(finding) for finding in health.findings],
            "duplicates": [dataclasses.asdict(group) for group in report.duplicates],
            "statistics": report.statistics and _without_paths(report.statistics),
        },
        indent=2,
    )


def _without_paths(statistics: DatasetStatistics) -> dict[str, Any]:
    values = dataclasses.asdict(dataclasses.replace(statistics, paths={}))
    del values["paths"]  # the same as the counts, but ten times as long
    return values


if __name__ == "__main__":
    end_program(main)
