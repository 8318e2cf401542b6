"""Rules of batch size, machines and ranks."""

from collections.abc import Iterator

from modules.config.addresses import why_no_address
from modules.config.counted import counted
from modules.config.families import load_families
from modules.config.methods import METHODS, facts_of
from modules.config.optimizers import OPTIMIZERS
from modules.config.problems import Problem, Remedy, either, set_to, switch_off
from modules.config.rules.conditions import why_not_sharded
from modules.config.show_value import show_value
from modules.config.TrainConfig import TrainConfig


def batch_problems(config: TrainConfig) -> Iterator[Problem]:
    """Whether the batch can be divided, if the number of ranks does not depend on the machine."""
    num_ranks = known_num_ranks(config)
    if num_ranks is not None:
        batch = check_batch(config.batch_size, config.batch_size_mode, num_ranks, config.gradient_accumulation_steps)
        if batch:
            yield batch


def check_batch(batch_size: int, mode: str, num_ranks: int, accumulation: int) -> Problem | None:
    """Check that the batch can be divided: a global batch has to be a multiple of ranks x accumulation steps.

    num_ranks: over all machines.
    """
    share = num_ranks * accumulation
    if mode != "global" or batch_size % share == 0:
        return None
    below = batch_size - batch_size % share
    fits = f"{below} or {below + share}" if below else f"{share}"
    ranks = counted(num_ranks, "GPU")
    steps = f" with gradient_accumulation_steps {accumulation}" if accumulation > 1 else ""
    start = f"batch_size {batch_size} (global) on {ranks}{steps}"
    message = f"{start}: {batch_size} is not a multiple of {share}; use {fits}."
    return Problem("batch_size", message, remedy=set_to("batch_size", below or share))


def known_num_ranks(config: TrainConfig) -> int | None:
    """The number of ranks over all machines; None if it depends on the machine's GPUs."""
    if not config.enable_multi_gpu:
        return 1
    per_node = config.world_size or len(config.device_indexes) or None
    return per_node * config.num_nodes if per_node else None


def machine_problems(config: TrainConfig) -> Iterator[Problem]:
    indexes = config.device_indexes
    if len(set(indexes)) < len(indexes):
        twice = next(index for index in indexes if indexes.count(index) > 1)
        once = set_to("device_indexes", list(dict.fromkeys(indexes)), ", ".join(map(str, dict.fromkeys(indexes))))
        yield Problem("device_indexes", f"device_indexes names GPU {twice} twice: name each once.", remedy=once)
    if not config.enable_multi_gpu:
        return
    if config.node_rank >= config.num_nodes:
        message = (
            f"node_rank {config.node_rank} with num_nodes {config.num_nodes}: "
            f"machines are counted from 0; use 0 to {config.num_nodes - 1}."
        )
        yield Problem("node_rank", message)
    if config.num_nodes > 1 and config.max_restarts:
        start = f"max_restarts {config.max_restarts} with num_nodes {config.num_nodes}"
        message = f"{start}: runs on several machines are not started again; use 0."
        yield Problem("max_restarts", message, blocking=False, remedy=set_to("max_restarts", 0))
    if config.num_nodes > 1 and (config.master_addr in ("localhost", "::1", "") or config.master_addr[:4] == "127."):
        message = (
            f"master_addr {config.master_addr!r} with num_nodes {config.num_nodes}: "
            "only this machine can find machine 0 by it, the others can't; write its address."
        )
        yield Problem("master_addr", message, blocking=False)
    elif config.num_nodes > 1 and (reason := why_no_address(config.master_addr)):
        yield Problem("master_addr", f"master_addr {config.master_addr!r}: {reason}")


def strategy_problems(config: TrainConfig) -> Iterator[Problem]:
    if config.enable_multi_gpu and config.distributed_strategy in ("fsdp", "hsdp"):
        yield from sharding_problems(config)
    if config.enable_multi_gpu:
        yield from divided_optimizer_problems(config)


