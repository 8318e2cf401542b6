"""A stand-in for scripts/train.py without torch: a real supervisor, above ranks that tell of steps and train nothing.

It obeys a stop, makes samples and backups, and goes on from the newest backup.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from modules.config.errors import UserError
from modules.config.files import load_config, save_config
from modules.launch.Supervisor import Supervisor
from modules.session.RunFolder import RunFolder
from modules.session.TrainCallbacks import TrainCallbacks
from tests.support.toy_ranks import ToyLauncher

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support.toy_run import main
sys.exit(main())
"""


def make_toy_chorus(folder: Path) -> Path:
    """A folder in place of that of Chorus, whose scripts/train.py is this."""
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "train.py").write_text(SCRIPT)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--supervise", action="store_true", required=True)
    parser.add_argument("--config", required=True)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    config = load_config(args.config)
    folder = RunFolder(config.workspace_dir)
    try:
        if not config.concepts:
            raise UserError("concepts is empty: add a folder of images.")
        if not args.resume:
            folder.refuse_earlier_run()
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    folder.create()
    save_config(config, folder.config_path)
    num_ranks = config.world_size if config.enable_multi_gpu else 1
    plan = folder.log_dir / "plan.json"
    plan.write_text(json.dumps({"folder": str(folder.path), **{str(rank): ["train"] for rank in range(num_ranks)}}))
    with folder.held():
        for path in folder.commands_dir.iterdir():
            path.unlink()
        return Supervisor(folder, lambda attempt, resume: ToyLauncher(plan, num_ranks), TrainCallbacks()).run()
