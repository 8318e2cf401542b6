"""Runs a script with one more kind of adapters, `outer`, added as docs/contributing.md says: a row of facts and a file.

with_outer.py SCRIPT ARGUMENTS...: SCRIPT is one of scripts/, without its extension.
"""

import sys
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[2]))

from modules.config.adapters import ADAPTERS, AdapterFacts  # noqa: E402

ADAPTERS["outer"] = AdapterFacts(name="outer", label="Outer", tensors=("outer_out", "outer_in"), mark="outer_")

# after the row: the settings offer the kinds that are there when they are imported
import modules.weights.adapters  # noqa: E402

modules.weights.adapters.__path__.append(str(FOLDER))

if __name__ == "__main__":
    script = import_module(f"scripts.{sys.argv.pop(1)}")
    sys.exit(script.main())
