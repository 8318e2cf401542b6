"""How the ranks meet in their store: they agree on the run, and on a key that signs what they say from then on."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from modules.config.counted import counted
from modules.distributed.errors import RanksError, not_joined, started_twice
from modules.distributed.node_secret import node_secret
from modules.distributed.SignedStore import SignedStore
from modules.session.run_token import TOKEN_VARIABLE, sign, token_of

if TYPE_CHECKING:
    from torch.distributed import Store

    from modules.distributed.environments import RankEnvironment
    from modules.machine.backend import Backend

REFUSAL_SECONDS = 0.5  # for the other ranks to read why joining failed
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Meeting:
    """store: signed with a key of this run. key: that key. ranks: what each rank says of itself, in rank order.

    has_secret: whether only the ranks know the key; otherwise, whoever reaches the store can forge what they say.
    """

    store: SignedStore
    key: bytes
    ranks: list[dict[str, Any]]
    has_secret: bool


def torch_version() -> str:
    return torch.__version__.split("+")[0]


def meet(store: Store, environment: RankEnvironment, device: torch.device, backend: Backend, seconds: float) -> Meeting:
    """Waits for all ranks and checks that they agree on the run. Raises RanksError; UserError for a bad token.

    store: below the prefix `environment.run_id`. The key is made of the token and of a random number of each rank, so
    that nothing recorded in an earlier run with the same token is valid in this one. Without a token, the ranks of a
    single machine share a secret through a file.
    """
    token = token_of()
    with contextlib.ExitStack() as stack:
        if not token and environment.num_nodes == 1:
            unsigned = SignedStore(store, b"", environment.run_id)
            token = stack.enter_context(node_secret(unsigned, environment, seconds))
        joining = SignedStore(store, token, environment.run_id)
        _check_run(joining, environment, backend)
        ranks = _introduce(joining, environment, device, seconds)
    key = sign(token, *(rank["nonce"].encode() for rank in ranks)).encode()
    return Meeting(joining.signed_with(key), key, ranks, bool(token))


def _check_run(store: SignedStore, environment: RankEnvironment, backend: Backend) -> None:
    """Raises RanksError if this rank is part of another run than those that came before it."""
    rank, world_size = environment.rank, environment.world_size
    agreed = store.agree("world_size", world_size)
    if agreed != world_size:
        _refuse(
            store,
            f"Rank {rank} was started for {counted(world_size, 'rank')} and others for {agreed}: start every machine "
            "with the same world_size and num_nodes.",
        )
    agreed = store.agree("backend", backend)
    if agreed != backend:
        _refuse(
            store,
            f"Rank {rank} would use {backend} and others {agreed}: set distributed_backend to gloo, or check why its "
            "machine has different devices.",
        )
    own = secrets.token_hex(16)
    if store.agree(f"claimed/{rank}", own) != own:
        raise started_twice(rank)


def _introduce(
    store: SignedStore, environment: RankEnvironment, device: torch.device, seconds: float
) -> list[dict[str, Any]]:
    """Says who this rank is, and waits until all others have done so."""
    world_size = environment.world_size
    memory = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    facts = {"host": socket.gethostname(), "device": str(device), "torch": torch_version(), "memory_bytes": memory}
    store.set(f"rank/{environment.rank}", {**facts, "nonce": secrets.token_hex(16)})
    ranks: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + seconds
    while True:
        for rank in range(world_size):
            if rank not in ranks and (found := store.read(f"rank/{rank}")) is not None:
                ranks[rank] = found
        if len(ranks) == world_size:
            return [ranks[rank] for rank in range(world_size)]
        if refusal := store.read("unfit"):
            raise RanksError(refusal)
        missing = [rank for rank in range(world_size) if rank not in ranks]
        if foreign := [rank for rank in missing if store.is_foreign(f"rank/{rank}")]:
            raise RanksError(
                f"Rank {foreign[0]} does not have the token of rank {environment.rank}, or someone else writes to the "
                f"store: give all machines the same {TOKEN_VARIABLE}, from the same file."
            )
        if time.monotonic() > deadline:
            raise not_joined(missing, world_size, seconds)
        time.sleep(POLL_SECONDS)


def _refuse(store: SignedStore, text: str) -> NoReturn:
    """Makes joining fail on all ranks, which would otherwise wait for this one."""
    store.set("unfit", text)
    time.sleep(REFUSAL_SECONDS)  # the store may end with this process, and the others must read it first
    raise RanksError(text)
