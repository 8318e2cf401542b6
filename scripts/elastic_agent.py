"""torchrun's agent for ranks that Chorus starts: scripts/elastic_agent.py ENDS <arguments of torchrun>"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from modules.launch.elastic_agent import main

if __name__ == "__main__":
    sys.exit(main())
