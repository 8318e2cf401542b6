"""Edits captions and tags of a dataset: python scripts/edit_captions.py add FOLDER "blue sky" --write"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

if __name__ == "__main__":  # before the imports that take long
    from scripts.terminal import prepare_terminal

    prepare_terminal()

from modules.config.ConceptConfig import ConceptConfig
from modules.config.counted import counted
from modules.config.errors import UserError
from modules.config.files import apply_overrides, config_from_values, load_values
from modules.config.installation import command_name
from modules.config.visible_text import visible_line
from modules.curation import tag_edits
from modules.curation.CaptionFiles import CaptionFiles
from modules.curation.FileChanges import ChangedOutside
from modules.curation.Journal import Journal
from modules.curation.tag_edits import Preview, Texts
from modules.curation.TagIndex import TagIndex
from modules.data.concepts import scan
from modules.session.printing import print_line, print_text
from modules.session.program_end import end_program
from scripts.terminal import escape_unprintable, show

LISTED = 10  # captions in a preview
NOT_WRITTEN = "Nothing was written: add --write for that."


class Captions(NamedTuple):
    """Those of one concept. texts: image -> caption, of the chosen images whose captions can be edited."""

    concept: ConceptConfig
    files: CaptionFiles
    texts: Texts


EDITS: dict[str, Callable[[Texts, ConceptConfig, argparse.Namespace], Preview]] = {
    "add": lambda texts, concept, args: tag_edits.add_tags(texts, args.tags, concept, "front" if args.front else "end"),
    "remove": lambda texts, concept, args: tag_edits.remove_tags(texts, args.tags, concept),
    "replace": lambda texts, concept, args: tag_edits.replace_tag(texts, args.old, args.new, concept),
    "move": lambda texts, concept, args: tag_edits.move_to_front(texts, args.tags, concept),
    "sort": lambda texts, concept, args: tag_edits.sort_tags(
        texts, concept, index_of(texts, concept).counts if args.by_count else None
    ),
    "tidy": lambda texts, concept, args: tag_edits.in_turn(
        texts, concept, tag_edits.deduplicate_tags, *([] if args.duplicates_only else [tag_edits.tidy_tags])
    ),
    "trigger": lambda texts, concept, args: tag_edits.add_trigger(texts, args.word, concept, as_tag=not args.sentence),
    "find": lambda texts, concept, args: tag_edits.find_and_replace(
        texts,
        args.find,
        args.replacement,
        concept,
        is_regex=args.regex,
        ignore_case=args.ignore_case,
        whole_words=args.words,
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Returns 0, or 2 if something can't be read or written."""
    args = parse(argv)
    escape_unprintable()
    try:
        show("\n".join(map(visible_line, args.run(args))))
    except ChangedOutside as error:
        choice = " Add --outside keep or --outside overwrite." if "outside" in args else ""
        print_text(f"{error}{choice}", sys.stderr)
        return 2
    except UserError as error:
        print_text(error, sys.stderr)
        return 2
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=command_name("edit_captions"),
        description="Edit captions and tags of a dataset. A command only shows what it would change, until --write is "
        "added. What was written can be undone, here and in the window.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    def add(name: str, run: Callable[[argparse.Namespace], list[str]], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        command.add_argument(
            "folder", metavar="FOLDER", help="folder of images, or the settings of a run (YAML or JSON)"
        )
        return command

    tags = add("tags", list_tags, "List the tags with the number of images that have them.")
    tags.add_argument("--misspelled", action="store_true", help="only rare ones that look like frequent ones")
    add_choice_of_images(tags)
    add_edits(partial(add, run=run_edit))
    for name, text in {"undo": "Take back the newest change.", "redo": "Make again what was taken back."}.items():
        command = add(name, run_step, text)
        command.add_argument(
            "--outside",
            choices=("ask", "keep", "overwrite"),
            default="ask",
            help="what becomes of files that another program has changed since",
        )
    return parser.parse_args(argv)


