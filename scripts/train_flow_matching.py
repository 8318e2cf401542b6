"""Trains a flow-matching model with common options: python scripts/train_flow_matching.py [--data DIR --base MODEL]

It starts from the preset of the model's family; without --data and --base it trains the video demo. It runs alone,
under torchrun, torch.distributed.launch, accelerate or srun, or starts the ranks itself with --num_gpus. The run
folder, stopping and resuming are those of scripts/train.py.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()
elif __name__ == "__mp_main__":  # in a rank that this script has spawned
    from modules.launch.parent_watch import end_with_parent

    end_with_parent()

from modules.config.errors import UserError
from modules.config.files import apply_overrides, config_from_values
from modules.config.flow_matching import check_flow
from modules.config.installation import PACKAGE, command_name
from modules.config.presets import list_presets, load_preset
from modules.config.TrainConfig import TrainConfig
from modules.machine.hub import read_model
from modules.session.printing import print_text
from scripts.number_options import positive, positive_real
from scripts.terminal import escape_unprintable

if TYPE_CHECKING:
    from modules.distributed.setup_distributed import cleanup_distributed, is_main_process, setup_distributed
    from modules.trainer.FlowMatchingTrainer import FlowMatchingTrainer

__all__ = [
    "FlowMatchingTrainer",
    "cleanup_distributed",
    "flow_config",
    "is_main_process",
    "main",
    "parse_args",
    "setup_distributed",
]

DEMO = "video_demo"  # the preset
# For programs that run their own ranks; imported when they are used, because help and refusals need no torch.
_FOR_PROGRAMS = {
    "FlowMatchingTrainer": "trainer.FlowMatchingTrainer",
    "cleanup_distributed": "distributed.setup_distributed",
    "is_main_process": "distributed.setup_distributed",
    "setup_distributed": "distributed.setup_distributed",
}


def __getattr__(name: str) -> Any:
    if name not in _FOR_PROGRAMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{PACKAGE}.{_FOR_PROGRAMS[name]}"), name)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    escape_unprintable()
    from modules.launch.start import start_training

    try:
        return start_training(flow_config(args), args.resume, given=given_settings(args))
    except UserError as error:
        print_text(error, sys.stderr)
        return 2


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("train_flow_matching"), description="Train a flow-matching model on one GPU or on several."
    )
    parser.add_argument(
        "--data", metavar="DIR", help="folder with images or videos, and captions (.txt files); default: the video demo"
    )
    parser.add_argument("--base", metavar="MODEL", help="diffusers folder or Hugging Face name; needed with --data")
    parser.add_argument("--family", metavar="NAME", help="default: that of the model")
    parser.add_argument("--method", choices=("lora", "full"), default="lora", help="default: lora")
    parser.add_argument(
        "--output_dir", "--output-dir", metavar="DIR", help="default: workspace/flow_matching, of the demo video_demo"
    )
    parser.add_argument("--resume", action="store_true", help="resume from the latest backup in --output_dir")
    steps = parser.add_argument_group("training (defaults are those of the family's preset, unless named)")
    steps.add_argument("--batch_size", "--batch-size", type=positive, metavar="N", help="per GPU; default: 1")
    steps.add_argument("--num_epochs", "--num-epochs", type=positive, metavar="N", help="default: 100")
    steps.add_argument("--max_steps", "--max-steps", type=positive, metavar="N", help="end after this many steps")
    steps.add_argument("--learning_rate", "--learning-rate", type=positive_real, metavar="LR")
    steps.add_argument("--gradient_accumulation_steps", "--gradient-accumulation-steps", type=positive, metavar="N")
    steps.add_argument("--mixed_precision", "--mixed-precision", choices=("no", "bf16", "fp16"))
    steps.add_argument("--resolution", type=positive, metavar="PIXELS")
    steps.add_argument("--seed", type=int, metavar="N")
    steps.add_argument("--use_ema", "--use-ema", action="store_true", help="also average the weights")
    steps.add_argument("--ema_decay", "--ema-decay", type=float, metavar="D")
    steps.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change any setting")
    ranks = parser.add_argument_group("several GPUs (not needed under torchrun, accelerate or srun)")
    ranks.add_argument("--num_gpus", "--num-gpus", metavar="N", type=gpu_count, help="a number, or all")
    ranks.add_argument("--backend", choices=("nccl", "gloo", "auto"), default="auto", help="default: auto")
    # torch.distributed.launch gives it to each rank, beside torchrun's variables, which say the same
    parser.add_argument("--local-rank", "--local_rank", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if (args.data is None) != (args.base is None):
        parser.error("--data and --base belong together; leave both out to train the video demo")
    if args.data is None and (args.family or args.method != "lora"):
        parser.error("--family and --method are for a model of your own: name it with --base")
    return args


def gpu_count(text: str) -> str:
    if text != "all" and not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number above 0 nor all")
    return text


def flow_config(args: argparse.Namespace) -> TrainConfig:
    """The settings of a run: the preset of the demo or of the family and method, then the options, then --set.

    Raises UserError for a model whose family is unknown or not trained by flow matching, and for invalid values.
    """
    values = _demo_values(args) if args.data is None else _own_values(args)
    values["distributed_backend"] = args.backend
    config = config_from_values(apply_overrides(values, [*overrides(args), *args.set]), source="train_flow_matching.py")
    check_flow(config)
    return config


def _demo_values(args: argparse.Namespace) -> dict:
    values = load_preset(DEMO)
    given = {
        "workspace_dir": args.output_dir,
        "batch_size": args.batch_size,
        "batch_size_mode": "per_device" if args.batch_size else None,
        "epochs": args.num_epochs,
        "max_steps": args.max_steps,
    }
    return values | {name: value for name, value in given.items() if value is not None} | {"enable_multi_gpu": False}


def _own_values(args: argparse.Namespace) -> dict:
    family = args.family or family_of_base(args.base)
    preset = f"{family}-{args.method}"
    values = load_preset(preset) if preset in {known.name for known in list_presets()} else {}
    return values | {
        "family": family,
        "method": args.method,
        "workspace_dir": args.output_dir or "workspace/flow_matching",
        "concepts": [{"path": args.data}],
        "batch_size": 1 if args.batch_size is None else args.batch_size,
        "batch_size_mode": "per_device",  # presets for a full fine-tune have the batch of all GPUs together
        "epochs": 100 if args.num_epochs is None else args.num_epochs,
        "max_steps": args.max_steps,
        "model": {**values.get("model", {}), "base": args.base},
    }


def overrides(args: argparse.Namespace) -> list[str]:
    """The options without a default of their own as `--set` would say them."""
    options = {
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "optimizer.learning_rate": args.learning_rate,
        "model.mixed_precision": args.mixed_precision,
        "data.resolution": args.resolution,
        "seed": args.seed,
        "ema.enabled": True if args.use_ema else None,
        "ema.decay": args.ema_decay,
        "enable_multi_gpu": True if args.num_gpus else None,
        "world_size": args.num_gpus if args.num_gpus != "all" else None,
    }
    return [f"{path}={str(value).lower()}" for path, value in options.items() if value is not None]


def given_settings(args: argparse.Namespace) -> set[str]:
    """The paths of the settings that a person has set in an option, which accelerate must not contradict."""
    return {override.partition("=")[0].strip() for override in [*overrides(args), *args.set]}


def family_of_base(base: str) -> str:
    """The name of the model's family. Raises UserError if it is unknown."""
    from modules.families.registry import family_of
    from modules.weights.inspect import describe_index, inspect_base

    info = inspect_base(base)
    index = read_model(base).index if info.kind == "hub" else info.index
    family = family_of(index)
    if family is None:
        detail = describe_index(index) if index else "a model that is not in diffusers' format"
        raise UserError(f"--base {base}: Chorus does not train {detail}; choose another model.")
    return family.name


if __name__ == "__main__":
    sys.exit(main())
