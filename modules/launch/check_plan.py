"""The checks that refuse a start: one sequence for the start itself and for its dry run."""

from __future__ import annotations

import os

from modules.config.errors import ConfigError
from modules.config.problems import Problem, warning
from modules.distributed.Heartbeat import read_limits
from modules.families.registry import FAMILIES
from modules.launch.plan import JoinPlan, LaunchPlan, SupervisePlan
from modules.loggers.access import logger_problems
from modules.machine.can_start import StartFacts, blocking, shape_problems
from modules.machine.interfaces import gloo_interface_problem
from modules.session.RunFolder import RunFolder
from modules.session.writable import check_writable
from modules.trainer.checks import CheckedStart, check_start
from modules.weights.hub_models import check_on_hub
from modules.weights.hub_parts import check_parts_on_hub, with_parts_on_disk
from modules.weights.own_parts import replaced_parts


def check_plan(plan: LaunchPlan) -> tuple[CheckedStart | None, list[Problem]]:
    """Check a start up to the point where its data is read: what `check_start` found, and all warnings.

    None, if the ranks of other machines check for themselves.

    What `check_device` asks is left out, as it takes GPU memory. Raises UserError if the run can't start.
    """
    read_limits()
    if isinstance(plan, JoinPlan) and (plan.is_supervised or plan.environment.num_nodes > 1):
        # a supervisor has already checked; and if one machine refused alone, the others would wait for minutes
        return None, []
    config = plan.config
    if not isinstance(plan, JoinPlan) and config.device_indexes and not plan.machine.gpus:
        from modules.distributed.Runtime import default_device

        default_device(config.device_indexes)  # torch may know GPUs of other vendors
    folder = RunFolder(config.workspace_dir)
    folder.check()
    check_writable("cache_dir", config.cache_dir)
    if not plan.resume and (not isinstance(plan, SupervisePlan) or plan.leads):
        folder.refuse_earlier_run()
    if (errors := logger_problems(config)) and (not isinstance(plan, SupervisePlan) or plan.leads):
        raise ConfigError(errors)
    checked = check_start(config, plan.world_size, plan.resume)
    if checked.base.kind == "hub":
        family = FAMILIES[config.family]
        check_on_hub(config.model.base, family, replaced_parts(family, with_parts_on_disk(config.model)))
    check_parts_on_hub(config.model)
    warnings = list(checked.warnings)
    if isinstance(plan, JoinPlan):
        return checked, warnings
    facts = StartFacts(plan.machine, base_bytes=checked.base.size_bytes or None)
    problems = shape_problems(config, plan.shape, facts, plan.resume)
    if refused := blocking(problems):
        raise ConfigError(refused)
    if plan.world_size > 1 and (problem := gloo_interface_problem(os.environ.get("GLOO_SOCKET_IFNAME", ""))):
        warnings.append(warning(f"{problem}: ranks on gloo can't reach each other; correct or unset it."))
    return checked, list(dict.fromkeys([*warnings, *problems]))
