"""Checks of settings against each other, without disk, model or GPU.

The range of each setting is declared with it. Checks that depend on the model family (image sizes), on files or on the
machine are made where these are known.
"""

from modules.config.errors import ConfigError
from modules.config.problems import Problem
from modules.config.rules import (
    adapters,
    data,
    intervals,
    logging_services,
    memory,
    methods,
    model,
    noise_and_loss,
    optimizer,
    ranks,
    trained_parts,
)
from modules.config.rules.conditions import condition_problems
from modules.config.TrainConfig import TrainConfig

RULES = (
    model.base_problems,
    model.family_problems,
    data.concept_problems,
    condition_problems,
    data.held_out_problems,
    data.tag_problems,
    data.share_problems,
    data.image_size_problems,
    trained_parts.part_problems,
    trained_parts.embedding_problems,
    methods.comparison_problems,
    methods.slider_problems,
    methods.pair_problems,
    methods.drawing_problems,
    memory.precision_problems,
    memory.attention_problems,
    memory.attention_mask_problems,
    memory.quantization_problems,
    memory.matmul_problems,
    memory.rotation_problems,
    memory.gguf_problems,
    adapters.adapter_problems,
    memory.offloading_problems,
    memory.swap_problems,
    memory.graph_problems,
    noise_and_loss.noise_problems,
    noise_and_loss.loss_problems,
    optimizer.rounding_problems,
    noise_and_loss.mask_problems,
    data.regularization_problems,
    optimizer.rate_problems,
    optimizer.own_step_problems,
    optimizer.option_problems,
    optimizer.fused_backward_problems,
    optimizer.state_in_ram_problems,
    data.validation_problems,
    optimizer.schedule_problems,
    intervals.interval_problems,
    logging_services.logger_problems,
    ranks.machine_problems,
    ranks.strategy_problems,
    ranks.batch_problems,
)
"""In the order in which their problems are shown."""


def find_problems(config: TrainConfig) -> list[Problem]:
    """The problems of the settings, blocking ones first."""
    problems = [problem for rule in RULES for problem in rule(config)]
    return sorted(problems, key=lambda problem: not problem.blocking)


def check_settings(config: TrainConfig) -> list[Problem]:
    """The problems that are only warnings. Raises ConfigError for blocking ones."""
    problems = find_problems(config)
    if blocking := [problem for problem in problems if problem.blocking]:
        raise ConfigError(blocking)
    return problems
