"""How many tokens captions have, and where a family stops reading them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from modules.config.errors import UserError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from modules.families.Family import Family


class Reading(NamedTuple):
    """How a text encoder reads captions. limit: the tokens of a caption that it reads, None if that is not known.

    is_exact: False if the family puts captions into an instruction, whose tokens may count toward the limit.
    """

    tokenizer: PreTrainedTokenizerBase
    limit: int | None
    is_exact: bool


def longest_reading(family: Family, folder: Path) -> Reading:
    """Of the family's text encoder that reads most of a caption: what is beyond its limit has no effect.

    family: with the chunks of the run. folder: of a model in diffusers' format, of which only tokenizers are read; code
    in it is not run. Raises UserError if none can be loaded.
    """
    from transformers import AutoTokenizer

    readings, problem = [], f"{folder} has none"
    lengths = _lengths(family)
    for number, name in enumerate(family.text.tokenizers):
        if not (folder / name).is_dir():
            continue  # as of a Stable Diffusion 3 without its T5
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder / name, trust_remote_code=False, local_files_only=True)
        except Exception as error:  # the library raises anything for files that are damaged or of another kind
            problem = f"{folder / name}: {first_line(error)}"
            continue
        readings.append(_reading(tokenizer, lengths[min(number, len(lengths) - 1)], family.text.chunks))
    if not readings:
        raise UserError(f"The tokenizer of {family.label} can't be loaded ({problem}).")
    return max(readings, key=lambda one: float("inf") if one.limit is None else one.limit)


def count_tokens(reading: Reading, text: str) -> tuple[int, int | None]:
    """The tokens of a caption without start and end, and where in it the first one begins that is not read.

    The latter is None if all are, or if the tokenizer can't tell.
    """
    tokenizer = reading.tokenizer
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=tokenizer.is_fast, verbose=False)
    count = len(encoded["input_ids"])
    if reading.limit is None or count <= reading.limit or not tokenizer.is_fast:
        return count, None
    return count, encoded["offset_mapping"][reading.limit][0]


def _lengths(family: Family) -> list[int | None]:
    """The longest sequence of each call of `encode_prompt`, with special tokens."""
    calls = [family.text.options, *(options for options, _ in family.text.further_calls)]
    return [options.get("max_sequence_length") for options in calls]


def _reading(tokenizer: Any, length: int | None, chunks: int) -> Reading:
    num_special = tokenizer.num_special_tokens_to_add()
    if type(tokenizer).__name__.startswith("CLIPTokenizer"):  # which pipelines cut at what its positions allow
        return Reading(tokenizer, (tokenizer.model_max_length - num_special) * chunks, True)
    return Reading(tokenizer, length and length - num_special, not tokenizer.chat_template)
