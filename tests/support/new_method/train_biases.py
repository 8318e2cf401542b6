"""scripts/train.py with one more method, `biases`, added as docs/contributing.md says: a row of facts and a file."""

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[2]))

import modules.methods  # noqa: E402
from modules.config.methods import METHODS, MethodFacts  # noqa: E402

METHODS["biases"] = MethodFacts(
    name="biases",
    label="Biases",
    trains="the biases of the denoiser",
    trainable=lambda family: family.denoisers,
    trains_weights=True,
    has_formats=False,
)
modules.methods.__path__.append(str(FOLDER))

# after the row: the settings offer the methods that are there when they are imported
from scripts.train import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
