"""resources/families.json, which the window reads in place of the families."""

from modules.config.families import load_families
from modules.families.registry import FAMILIES
from scripts.families_reference import FILE, families_text
from tests.support.small_inputs import real_inputs


def test_the_file_says_what_the_families_say():
    with real_inputs():
        assert FILE.read_text(encoding="utf-8") == families_text(), "run python scripts/families_reference.py --write"


def test_the_window_reads_every_family():
    assert list(load_families()) == list(FAMILIES)
    assert load_families()["sdxl"].text_encoders == FAMILIES["sdxl"].text.encoders
