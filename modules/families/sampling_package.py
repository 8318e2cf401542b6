"""Packages without which a family only trains, because its license asks for them where images are made."""

from __future__ import annotations

from importlib.util import find_spec

from modules.config.errors import UserError


class SampleRefused(UserError):
    """A sample that a guardrail does not let through."""


def sampling_package_problem(package: str, label: str) -> str:
    """Why a family can't sample here, as one sentence with the remedy; "" if it can. Imports nothing.

    package: as in Family. label: of the family.
    """
    if not package or find_spec(package) is not None:
        return ""
    return (
        f"{label} makes samples only with the package {package}, which its license asks for and which is not installed "
        f"here: run `pip install {package}`, or train without samples."
    )


def check_sampling_package(package: str, label: str) -> None:
    """Raises UserError if a family can't sample here. package, label: as in `sampling_package_problem`."""
    if problem := sampling_package_problem(package, label):
        raise UserError(problem)