def add_edits(add: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands of EDITS."""
    command = add("add", text="Add tags to the captions that lack them.")
    command.add_argument("tags", metavar="TAG", nargs="+")
    command.add_argument("--front", action="store_true", help="at the front instead of the end")
    add_common(command)
    for name, text in {"remove": "Remove tags.", "move": "Move tags to the front of captions that have them."}.items():
        command = add(name, text=text)
        command.add_argument("tags", metavar="TAG", nargs="+")
        add_common(command)
    command = add("replace", text="Put one tag in the place of another.")
    command.add_argument("old", metavar="TAG")
    command.add_argument("new", metavar="NEW")
    add_common(command)
    command = add("sort", text="Sort the tags of each caption by name.")
    command.add_argument("--by-count", action="store_true", help="the most frequent tags first")
    add_common(command)
    command = add("tidy", text="Write each tag once, with one separator and one blank between tags.")
    command.add_argument("--duplicates-only", action="store_true", help="remove tags that are there twice, no more")
    add_common(command)
    command = add("trigger", text="Put a trigger word into all captions that do not contain it.")
    command.add_argument("word", metavar="WORD")
    command.add_argument("--sentence", action="store_true", help="as a word of a sentence, without the tag separator")
    add_common(command)
    command = add("find", text="Find a text anywhere in captions and replace it.")
    command.add_argument("find", metavar="TEXT")
    command.add_argument("replacement", metavar="REPLACEMENT")
    command.add_argument("--regex", action="store_true", help="TEXT is a regular expression of Python")
    command.add_argument("--ignore-case", action="store_true", help="find upper and lower case alike")
    command.add_argument("--words", action="store_true", help="find whole words only")
    add_common(command)


def add_common(command: argparse.ArgumentParser) -> None:
    add_choice_of_images(command)
    command.add_argument("--all", action="store_true", help=f"show all captions that change, not only {LISTED}")
    command.add_argument("--write", action="store_true", help="write the captions")


def add_choice_of_images(command: argparse.ArgumentParser) -> None:
    command.add_argument("--with-tag", metavar="TAG", default="", help="only images that have this tag")
    command.add_argument("--include", metavar="PATTERN", default="", help="only these images, such as people/*")
    command.add_argument(
        "--set", metavar="PATH=VALUE", action="append", default=[], help="a setting, such as concepts.0.tag_separator=;"
    )


def list_tags(args: argparse.Namespace) -> list[str]:
    lines = []
    for captions in read_captions(args):
        index = index_of(captions.texts, captions.concept)
        lines.append(f"{captions.concept.path}: {counted(len(captions.texts), 'image')}")
        if args.misspelled:
            found = index.misspellings()
            lines += [f"{one.tag.count:>7,}  {one.tag.tag} -> {one.meant.tag} ({one.meant.count:,})?" for one in found]
        else:
            lines += [f"{one.count:>7,}  {one.tag}" for one in index.all()]
    return lines


def run_edit(args: argparse.Namespace) -> list[str]:
    """Shows what an edit changes, and writes it if that is wanted."""
    lines: list[str] = []
    previews = []
    for captions in read_captions(args):
        if captions.files.why_read_only:
            raise UserError(captions.files.why_read_only)
        preview = EDITS[args.command](captions.texts, captions.concept, args)
        previews.append((captions, preview))
        lines += preview_lines(preview, args.all)
        total = counted(len(captions.texts), "caption")
        done = "changed" if args.write else "would change"
        lines.append(f"{captions.concept.path}: {len(preview):,} of {total} {done}.")
    if not args.write:
        return [*lines, NOT_WRITTEN]
    for captions, preview in previews:
        journal = Journal(captions.concept.path)
        label = f"{args.command.capitalize()} in {counted(len(preview), 'caption')}"
        captions.files.write(journal, label, tag_edits.edited_texts(preview))
        tell(journal)
    return [*lines, f"Written. {command_name('edit_captions')} undo takes it back."]


def preview_lines(preview: Preview, shows_all: bool) -> list[str]:
    """What stands in each caption before and after an edit."""
    lines: list[str] = []
    for path, edit in list(preview.items())[: None if shows_all else LISTED]:
        marked = (f"{mark} {line}" for mark, text in zip("-+", edit, strict=True) for line in text.split("\n"))
        lines += [path, *marked]
    if len(preview) > LISTED and not shows_all:
        lines.append(f"... and {len(preview) - LISTED:,} more, which --all shows")
    return lines


def run_step(args: argparse.Namespace) -> list[str]:
    """Undo or redo, in each folder."""
    lines = []
    for folder in dict.fromkeys(concept.path for concept in read_concepts(args)):
        journal = Journal(folder)
        tell(journal)  # before the next line opens it again, and forgets
        done = journal.undo(args.outside) if args.command == "undo" else journal.redo(args.outside)
        tell(journal)
        lines.append(f"{folder}: {args.command} of {done.label!r}: {counted(len(done.paths), 'file')} written.")
    return lines


def read_captions(args: argparse.Namespace) -> list[Captions]:
    """The captions of the chosen images. Those that can't be edited are told on stderr."""
    found = []
    for number, concept in enumerate(read_concepts(args)):
        tell(Journal(concept.path))  # which finishes a change that was cut off, so that its captions are read
        files = CaptionFiles(concept, f"concepts.{number}")
        read = {path: files.read(path) for path in scan([concept], videos=True).paths}
        for problem in dict.fromkeys(caption.problem for caption in read.values() if caption.problem):
            print_line(problem, sys.stderr)
        texts = {path: caption.text for path, caption in read.items() if caption.can_edit}
        if args.with_tag:
            chosen = index_of(texts, concept).images_with(args.with_tag)
            texts = {path: text for path, text in texts.items() if path in chosen}
        found.append(Captions(concept, files, texts))
    return found


def read_concepts(args: argparse.Namespace) -> list[ConceptConfig]:
    """The enabled concepts. Raises UserError."""
    if not os.path.exists(args.folder):
        raise UserError(f"{args.folder} does not exist: name a folder of images, or the settings of a run.")
    is_folder = os.path.isdir(args.folder)
    values = {"concepts": [{"path": args.folder}]} if is_folder else load_values(args.folder)
    config = config_from_values(apply_overrides(values, getattr(args, "set", [])), source=args.folder)
    concepts = [concept for concept in config.concepts if concept.enabled]
    include = getattr(args, "include", "")
    return [replace(concept, include=include) for concept in concepts] if include else concepts


def index_of(texts: Texts, concept: ConceptConfig) -> TagIndex:
    index = TagIndex(concept)
    for path, text in texts.items():
        index.put(path, text)
    return index


def tell(journal: Journal) -> None:
    """Says what a process that was killed had left to finish."""
    if journal.finished:
        print_line(journal.finished, sys.stderr)


if __name__ == "__main__":
    end_program(main)
