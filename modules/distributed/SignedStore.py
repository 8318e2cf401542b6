"""What Chorus itself writes to the ranks' store and reads from it: JSON with a signature."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from modules.distributed.errors import RanksError
from modules.session.run_token import is_signed, sign

if TYPE_CHECKING:
    from torch.distributed import Store

ABSENT: Any = object()

_SIGNATURE_CHARS = 64
_MAX_TRIES = 100
_POLL_SECONDS = 0.02


class SignedStore:
    """Plain data in `store`, signed with `key` together with the place it is for. Any thread may use it.

    A value with another signature, which someone else has written or copied from another place, is as if it were not
    there. So others who reach the store can hide values, but not change them. With an empty key the signature is only a
    checksum.
    name: of what the store is for, such as the run. `store` itself must have the corresponding prefix.
    """

    def __init__(self, store: Store, key: bytes, name: str):
        self._store, self._key, self._name = store, key, name

    def within(self, prefix: str) -> SignedStore:
        """This store for keys below `prefix`."""
        return SignedStore(dist.PrefixStore(prefix, self._store), self._key, f"{self._name}/{prefix}")

    def signed_with(self, key: bytes) -> SignedStore:
        """This store with another key. What one has written, the other does not find."""
        return SignedStore(self._store, key, self._name)

    def set(self, key: str, value: Any) -> None:
        """Raises ValueError and TypeError for what JSON can't hold."""
        self._store.set(key, self._signed(key, value))

    def read(self, key: str, default: Any = None) -> Any:
        """The value; `default` if there is none that is signed with this key."""
        if not self._store.check([key]):
            return default
        return self._verified(key, self._store.get(key), default)

    def has(self, key: str) -> bool:
        return self.read(key, ABSENT) is not ABSENT

    def are_set(self, keys: list[str]) -> bool:
        """Whether there is a value for each key, whoever has written it: one question to the store."""
        return self._store.check(keys)

    def is_foreign(self, key: str) -> bool:
        """Whether there is a value that is not signed with this key."""
        return self._store.check([key]) and not self.has(key)

    def wait_for(self, key: str, limit_seconds: float) -> Any:
        """The value, as soon as it is there. Raises RanksError if that takes longer than `limit_seconds`."""
        deadline = time.monotonic() + limit_seconds
        while (value := self.read(key, ABSENT)) is ABSENT:
            if time.monotonic() > deadline:
                raise RanksError(
                    f"The ranks' store has no signed value for {key!r} after {limit_seconds:g} s: see the logs of the "
                    "other ranks; if they are fine, someone else writes to the store."
                )
            time.sleep(_POLL_SECONDS)
        return value

    def agree(self, key: str, value: Any) -> Any:
        """The value of the first rank that called this for `key`."""
        own, expected = self._signed(key, value), b""
        for _ in range(_MAX_TRIES):
            found = self._store.compare_set(key, expected, own)  # type: ignore[arg-type] # it takes bytes, too
            agreed = self._verified(key, found, ABSENT)
            if agreed is not ABSENT:
                return agreed
            expected = found  # not from a rank: to be replaced
        raise RanksError("Someone else keeps writing to the ranks' store: keep others from reaching its port.")

    def delete(self, key: str) -> None:
        self._store.delete_key(key)

    def _signed(self, key: str, value: Any) -> str:
        text = json.dumps(value)
        return self._signature(key, text.encode()) + text

    def _verified(self, key: str, found: bytes, default: Any) -> Any:
        signature, text = found[:_SIGNATURE_CHARS], found[_SIGNATURE_CHARS:]
        if not is_signed(signature, self._key, self._name.encode(), key.encode(), text):
            return default
        try:
            return json.loads(text)
        except (ValueError, RecursionError):  # only with an empty key, which others have, too
            return default

    def _signature(self, key: str, text: bytes) -> str:
        return sign(self._key, self._name.encode(), key.encode(), text)
