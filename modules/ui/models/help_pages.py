"""Which page of the documentation belongs to which tab. No Tk."""

from __future__ import annotations

from pathlib import Path

from modules.config.installation import ROOT, docs_page

PAGES = {
    "home": docs_page("first_lora"),
    "general": docs_page("run_folder"),
    "model": docs_page("families"),
    "dataset": docs_page("first_lora"),
    "training": docs_page("methods"),
    "multi-GPU": docs_page("multi_gpu"),
    "sampling": docs_page("first_lora"),
    "backup": docs_page("run_folder"),
    "tools": docs_page("troubleshooting"),
    "queue": docs_page("queue"),
    "monitor": docs_page("troubleshooting"),
}
"""Tab -> its page, from the folder of Chorus."""


def help_page(tab: str) -> Path:
    """The file of the page about a tab; it ships with Chorus, so it opens without a network."""
    return ROOT / PAGES[tab]
