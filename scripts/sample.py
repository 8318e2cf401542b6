"""Generates images or videos with a model and LoRAs: python scripts/sample.py --base DIR --prompt "a cat" --out DIR"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.clips import frame_problem
from modules.config.errors import UserError
from modules.config.installation import command_name
from modules.config.SampleConfig import DEFAULT_LAYERS, MAX_LAYERS, MAX_SIDE
from modules.config.visible_text import visible_line
from modules.families.conditions import FirstFrame, SectionHistory
from modules.session.out_of_memory import is_out_of_memory, is_out_of_system_memory
from modules.session.printing import print_line, print_text
from modules.session.program_end import end_program
from modules.session.writable import check_writable
from scripts.lora_and_strength import strength_of_each
from scripts.terminal import escape_unprintable, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    from modules.families.Family import Family
    from modules.sampling.generation import ImageRequest, Sample


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    escape_unprintable()

    def work() -> None:
        check_writable("--out", args.out)  # before minutes of work
        if args.compare and not args.lora:
            raise UserError("--compare without --lora: there is nothing to compare with; add a LoRA, or leave it out.")
        if args.strengths and not args.lora:
            raise UserError("--strengths without --lora: nothing has a strength; add a LoRA, or leave it out.")
        for path in written(args):
            show(visible_line(str(path)))

    return exit_code_of(work, args.out)


def exit_code_of(work: Callable[[], None], out: str) -> int:
    """That of a script whose work this is; tells why it can't be done. out: where it writes images."""
    try:
        work()
    except UserError as error:
        # the settings' names, as the options here are called
        text = str(error).replace("model.config_folder", "--config")
        text = text.replace("model.text_encoders", "--text-encoder")
        for name in ("base", "vae", "denoiser_2", "denoiser"):
            text = text.replace(f"model.{name}", f"--{name.replace('_', '-')}")
        print_text(text, sys.stderr)
        return 2
    except (RuntimeError, MemoryError, OSError) as error:
        if is_out_of_memory(error):
            text = (
                "The GPU's memory is too small: lower --batch-size, --width and --height, or use --dtype bfloat16 or a "
                "GGUF file as --denoiser."
            )
        elif is_out_of_system_memory(error):
            text = "The system's memory is too small: close other programs, or use --dtype bfloat16."
        elif isinstance(error, OSError):
            text = f"--out {out!r} can't be written ({error.strerror}): choose another folder."
        else:
            raise
        print_line(text, sys.stderr)
        return 2
    return 0


def written(args: argparse.Namespace) -> Iterator[Path]:
    """The files of the images, each once it is written."""
    device, loras = prepare(), strength_of_each(args.lora)
    from modules.session.names import safe_file_name
    from modules.weights.load_pipeline import add_loras
    from modules.weights.pipeline_adapters import adapter_names, set_strengths

    pipe = load(args, {} if args.compare else loras, device)
    requests = requests_of(args, pipe)

    def pictures() -> Iterator[Sample]:
        if args.compare:
            yield from generate(pipe, requests, args, device)
            add_loras(pipe, loras, warn)
        if not args.strengths:
            yield from generate(pipe, requests, args, device)
        for strength in args.strengths:
            set_strengths(pipe, dict.fromkeys(adapter_names(pipe), strength))
            yield from generate(pipe, requests, args, device)

    for number, (request, image) in enumerate(pictures(), start=next_number(Path(args.out))):
        path = Path(args.out) / f"{number:03d}_{safe_file_name(request.prompt, 60)}_seed{request.seed}.png"
        save(path, image, request, args, pipe)
        yield path


def prepare() -> torch.device:
    """Import what sampling needs; returns the device that it is done on."""
    from modules.weights.libraries import gc_paused, import_diffusers

    with gc_paused(for_good=True):
        from modules.distributed.Runtime import default_device

        # ruff: noqa: F401 - for those who import them later
        from modules.sampling.LoadedPipeline import LoadedPipeline
        from modules.weights.load_pipeline import load_pipeline

        import_diffusers()
    return default_device()


def load(args: argparse.Namespace, loras: Mapping[str, float], device: torch.device) -> DiffusionPipeline:
    """The pipeline that the options name, with `loras` (file -> strength)."""
    from modules.weights.load_pipeline import check_sampling, load_pipeline

    check_sampling(args.base)
    return load_pipeline(
        args.base,
        loras,
        device,
        args.config,
        args.embedding,
        args.dtype,
        args.text_chunks,
        args.vae,
        args.denoiser,
        args.word_weights,
        args.clip_skip if len(args.clip_skip) > 1 else (),
        args.denoiser_2,
        args.text_encoder,
        warn,
    )


