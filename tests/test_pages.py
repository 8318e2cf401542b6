"""What the pages for users say is there: links, anchors, answers, commands, presets and settings."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from modules.config.describe import settings_by_path
from modules.config.explain import generic_path
from modules.config.presets import load_preset

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
FEW_WORDS = 6  # say less than there is to be seen
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
QUESTIONS = yaml.safe_load((ROOT / "tests" / "docs_questions.yaml").read_text(encoding="utf-8"))
SHORT_PAGES = ("README.md", "first_lora.md", "install.md", "troubleshooting.md")  # of docs
START_SCRIPTS = {"start-multi-gpu": "start_multi_gpu", "start-ui": "train_ui"}
PARSERS = ("parse", "_parse", "parse_args")
OF_THE_SYSTEM = {"git", "cd", "touch", "tail", "tmux", "bash", "export", "sbatch", "pip", "wandb", "mlflow"}


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def without_code(name: str) -> str:
    return re.sub(r"^[ ]*```.*?^[ ]*```$", "", text_of(name), flags=re.DOTALL | re.MULTILINE)


@cache
def sections(name: str) -> dict[str, str]:
    """Anchor, as GitHub makes it -> the text below that heading, up to the next one that is not deeper."""
    found: dict[str, str] = {}
    headings: list[tuple[int, str]] = []
    is_code = False
    for line in text_of(name).splitlines():
        is_code ^= line.lstrip().startswith("```")
        heading = None if is_code else re.match(r"(#+) (.+)", line)
        if heading is not None:
            title = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading[2]).strip().lower()
            anchor = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            twins = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other) is not None for other in found)
            anchor = f"{anchor}-{twins}" if twins else anchor
            headings = [(depth, other) for depth, other in headings if depth < len(heading[1])]
            headings.append((len(heading[1]), anchor))
            found[anchor] = ""
        for _, anchor in headings:
            found[anchor] += line + "\n"
    return found


def links(name: str) -> Iterator[tuple[str, str]]:
    """(file, anchor or "") of each link of a page that stays in the repository."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(name)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            resolved = (ROOT / name).parent / path if path else ROOT / name
            yield resolved.resolve().relative_to(ROOT.resolve()).as_posix(), anchor


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_to_a_file_and_its_anchor_to_a_heading(name):
    broken = []
    for target, anchor in links(name):
        exists = (ROOT / target).exists()
        if not exists or (anchor and anchor not in sections(target)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


def pictures(name: str) -> Iterator[tuple[str, str]]:
    """(file, alternative text) of each picture in a page; that of a `<source>` is said by the `<img>` beside it."""
    for alt, path in re.findall(r"!\[([^]]*)\]\(([^)\s]+)\)", without_code(name)):
        yield path, alt
    for block in re.findall(r"<picture>.*?</picture>", without_code(name), re.DOTALL):
        (alt,) = re.findall(r'alt="([^"]*)"', block)
        for path in re.findall(r'(?:src|srcset)="([^"]*)"', block):
            yield path, alt


def test_every_picture_is_on_a_page_and_says_what_is_to_be_seen():
    shown = {(ROOT / name).parent.joinpath(path).resolve(): alt for name in NAMES for path, alt in pictures(name)}
    assert {path.name for path in shown} == {path.name for path in IMAGES.iterdir()}
    assert {path.name for path in shown if path.parent != IMAGES} == set()
    assert {path.name: alt for path, alt in shown.items() if len(alt.split()) < FEW_WORDS} == {}


def test_every_picture_is_one_that_a_script_makes():
    from scripts.window_pictures import PICTURES

    # by train_flow_matching.py, benchmark_page.py, pictures/web_page.py, pictures/slider_strip.py
    others = {"video_demo", "ratios", "web_page", "slider_strip"}
    assert {path.stem for path in IMAGES.iterdir()} == {*PICTURES} | others


@pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: row["question"])
def test_a_question_is_answered_two_links_from_the_readme(row):
    name, _, anchor = row["at"].partition("#")
    answer = " ".join(sections(name)[anchor].split())
    assert [words for words in row["says"] if words.lower() not in answer.lower()] == []
    linked = {target for target, _ in links("README.md")}
    one_further = {target for page in linked if page.endswith(".md") for target, _ in links(page)}
    assert name in {"README.md", *linked, *one_further}


def test_every_page_is_in_the_index():
    assert {page.name for page in PAGES if page.parent.name == "docs"} - {"README.md"} <= {
        Path(target).name for target, _ in links("docs/README.md")
    }


@pytest.mark.parametrize("name", SHORT_PAGES)
def test_the_pages_for_the_start_stay_short(name):
    assert text_of(f"docs/{name}").count("\n") <= 150


