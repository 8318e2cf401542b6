"""One rank beside a run without ranks: `python -m scripts.gpu.lone_rank DEVICE PORT PLAIN DDP DIVIDED GRAPHS FSDP`.

By NCCL on a GPU, else by gloo. The last arguments are files of settings. The last line of stdout is JSON: what ran ->
how far its losses are off.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> int:
    import torch
    import torch.distributed as dist

    from modules.distributed.DataParallelRuntime import DataParallelRuntime, DataParallelSettings
    from modules.distributed.environments import SpawnEnvironment
    from modules.distributed.Runtime import Runtime
    from modules.distributed.ShardedRuntime import ShardedRuntime
    from modules.distributed.SignedStore import SignedStore
    from scripts.gpu.cases import is_cuda
    from scripts.gpu.graphs import soon
    from scripts.gpu.tiny_runs import furthest
    from tests.support import rank_scenarios

    name, port, plain, *files = sys.argv[1:]
    device, store = torch.device(name), dist.TCPStore("127.0.0.1", int(port), 1, is_master=True)
    group: dict[str, Any] = {"store": dist.PrefixStore("group", store), "rank": 0, "world_size": 1}
    if is_cuda(name):
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, **group)
    else:
        dist.init_process_group("gloo", **group)
    environment = SpawnEnvironment(0, 0, 1, 1, 0, 1, "127.0.0.1", int(port), "run", 0)
    alone = rank_scenarios.train(lambda **_: Runtime(device), plain)["losses"]
    kinds = {
        "DDP": (DataParallelRuntime, DataParallelSettings()),
        "DDP, divided updates": (DataParallelRuntime, DataParallelSettings("bf16", divides_updates=True)),
        "CUDA graphs": (DataParallelRuntime, DataParallelSettings(exchanges_after=True)),
        "FSDP": (ShardedRuntime, DataParallelSettings()),
    }
    found = {}
    for (kind, make), file in zip(kinds.items(), files, strict=True):
        own = SignedStore(store, b"", "run").within(kind)
        with soon():
            losses = rank_scenarios.train(
                lambda make=make, own=own, **_: make[0](device, environment, own, make[1]), file
            )
        found[kind] = furthest(losses["losses"], alone)
    # the group that TrainingEngine counts its passes with
    most = torch.tensor(3)
    dist.all_reduce(most, dist.ReduceOp.MAX, dist.new_group(backend="gloo"))
    found["gloo beside NCCL"] = float(abs(most.item() - 3))
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
