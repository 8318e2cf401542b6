"""What other programs call the kernels for attention, as `model.attention`."""

from __future__ import annotations

from modules.config.attentions import ATTENTIONS, package_problem, without_gradients
from modules.importers.Translation import Translation

OF_PYTORCH = "PyTorch's attention, which gives the same results"
# Their names, in lower case and without signs between words -> ours; all others are PyTorch's.
NAMES = {
    **dict.fromkeys(("xformers", "diffusersxformers", "enablexformersmemoryefficientattention"), "xformers"),
    **dict.fromkeys(("flash", "flashattn", "useflashattn", "flashattn2", "flashattention2"), "flash"),
    **dict.fromkeys(("flash3", "flashattn3", "flashattention3"), "flash3"),
    **dict.fromkeys(("flex", "flexattention"), "flex"),
    **dict.fromkeys(("cudnn", "nativecudnn"), "cudnn"),
}
PLAIN = ("sdpa", "sdp", "torch", "native", "diffusers", "auto")  # PyTorch's, by its own name


def take_attention(t: Translation, word: str, *names: str) -> None:
    """Takes the kernels that a word means. names: the settings that say so.

    Kernels whose package is missing here are not taken, because a run would be refused for what changes no result.
    """
    plain = "".join(filter(str.isalnum, word.lower())).removesuffix("hub")
    value, why = NAMES.get(plain, "auto"), ""
    if without_gradients(word.lower()) or plain.startswith(("sage", "usesage")):
        why = "PyTorch's attention, because SageAttention has no backward pass and can't train"
    elif value in ATTENTIONS and (problem := package_problem(ATTENTIONS[value])):
        why = f"{OF_PYTORCH}; {value} {problem}, and set model.attention"
        value = "auto"
    elif value == "auto" and plain not in PLAIN:
        why = OF_PYTORCH
    t.take("model.attention", value, *names, why=why)


def take_switched_attention(t: Translation, *names: str) -> None:
    """The same of a program that has a switch for each; the first that is on counts."""
    chosen = [name for name in names if t.is_given(name) and t[name]]
    if chosen:
        take_attention(t, chosen[0], chosen[0])
    for name in chosen[1:]:
        t.leave(f"{chosen[0]} is on, too, and is what is taken", name)