def requests_of(args: argparse.Namespace, pipe: DiffusionPipeline) -> list[ImageRequest]:
    """What the options ask for. Raises UserError for what the pipeline can't do."""
    from modules.data.conditions.inpainting import check_mask
    from modules.data.sample_images import image_files, refused_images
    from modules.families.registry import family_of_pipeline
    from modules.sampling.generation import ImageRequest, repeated

    references = tuple(file for path in args.reference for file in image_files(path))
    family = family_of_pipeline(pipe)
    if refused := refused_images(references, family):
        raise UserError(f"--reference: {refused}")
    check_mask(args.mask, "".join(references[:1]), family, "--mask", "--reference")
    check_frames(args.frames, family, len(references))
    check_steps(args.steps, family)
    check_sampler(args.sampler, family)
    options = (args.seed, args.width, args.height, args.steps, args.guidance, references)
    others = {"clip_skip": min(args.clip_skip), "frames": args.frames, "mask": args.mask, "layers": args.layers}
    others["fps"] = args.fps or 0.0
    first = [ImageRequest(prompt, args.negative_prompt, *options, **others) for prompt in args.prompt]
    return [request for one in first for request in repeated(one, args.count)]


def generate(
    pipe: DiffusionPipeline, requests: list[ImageRequest], args: argparse.Namespace, device: torch.device
) -> Iterator[Sample]:
    """The images, in the order of the requests."""
    from modules.families.registry import family_of_pipeline
    from modules.sampling.generation import generate_images
    from modules.sampling.LoadedPipeline import LoadedPipeline

    family = family_of_pipeline(pipe)
    if family is None:  # of which nobody knows what its pipeline uses when
        return generate_images(pipe.to(device), requests, args.batch_size, args.sampler)
    return LoadedPipeline(pipe, family, device).generate(requests, args.batch_size, args.sampler, warn)


def save(path: Path, image: Any, request: ImageRequest, args: argparse.Namespace, pipe: DiffusionPipeline) -> None:
    """Write an image, or a video. Raises OSError."""
    from modules.families.registry import family_of_pipeline
    from modules.sampling.generation import save_sample

    family = family_of_pipeline(pipe)
    save_sample(path, image, request, args.fps or (family.fps if family else 16))


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("sample"),
        description="Make images or videos from a model, with LoRAs and embeddings if wanted.",
    )
    _add_model_options(parser)
    _add_content_options(parser)
    _add_generation_options(parser)
    parser.add_argument("--out", required=True, metavar="DIR")
    return parser.parse_args(argv)


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    """The base model, what replaces parts of it, and what was trained."""
    parser.add_argument("--base", required=True, metavar="DIR", help="diffusers folder, Hub id or single file")
    parser.add_argument("--config", default="", metavar="DIR", help="diffusers folder, for a single file")
    parser.add_argument("--vae", default="", metavar="PATH", help="VAE instead of the base's: folder, file or Hub name")
    parser.add_argument("--denoiser", default="", metavar="PATH", help="transformer or U-Net instead of the base's")
    parser.add_argument("--denoiser-2", default="", metavar="PATH", help="low-noise expert instead of the base's")
    parser.add_argument(
        "--text-encoder",
        action="append",
        default=[],
        metavar="FILE",
        help="text encoder instead of one of the base's; may be repeated",
    )
    parser.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="FILE[:STRENGTH]",
        help="LoRA file, with its strength if that is not 1; may be repeated",
    )
    parser.add_argument(
        "--compare", action="store_true", help="first make all images without the LoRAs, then again with them"
    )
    parser.add_argument(
        "--strengths",
        type=lambda text: [*map(finite, text.split(","))],
        default=[],
        metavar="S,S",
        help="make all images at each of these strengths of the LoRAs, as in --strengths=-1,-0.5,0.5,1",
    )
    parser.add_argument("--embedding", action="append", default=[], metavar="FILE", help="embedding; may be repeated")


def _add_content_options(parser: argparse.ArgumentParser) -> None:
    """What the images show."""
    parser.add_argument("--prompt", action="append", required=True, metavar="TEXT", help="may be repeated")
    parser.add_argument("--negative-prompt", default="", metavar="TEXT")
    parser.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="PATH",
        help="image that the model sees, or a folder of them; may be repeated; for inpainting, the image to paint in; "
        "for models that edit videos, the video or its frames",
    )
    parser.add_argument(
        "--mask",
        default="",
        metavar="FILE",
        help="for inpainting: white where the model paints; default: the mask next to the image, else its center; for "
        "models that edit videos with a mask, an image, a video or a folder of frames; default: all of the video",
    )


