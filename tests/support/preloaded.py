"""What a rank imports before its first step: it takes longer than most of what tests have ranks do."""

# ruff: noqa: F401 - imported for those who import it later, in a process that is forked from this one
import modules.launch.start
import modules.sampling.generation
import modules.trainer.DistributedTrainer
from modules.weights.libraries import import_pipeline
from tests.support import RankPool, rank_scenarios

import_pipeline("StableDiffusionPipeline")
