"""Tokens are those that training reads; without the base model words are counted, and it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.config.ModelConfig import ModelConfig
from modules.curation.TokenCounts import TokenCount, TokenCounts
from modules.families.registry import FAMILIES
from modules.weights.caption_tokens import count_tokens, longest_reading
from tests.support.tiny_models.parts import clip_tokenizer, qwen_tokenizer, t5_tokenizer

LONG = "a cat, " * 200


@pytest.fixture
def folder(tmp_path) -> Path:
    """A model of which only the tokenizers are there: CLIP's and that of a T5."""
    clip_tokenizer().save_pretrained(tmp_path / "tokenizer")
    t5_tokenizer().save_pretrained(tmp_path / "tokenizer_2")
    return tmp_path


@pytest.mark.parametrize("family", ["sd15", "flux1"])
def test_a_caption_is_cut_off_where_the_pipeline_cuts_it(family, folder):
    # test_conformance compares the option with the pipeline's own, and shortens it for other tests
    length = FAMILIES[family].text.options.get("max_sequence_length", 77)
    reading = longest_reading(FAMILIES[family], folder)
    count, cut_at = count_tokens(reading, LONG)

    def read_by_the_pipeline(caption: str) -> list[int]:
        return reading.tokenizer(caption, padding="max_length", truncation=True, max_length=length).input_ids

    assert count > reading.limit
    assert read_by_the_pipeline(LONG[:cut_at]) == read_by_the_pipeline(LONG)
    assert read_by_the_pipeline(LONG[: cut_at - 3]) != read_by_the_pipeline(LONG)
    assert count_tokens(reading, "a cat")[1] is None


def test_chunks_raise_the_limit_and_instructions_make_it_inexact(folder):
    assert longest_reading(FAMILIES["sd15"].with_text_chunks(3), folder).limit == 225
    qwen_tokenizer().save_pretrained(folder / "tokenizer")
    assert longest_reading(FAMILIES["zimage"], folder)[1:] == (512, False)


def test_the_process_counts_until_it_ends_and_then_words_are_counted(folder):
    counts = TokenCounts("sd15", ModelConfig(base=str(folder)))
    try:
        assert counts.count(["ab", LONG])[0] == TokenCount(2, 75, None, in_words=False)
        assert counts.count([LONG])[0].is_over
        assert counts.note == ""
    finally:
        counts.close()
    assert counts.count(["a cat on a mat"]) == [TokenCount(5, None, None, in_words=True)]
    assert counts.note == "The process that counts tokens has ended. Words are counted instead of tokens."


def test_words_are_counted_while_the_base_model_is_not_there():
    counts = TokenCounts("sd15", ModelConfig(base="nobody/no-such-model"))
    assert counts.count(["a cat on a mat"]) == [TokenCount(5, None, None, in_words=True)]
    assert counts.note == (
        "The tokenizer of nobody/no-such-model is not on this machine: tokens are counted once it is. "
        "Words are counted instead of tokens."
    )
