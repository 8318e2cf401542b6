"""A plain copy of a module that is about to be sharded, for saving the module later."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from torch import nn

from modules.distributed.shards import full_tensor

if TYPE_CHECKING:
    from torch import Tensor


class FullCopy:
    """The structure of `module` without its weights. Create it before sharding, which forbids to copy the module."""

    def __init__(self, module: nn.Module):
        self._module = module
        # deepcopy uses the entries of its memo instead of copying
        self._structure = copy.deepcopy(module, {id(param): _on_meta(param) for param in module.parameters()})

    def gathered(self, with_frozen: bool, keeps: bool) -> nn.Module | None:
        """A copy on the CPU with the current weights and buffers, gathered a tensor at a time. All ranks must call it.

        with_frozen: else frozen parameters stay without values, on the meta device. keeps: whether this rank wants the
        copy; the others get None.
        """
        params: dict[Tensor, nn.Parameter] = {}
        for param in self._module.parameters():
            if param.requires_grad or with_frozen:
                full = full_tensor(param.detach())
                if keeps:
                    params[param] = nn.Parameter(full.cpu(), requires_grad=param.requires_grad)
        if not keeps:
            return None
        memo: dict[int, Tensor] = {}
        for name, param in self._module.named_parameters(remove_duplicate=False):
            empty = self._structure.get_parameter(name)
            memo[id(empty)] = params.get(param, empty)
        buffers = zip(self._module.buffers(), self._structure.buffers(), strict=True)
        memo |= {id(old): buffer.detach().to("cpu", copy=True) for buffer, old in buffers}
        return copy.deepcopy(self._structure, memo)


def _on_meta(param: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
