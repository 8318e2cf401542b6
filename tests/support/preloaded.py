"""What a rank imports before its first step: it takes longer than most of what tests have ranks do."""

# ruff: noqa: F401 - imported for those who import it later, in a process that is forked from this one
import peft
from diffusers.pipelines.stable_diffusion import pipeline_stable_diffusion

import modules.launch.start
import modules.sampling.generation
import modules.trainer.DistributedTrainer
from tests.support import RankPool, rank_scenarios
