"""Chooses the blocks of a model: the parts whose weights are gathered, or whose activations are computed again, one at
a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torch import nn

from modules.config.errors import UserError

LARGEST_SHARE, SMALLEST_SHARE = 0.1, 0.001  # of the bytes of all weights

# which use the weights of the modules in them without calling these
_CALLED_AS_A_WHOLE = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
_NAMED = 5  # classes in a message


def choose_blocks(model: nn.Module, classes: Sequence[type[nn.Module]] | None) -> list[nn.Module]:
    """The blocks in `model`, inner ones first: its modules of these classes.

    With None, the outermost modules with at most LARGEST_SHARE of the weights; larger ones if they can't be divided,
    because they have weights of their own or no modules; none with less than SMALLEST_SHARE. Modules that can't be
    called, such as lists, are none.
    Never one that shares a weight with a module outside of it: the weight would be in two places.
    Raises UserError if there is no module of these classes.
    """
    if classes is None:
        return _apart(model, list(_by_size(model)))
    found = [part for part in model.modules() if part is not model and isinstance(part, tuple(classes))]
    blocks = [part for part in reversed(found) if _num_bytes(part) and can_be_called(part)]
    for kind in classes:
        if not any(isinstance(block, kind) for block in blocks):
            raise UserError(
                f"shard_blocks: the model has no {kind.__name__} with weights in it; choose among its "
                f"{_largest_classes(model)}."
            )
    return _apart(model, blocks)


def can_be_called(module: nn.Module) -> bool:
    """Whether it has a forward of its own, unlike lists of modules."""
    return type(module).forward is not nn.Module.forward


def _by_size(model: nn.Module) -> Iterator[nn.Module]:
    total = _num_bytes(model)
    stack = list(model.children())
    found = []
    while stack:
        module = stack.pop()
        if _num_bytes(module) < SMALLEST_SHARE * total:
            continue
        if can_be_called(module) and (_num_bytes(module) <= LARGEST_SHARE * total or _is_one(module)):
            found.append(module)
        else:
            stack += module.children()
    yield from dict.fromkeys(found)  # a module may be in several places


def _is_one(module: nn.Module) -> bool:
    has_own = any(True for _ in module.parameters(recurse=False))
    return has_own or isinstance(module, _CALLED_AS_A_WHOLE) or not any(map(_num_bytes, module.children()))


def _apart(model: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    owners: dict[nn.Parameter, set[nn.Module]] = {}
    for module in model.modules():
        for param in module.parameters(recurse=False):
            owners.setdefault(param, set()).add(module)
    return [block for block in blocks if not _shares_outside(block, owners)]


def _shares_outside(block: nn.Module, owners: dict[nn.Parameter, set[nn.Module]]) -> bool:
    inside = set(block.modules())
    return any(owners[param] - inside for param in block.parameters())


def _num_bytes(module: nn.Module) -> int:
    return sum(param.numel() * param.element_size() for param in module.parameters())


def _largest_classes(model: nn.Module) -> str:
    """The names of the classes that most of the weights are in, apart from torch's own."""
    sizes: Counter[str] = Counter()
    for part in model.modules():
        if part is not model and can_be_called(part):
            sizes[type(part).__name__] += _num_bytes(part)
    return ", ".join(name for name, size in sizes.most_common(_NAMED) if size) or "modules"