# --- commands ---------------------------------------------------------------------------------------------------------


def commands(name: str) -> Iterator[list[str]]:
    """The words of each command in the page's code for bash, with what `$python` stands for."""
    for block in re.findall(r"^[ ]*```bash\n(.*?)^[ ]*```$", text_of(name), re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.replace("$python", ".venv/bin/python"), comments=True)
            for end in ("|", ">", "&&"):
                words = words[: words.index(end)] if end in words else words
            while words and re.match(r"\w+=", words[0]):
                words = words[1:]
            if words:
                yield words


def scripts_called(words: list[str]) -> tuple[str, list[str]] | None:
    """(module of scripts, its arguments) for a command of Chorus; None for one of the system."""
    program = Path(words[0]).name.removesuffix(".sh")
    if program in START_SCRIPTS:
        return START_SCRIPTS[program], words[1:]
    if program == "train_distributed":  # [NUM_GPUS|all] CONFIG [options of scripts/train.py]
        rest = words[2:] if re.fullmatch(r"\d+|all", words[1]) else words[1:]
        return "train", ["--config", *rest]
    if program == "train_multigpu":
        return "train_flow_matching", words[2:] if words[1].isdigit() else words[1:]
    scripts = [number for number, word in enumerate(words) if word.startswith("scripts/") and word.endswith(".py")]
    return (words[scripts[-1]][len("scripts/") : -len(".py")], words[scripts[-1] + 1 :]) if scripts else None


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_its_script_which_takes_its_options(name, capsys):
    refused = []
    for words in commands(name):
        called = scripts_called(words)
        if called is None:
            continue
        script, arguments = called
        assert (ROOT / "scripts" / f"{script}.py").is_file(), words
        module = importlib.import_module(f"scripts.{script.replace('/', '.')}")
        parse = next((vars(module)[name] for name in PARSERS if name in vars(module)), None)
        if parse is None:  # an example without options, or torchrun's
            continue
        try:
            parse(arguments)
        except SystemExit as error:
            if error.code:
                refused.append((" ".join(words), capsys.readouterr().err[-200:]))
    assert refused == []


@pytest.mark.parametrize("name", NAMES)
def test_commands_of_others_are_known_and_modules_are_installed(name):
    for words in commands(name):
        if scripts_called(words) is not None:
            continue
        program = Path(words[0]).name
        if program == "python" and words[1] == "-m":
            assert importlib.util.find_spec(words[2]) is not None, words
        elif words[0].startswith("./"):
            assert (ROOT / words[0]).is_file(), words
        elif program != "python":  # a program of the reader's own
            assert program in OF_THE_SYSTEM, words


@pytest.mark.parametrize("name", NAMES)
def test_settings_and_presets_that_commands_name_are_there(name):
    for words in commands(name):
        if scripts_called(words) is None:
            continue
        pairs = [*pairwise(words), *(tuple(word.split("=", 1)) for word in words if "=" in word)]
        for option, value in pairs:
            if option == "--preset":
                load_preset(value)
            elif option == "--set":
                assert generic_path(value.partition("=")[0]) in settings_by_path(), words


@pytest.mark.parametrize("name", ["README.md", "troubleshooting.md"])
def test_presets_for_a_size_of_memory_that_a_page_names_are_offered(name):
    text = text_of(name if name == "README.md" else f"docs/{name}")
    named = re.findall(r"`([a-z0-9_]+-[a-z-]+-\d+gb)`", text)
    assert named
    for preset in named:
        load_preset(preset)


@pytest.mark.parametrize("name", [*SHORT_PAGES[1:], "window.md"])
def test_what_a_page_names_in_italics_is_in_the_window(name):
    """Labels of settings, tabs, buttons and cards, as they are written in the code."""
    sources = [*(ROOT / "modules" / "ui").rglob("*.py"), *(ROOT / "modules" / "config").rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    named = set(re.findall(r"(?<![*\w])\*([A-Za-z][^*\n|]+?)\*(?!\*)", without_code(f"docs/{name}")))
    elsewhere = {"italics", "not", "pip", "tcl/tk", "Load LoRA"}
    missing = [label for label in named - elsewhere if f'"{label}' not in code and f'"{label.lower()}"' not in code]
    assert missing == []


def test_settings_in_the_readme_are_those_of_a_settings_file():
    from modules.config.files import config_from_values

    (block,) = re.findall(r"```yaml\n(.*?)```", text_of("README.md"), re.DOTALL)
    assert config_from_values(yaml.safe_load(block)).sampling.every == 200
