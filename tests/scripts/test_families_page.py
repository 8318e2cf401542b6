"""docs/families.md and the list in README.md, which are made from the families."""

from dataclasses import replace
from pathlib import Path

from modules.families.registry import FAMILIES
from scripts.families_page import PAGE, README, families_page, with_families
from tests.support.small_inputs import real_inputs

FOLDER = Path(__file__).resolve().parents[2] / "modules" / "families"
DECLARED = [path for path in FOLDER.glob("*.py") if '\n    label="' in path.read_text(encoding="utf-8")]


def test_the_page_and_the_list_are_up_to_date():
    readme = README.read_text(encoding="utf-8")
    with real_inputs():
        assert PAGE.read_text(encoding="utf-8") == families_page(FAMILIES.values()), "run scripts/generate.py --write"
        assert readme == with_families(readme, FAMILIES.values()), "run scripts/generate.py --write"


def test_every_family_has_one_row():
    page = PAGE.read_text(encoding="utf-8")
    for family in FAMILIES.values():
        assert page.count(f"\n| {family.label} | `{family.name}` |") == 1, family.name


def test_the_page_has_what_a_family_says_of_itself_and_families_with_the_same_remarks_share_them():
    says = {
        "remarks": "Write\n    long captions.",
        "distilled": {"Quick": "the slow one"},
    }
    first = replace(next(iter(FAMILIES.values())), name="made_up", label="Made up", **says)
    page = families_page([first, replace(first, name="made_up2", label="Made up 2")])
    assert "\n- **Made up; Made up 2.** Write long captions.\n" in page
    assert page.count("\n| Quick | the slow one |\n") == 1


def test_files_that_declare_families_have_at_most_120_lines():
    texts = "".join(path.read_text(encoding="utf-8") for path in DECLARED)
    assert [family.name for family in FAMILIES.values() if f'\n    label="{family.label}"' not in texts] == []
    assert [path.name for path in DECLARED if len(path.read_text(encoding="utf-8").splitlines()) > 120] == []
