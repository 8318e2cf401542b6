"""The command `python -m modules.distributed.probe`: a communication test of the ranks of this machine.

The test is modules/engine/link_probe.py: only the engine, whose room is above this one, launches ranks.
"""

import importlib
import sys

from modules.config.installation import PACKAGE

if __name__ == "__main__":
    sys.exit(importlib.import_module(f"{PACKAGE}.engine.link_probe").main())
