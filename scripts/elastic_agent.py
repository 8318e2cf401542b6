"""Trains in the ranks that torchrun's agent starts: scripts/elastic_agent.py --nproc-per-node=2 SCRIPT [its options]

To be used in place of torchrun, with torchrun's options. On a single machine, torchrun's own store can be reached from
the network and may run what it is sent; this one can be reached from this machine only.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.launch.elastic_agent import main

if __name__ == "__main__":
    sys.exit(main())