def _add_generation_options(parser: argparse.ArgumentParser) -> None:
    """How many images, of which size, and how they are generated."""
    parser.add_argument("--count", type=positive, default=1, metavar="N", help="images per prompt; seeds count up")
    parser.add_argument("--seed", type=seed, default=42, metavar="S")
    parser.add_argument(
        "--sampler", choices=("model", "euler", "heun"), default="model", help="default: as in the base model"
    )
    parser.add_argument("--steps", type=positive, default=25, metavar="K")
    parser.add_argument("--guidance", type=finite, default=7.5, metavar="G", help="guidance scale; 1 disables guidance")
    parser.add_argument(
        "--clip-skip",
        type=clip_skips,
        default=[1],
        metavar="N[,N]",
        help="that of the training, or those of the encoders one by one; default: 1, the model's own",
    )
    parser.add_argument(
        "--text-chunks",
        type=positive,
        default=1,
        metavar="N",
        help="that of the training: prompts of up to N times 75 tokens, for models with CLIP; default: 1",
    )
    parser.add_argument(
        "--word-weights", action="store_true", help="read (word:1.2) as a weight, as model.word_weights does"
    )
    parser.add_argument("--width", type=side, metavar="PIXELS", help="default: the model's, or the painted image's")
    parser.add_argument("--height", type=side, metavar="PIXELS", help="default: the model's, or the painted image's")
    parser.add_argument("--frames", type=positive, default=1, metavar="N", help="of a video; 1, the default: an image")
    parser.add_argument(
        "--layers",
        type=layers,
        default=DEFAULT_LAYERS,
        metavar="N",
        help="for models that decompose an image; default: %(default)s",
    )
    parser.add_argument("--fps", type=rate, metavar="F", help="frames per second; default: the model's own")
    parser.add_argument("--batch-size", type=positive, default=4, metavar="N", help="images generated at once")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        default="",
        help="default: bfloat16 on GPUs that support it, else float32",
    )


def warn(text: str) -> None:
    print_text(text, sys.stderr)


def check_frames(num_frames: int, family: Family | None, num_references: int) -> None:
    """Raises DataError if a model of `family` (None: unknown) can't generate this many frames."""
    from modules.data.errors import DataError

    if num_frames > 1 and not (family and family.frame_step):
        raise DataError(f"--frames {num_frames}: this model makes images; leave it out.")
    if family and family.frame_step:
        problem = frame_problem("--frames", num_frames, family.label, family.frame_step, family.frame_rest)
        if problem:
            raise DataError.of(problem)
        if family.has(SectionHistory) and num_frames == 1:
            sections = f"sections of {family.fact(SectionHistory, 'section')} frames"
            raise DataError(f"--frames 1: {family.label} makes videos of {sections}; set it to a multiple of that.")
        if family.fact(FirstFrame, "last") and num_references > 1 and num_frames == 1:
            raise DataError("--frames 1: there is nothing between the two images; set it to 33, for one.")


def check_steps(num_steps: int, family: Family | None) -> None:
    """Raises DataError if a model of `family` (None: unknown) can't sample in so few steps."""
    from modules.data.errors import DataError

    if family and num_steps < family.min_sample_steps:
        raise DataError(f"--steps {num_steps}: {family.label} takes at least {family.min_sample_steps}; raise it.")


def check_sampler(sampler: str, family: Family | None) -> None:
    """Raises UserError if the model is only sampled with its own scheduler."""
    if family and family.has_own_sampler and sampler != "model":
        raise UserError(f"--sampler {sampler}: {family.label} only samples as its base model says; leave it out.")


def next_number(folder: Path) -> int:
    """The number after the largest one that an image in the folder starts with, so that no image is overwritten."""
    starts = [path.name.partition("_")[0] for path in folder.glob("*.png")]
    return max((int(start) + 1 for start in starts if start.isdecimal()), default=0)


def clip_skips(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return int(text)


def seed(text: str) -> int:
    if abs(int(text)) >= 10**18:  # those of torch have 64 bits
        raise argparse.ArgumentTypeError(f"{text} has more than 18 digits: choose a smaller number")
    return int(text)


def finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return float(text)


def layers(text: str) -> int:
    if not 1 <= int(text) <= MAX_LAYERS:
        raise argparse.ArgumentTypeError(f"{text} is outside 1 to {MAX_LAYERS}: choose a number in that range")
    return int(text)


def rate(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return float(text)


def side(text: str) -> int:
    if positive(text) % 16 or int(text) > MAX_SIDE:
        raise argparse.ArgumentTypeError(f"{text} is not a multiple of 16 up to {MAX_SIDE}")
    return int(text)


if __name__ == "__main__":
    end_program(main)
