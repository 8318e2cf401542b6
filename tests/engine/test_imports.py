"""What a program pays for importing the engine."""

import subprocess
import sys

from tests.support.fork_server import ROOT

PROGRAM = """
import sys
from modules.trainer import TrainingEngine
print([name for name in ("torch.distributed.fsdp", "sympy", "diffusers", "tensorboard") if name in sys.modules])
"""


def test_importing_the_engine_does_not_import_what_only_some_trainings_need():
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