def divided_optimizer_problems(config: TrainConfig) -> Iterator[Problem]:
    """The optimizer, if ranks that each hold the whole model can't divide its state."""
    name = config.optimizer.name
    if config.ddp_shard_optimizer and config.distributed_strategy in ("ddp", "auto") and not OPTIMIZERS[name].divides:
        divided = [other for other, facts in OPTIMIZERS.items() if facts.divides]
        message = (
            f"optimizer.name {name} with ddp_shard_optimizer: it needs the state of all weights on each GPU; use "
            f"{either(divided)}, or switch ddp_shard_optimizer off."
        )
        yield Problem("optimizer.name", message, remedy=set_to("ddp_shard_optimizer", False, "Off"))


def sharding_problems(config: TrainConfig) -> Iterator[Problem]:
    """The settings that are not supported with FSDP and HSDP."""
    family, facts, optimizer = load_families()[config.family], facts_of(config), config.optimizer.name
    on, sharding = f"with distributed_strategy {config.distributed_strategy}", "distributed_strategy"
    if not facts.can_shard:
        methods = " or ".join(method.name for method in METHODS.values() if method.can_shard)
        message = f"method {config.method!r} {on}: what it trains can't be sharded; use ddp, or {methods}."
        yield Problem(sharding, message, remedy=set_to(sharding, "ddp", "DDP"))
    if family.experts:
        message = f"family {config.family!r} {on}: a step may use one of its denoisers alone; use ddp."
        yield Problem(sharding, message, remedy=set_to(sharding, "ddp", "DDP"))
    if family.groups_texts:
        message = f"family {config.family!r} {on}: ranks may need different numbers of passes for their texts; use ddp."
        yield Problem(sharding, message, remedy=set_to(sharding, "ddp", "DDP"))
    for path, reason in why_not_sharded(config):
        yield Problem(path, f"{path} {on}: {reason}; use ddp.", remedy=set_to(sharding, "ddp", "DDP"))
    if facts.trains_adapters and config.lora.max_norm is not None:
        message = f"lora.max_norm {config.lora.max_norm:g} {on}: it needs whole weights; leave it empty, or use ddp."
        yield Problem("lora.max_norm", message, remedy=Remedy("Leave empty", {"lora.max_norm": None}))
    if facts.chooses_parts and config.text_encoder.train:
        message = f"text_encoder.train {on}: only the denoiser can be sharded; turn it off, or use ddp."
        yield Problem("text_encoder.train", message)
    if facts.uses_denoiser and config.model.cuda_graphs == "on":
        message = f"model.cuda_graphs on {on}: each pass gathers weights from other GPUs; set it to off, or use ddp."
        yield Problem("model.cuda_graphs", message, remedy=set_to("model.cuda_graphs", "off", "Off"))
    if config.model.denoiser_quantization != "none":
        message = (
            f"model.denoiser_quantization {config.model.denoiser_quantization} {on}: quantized weights can't be "
            "sharded; set it to none, or use ddp."
        )
        none = set_to("model.denoiser_quantization", "none", "None")
        yield Problem("model.denoiser_quantization", message, remedy=none)
    if config.model.blocks_to_swap != 0:
        count = show_value(config.model.blocks_to_swap)
        message = f"model.blocks_to_swap {count} {on}: sharded blocks can't be swapped; set it to 0, or use ddp."
        yield Problem("model.blocks_to_swap", message, remedy=set_to("model.blocks_to_swap", 0))
    if not OPTIMIZERS[optimizer].shards:
        sharded = [name for name, other in OPTIMIZERS.items() if other.shards]
        message = f"optimizer.name {optimizer} {on}: it needs whole weights; use {either(sharded)}."
        yield Problem("optimizer.name", message)
    if config.optimizer.state_in_ram:
        path = "optimizer.state_in_ram"
        message = f"{path} {on}: each GPU has a part of the state already; turn it off, or use ddp."
        yield Problem(path, message, remedy=switch_off(path))
    if OPTIMIZERS[optimizer].shards and config.optimizer.stochastic_rounding:
        message = f"optimizer.stochastic_rounding {on}: it needs whole weights; turn it off, or use ddp."
        yield Problem("optimizer.stochastic_rounding", message)
