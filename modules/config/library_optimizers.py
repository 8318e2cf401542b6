"""The optimizers of the package pytorch-optimizer that can be chosen by name, and their arguments."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LibraryOptimizer:
    """states: as in OptimizerFacts, rounded. finds_own_step, takes_float64: as there.

    splits: whether it treats matrices, convolutions included, otherwise than vectors and has to be told which are
    which. The vectors then train with its argument adamw_lr.
    """

    states: int
    finds_own_step: bool = False
    splits: bool = False
    takes_float64: bool = True


# Left out: what needs more than gradients (a closure, second derivatives, the model, the length of the run), draws
# random numbers of its own, goes on otherwise from saved state, averages weights, ignores the learning rate, trains
# only some weights, needs further facts about each, or keeps state that grows with the square of a layer's sides.
LIBRARY_OPTIMIZERS: dict[str, LibraryOptimizer] = {
    **dict.fromkeys(
        ("Amos", "Adalite", "Fromage", "PID", "RACS", "ROSE", "SCIONLight", "SGD", "SGDW"), LibraryOptimizer(0)
    ),
    **dict.fromkeys(
        (
            "AccSGD", "BCOS", "CAME", "FlashAdamW", "LARS", "Lion", "NovoGrad", "QHM", "RMSprop", "SCION", "SGDP",
            "SGDSaI", "SM3", "SignSGD", "Tiger",
        ),
        LibraryOptimizer(1),
    ),
    **dict.fromkeys(
        (
            "ADOPT", "AdaBelief", "AdaBound", "AdaDelta", "AdaGC", "AdaMax", "AdaNorm", "Adam", "AdamC", "AdamP",
            "AdamS", "AdamW", "AdamWSN", "Aida", "Ano", "AvaGrad", "DualAdam", "EXAdam", "FOCUS", "Grams", "Kate",
            "LaProp", "Lamb", "MSVAG", "NAdam", "PAdam", "PNM", "QHAdam", "RAdam", "SWATS", "SimplifiedAdEMAMix",
            "StableAdamW", "TAM", "Yogi",
        ),
        LibraryOptimizer(2),
    ),
    **dict.fromkeys(
        (
            "AdEMAMix", "AdaMod", "AdaTAM", "Adai", "AdamG", "DiffGrad", "GrokFastAdamW", "MARS", "Ranger", "VSGD",
        ),
        LibraryOptimizer(3),
    ),
    **dict.fromkeys(("AdaPNM", "AdaSmooth", "Adan"), LibraryOptimizer(4)),
    "FAdam": LibraryOptimizer(2, takes_float64=False),
    **dict.fromkeys(("AdaGO", "Muon", "MuonClip", "NorMuon"), LibraryOptimizer(1, splits=True)),
    "AdaMuon": LibraryOptimizer(2, splits=True),
    "DAdaptLion": LibraryOptimizer(2, finds_own_step=True),
    **dict.fromkeys(("DAdaptAdaGrad", "DAdaptAdam", "DAdaptSGD"), LibraryOptimizer(3, finds_own_step=True)),
    "Prodigy": LibraryOptimizer(4, finds_own_step=True),
    "DAdaptAdan": LibraryOptimizer(5, finds_own_step=True),
}  # fmt: skip
"""By the name of the class."""

SET_ELSEWHERE = {
    "lr": "optimizer.learning_rate",
    "weight_decay": "optimizer.weight_decay",
    "adamw_wd": "optimizer.weight_decay",
}


def read_arguments(text: str) -> dict[str, Any]:
    """The arguments in `text`, written as in a call: "betas=(0.9, 0.99), nesterov=True".

    Raises ValueError, with what is wrong and how they are written, for everything but named arguments with constants,
    and for those that are settings of their own.
    """
    rule = "write it as in betas=(0.9, 0.99), nesterov=True"
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        arguments = {keyword.arg or "**": ast.literal_eval(keyword.value) for keyword in call.keywords}
        if "**" in arguments:
            raise ValueError
    except (SyntaxError, ValueError):
        raise ValueError(f"it can't be read; {rule}") from None
    for name in arguments:
        if name in SET_ELSEWHERE:
            raise ValueError(f"{name} is {SET_ELSEWHERE[name]}; set that and leave it out here")
    return arguments
