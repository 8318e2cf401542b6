"""Generates a grid of images in one process: python scripts/sample_grid.py GRID.json, which the window writes.

The file names the images and, for each, the options of scripts/sample.py that generate it. Models stay loaded from one
image to the next as long as only prompts, strengths and LoRAs change. An image that is there already is left out, so a
grid that was canceled continues where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.errors import UserError
from modules.config.installation import command_name
from modules.config.visible_text import visible_line
from modules.session.program_end import end_program
from scripts import sample
from scripts.lora_and_strength import strength_of_each
from scripts.terminal import escape_unprintable, show

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

Cell = tuple[Path, argparse.Namespace]
"""The file of an image, and the options that generate it."""
_LOADED = ("base", "config", "vae", "denoiser", "denoiser_2", "text_encoder", "embedding", "dtype", "text_chunks")
_OF_PIPELINE = (*_LOADED, "word_weights", "clip_skip")  # the options that a pipeline is loaded by, but for LoRAs


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    escape_unprintable()

    def work() -> None:
        for path in make_grid(read_grid(args.grid)):
            show(visible_line(str(path)))
            sys.stdout.flush()

    return sample.exit_code_of(work, args.grid)


def read_grid(path: str) -> list[Cell]:
    """The images that are not there yet. Raises UserError if the file is not one that the window has written."""
    try:
        plain = json.loads(Path(path).read_bytes())
        folder = Path(path).absolute().parent
        cells = [(folder / Path(str(one["file"])).name, [*map(str, one["options"])]) for one in plain["cells"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path!r} is no grid of images: start it from the window that compares runs.") from error
    return [(file, sample.parse(options)) for file, options in cells if not file.exists()]


def make_grid(cells: Sequence[Cell]) -> Iterator[Path]:
    """Generate the images, and yield the file of each once it is written."""
    if not cells:
        return
    from modules.weights.pipeline_adapters import set_strengths

    device = sample.prepare()
    for _, same in itertools.groupby(cells, key=lambda cell: [getattr(cell[1], name) for name in _OF_PIPELINE]):
        group = list(same)
        pipe = sample.load(group[0][1], {}, device)
        adapters = _loaded_loras(pipe, [lora for _, args in group for lora in strength_of_each(args.lora)])
        for loras, alike in itertools.groupby(group, key=lambda cell: cell[1].lora):
            strengths = {
                name: strength for lora, strength in strength_of_each(loras).items() for name in adapters[lora]
            }
            if strengths:
                set_strengths(pipe, strengths)
            yield from _made(pipe, list(alike), device)


def _made(pipe: DiffusionPipeline, cells: Sequence[Cell], device: Any) -> Iterator[Path]:
    """Images of one model at one strength, whose prompts are encoded together."""
    requests = [request for _, args in cells for request in sample.requests_of(args, pipe)]
    pictures = sample.generate(pipe, requests, cells[0][1], device)
    for (file, args), (request, image) in zip(cells, pictures, strict=True):
        sample.save(file, image, request, args, pipe)
        yield file


def _loaded_loras(pipe: DiffusionPipeline, files: Sequence[str]) -> dict[str, list[str]]:
    """Load LoRA files, each once, into a pipeline that has none: file -> the names of its adapters."""
    from modules.weights.lora_files import load_lora
    from modules.weights.pipeline_adapters import adapter_names

    found: dict[str, list[str]] = {}
    for file in dict.fromkeys(files):
        load_lora(pipe, file, sample.warn)
        known = {name for names in found.values() for name in names}
        found[file] = sorted(adapter_names(pipe) - known)
    return found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("sample_grid"), description="Generate the images of a grid that the window has written."
    )
    parser.add_argument("grid", metavar="FILE", help="grid.json, in the folder that the images are written to")
    return parser.parse_args(argv)


if __name__ == "__main__":
    end_program(main)
