"""How often something happens, counted in another program's steps, epochs or time."""

from __future__ import annotations

from modules.importers.Translation import Translation


def optimizer_steps(batches: float, accumulation: int) -> int:
    """So many batches as optimizer steps, of `accumulation` batches each; at least one."""
    return max(1, round(batches / max(1, accumulation)))


def take_interval(
    translation: Translation, section: str, every: float, unit: str, names: tuple[str, ...], why: str = ""
) -> None:
    """Set SECTION.every and SECTION.unit. unit: "never", "steps", "minutes" or "epochs"."""
    if every <= 0:
        unit = "never"
    translation.take(f"{section}.unit", unit, *names, why=why)
    if unit != "never":
        translation.take(f"{section}.every", float(every), *names, why=why)
