"""Trains from the command line: python scripts/train.py --config run.yaml [--set path=value ...]"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()
    from modules.session.signals import remember_early_signals

    remember_early_signals()
elif __name__ == "__mp_main__":  # in a rank that this script has spawned
    from modules.launch.parent_watch import end_with_parent

    end_with_parent()

from modules.config.describe import settings_by_path, value_at
from modules.config.errors import ConfigError, UserError
from modules.config.files import apply_overrides, config_from_values, load_config, load_values
from modules.config.installation import command_name, docs_page
from modules.config.presets import load_preset, merge_values
from modules.config.TrainConfig import TrainConfig
from modules.session.out_of_memory import SYSTEM_ADVICE, is_out_of_system_memory
from modules.session.printing import print_text
from modules.session.program_end import end_program
from modules.session.RunFolder import RunFolder
from modules.session.RunSummary import RunSummary
from modules.session.signals import forget_early_signals
from scripts.terminal import escape_unprintable, show

if TYPE_CHECKING:
    from modules.launch.WaitingRanks import WaitingRanks

CHOSEN_ANEW = ("diffusion.timesteps", "diffusion.expert_share", "optimizer.learning_rate")
"""The settings for which a later version of Chorus may have another default, or another value in its presets."""


def main(argv: list[str] | None = None, waiting: WaitingRanks | None = None) -> int:
    """waiting: as for `start_training`."""
    args = parse(argv)
    escape_unprintable()
    try:
        config = read_config(args)
        if args.dry_run:
            forget_early_signals()
            from modules.data.run_summary import summarize
            from modules.launch.check_plan import check_plan
            from modules.launch.plan import JoinPlan, plan_launch
            from modules.machine.Machine import read_machine
            from modules.trainer.checks import check_device

            plan = plan_launch(config, {}, read_machine(), resume=args.resume, supervise=args.supervise)
            checked, warnings = check_plan(plan)
            assert not isinstance(plan, JoinPlan)  # without the variables of a launcher
            assert checked is not None
            check_device(config)
            summary = summarize(config, plan.shape, checked.base, warnings, plan.resume)
            summary = replace(summary, lines=(("Start", plan.describe()), *summary.lines))
            show(summary.to_json() if args.json else summary.text())
            return 0
        from modules.launch.start import start_training

        return start_training(config, args.resume, args.supervise, given_settings(args), waiting)
    except UserError as error:
        if args.json:
            show(RunSummary(problems=tuple(error.problems)).to_json())
        else:
            print_text(error, sys.stderr)
        return 2
    except (MemoryError, OSError, ImportError, RuntimeError) as error:
        if not is_out_of_system_memory(error):
            raise
        print_text(SYSTEM_ADVICE, sys.stderr)
        return 1


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=command_name("train"), description="Train a diffusion model.")
    parser.add_argument("--config", metavar="FILE", help=f"settings, YAML or JSON ({docs_page('settings')} lists them)")
    parser.add_argument("--preset", metavar="NAME", help=f"start from a preset ({docs_page('presets')} lists them)")
    parser.add_argument("--set", metavar="PATH=VALUE", action="append", default=[], help="change one setting")
    parser.add_argument("--resume", action="store_true", help="resume from the latest backup in workspace_dir")
    parser.add_argument("--supervise", action="store_true", help="train in separate processes, watched by a supervisor")
    parser.add_argument("--dry-run", action="store_true", help="show what the run would do, then exit")
    parser.add_argument("--json", action="store_true", help="print what --dry-run shows as JSON, for programs")
    # torch.distributed.launch gives it to each rank, beside torchrun's variables, which say the same
    parser.add_argument("--local-rank", "--local_rank", help=argparse.SUPPRESS)
    ranks = parser.add_argument_group("several GPUs (each changes a setting)")
    ranks.add_argument("--multi_gpu", "--multi-gpu", action="store_true", help="train on several GPUs at once")
    ranks.add_argument("--world_size", "--world-size", metavar="N", help="GPUs per machine; all by default")
    ranks.add_argument("--devices", metavar="0,2", help="indexes of the GPUs to use; all by default")
    ranks.add_argument("--backend", choices=("nccl", "gloo", "auto"), help="communication backend")
    ranks.add_argument("--no_torchrun", "--no-torchrun", action="store_true", help="start the ranks without torchrun")
    ranks.add_argument(
        "--single_gpu_data_loading",
        "--single-gpu-data-loading",
        action="store_true",
        help="only the first GPU of each machine caches images",
    )
    args = parser.parse_args(argv)
    if not args.config and not args.preset:
        parser.error("name the settings with --config FILE or --preset NAME")
    if args.json and not args.dry_run:
        parser.error("--json prints what --dry-run shows: add it")
    return args


def read_config(args: argparse.Namespace) -> TrainConfig:
    """Preset, then file, then the options for several GPUs, then --set; later ones win.

    A run that is resumed keeps its own CHOSEN_ANEW, unless a person has set them.
    """
    values = load_preset(args.preset) if args.preset else {}
    if args.config:
        values = merge_values(values, load_values(args.config))
    source = args.config or f"preset {args.preset}"
    config = config_from_values(apply_overrides(values, [*rank_overrides(args), *args.set]), source=source)
    return _as_begun(config, given_settings(args)) if args.resume else config


def _as_begun(config: TrainConfig, given: set[str]) -> TrainConfig:
    try:
        begun = load_config(RunFolder(config.workspace_dir).config_path)
    except ConfigError:  # of no run yet, or lost: the settings of the command are written there
        return config
    for path in CHOSEN_ANEW:
        if path not in given:
            section, name = path.split(".")
            setattr(getattr(config, section), name, value_at(begun, path))
    return config


def given_settings(args: argparse.Namespace) -> set[str]:
    """The paths of the settings that a person has set, in a file or an option; a preset's are none of them."""
    values = load_values(args.config) if args.config else {}
    in_file = {path for path in settings_by_path() if _is_in(values, path)}
    return in_file | {override.partition("=")[0].strip() for override in [*rank_overrides(args), *args.set]}


def _is_in(values: object, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(values, dict) or name not in values:
            return False
        values = values[name]
    return True


def rank_overrides(args: argparse.Namespace) -> list[str]:
    """The options for several GPUs as `--set` would say them; each that needs several switches them on."""
    several = args.devices and "," in args.devices
    of_ranks = (args.world_size, args.backend, args.no_torchrun, args.single_gpu_data_loading, several)
    on = args.multi_gpu or any(of_ranks)
    overrides = {
        "enable_multi_gpu": "true" if on else None,
        "world_size": args.world_size,
        "device_indexes": f"[{args.devices}]" if args.devices else None,
        "distributed_backend": args.backend,
        "use_torchrun": "false" if args.no_torchrun else None,
        "distributed_data_loading": "false" if args.single_gpu_data_loading else None,
    }
    return [f"{path}={value}" for path, value in overrides.items() if value is not None]


if __name__ == "__main__":
    end_program(main)
