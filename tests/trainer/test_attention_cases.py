"""The attentions that are tried before the first step are those of the run, with fewer heads."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from modules.config.attentions import AttentionKind, Attentions
from modules.config.errors import UserError
from modules.data.records import CachedRecords
from modules.distributed.attention_trial import AttentionCase
from modules.families.registry import FAMILIES
from modules.trainer import prepare_run
from modules.trainer.attention_cases import LONGEST, MOST_LENGTHS, TILE, attention_cases, in_all_widths


@pytest.mark.parametrize("family", ["flux1", "sd15", "pixart_sigma"])
def test_the_lengths_of_a_run_are_tried(family, make_config, tiny_model, start, monkeypatch):
    tried, attended = [], set()

    def choose(kind, runtime, cases, dtype, tell):
        tried.extend(cases())
        assert (kind, dtype) == ("auto", torch.bfloat16)
        return "", []

    def attend(query, key, *args, **kwargs):
        if query.requires_grad:
            attended.add((query.shape[2], key.shape[2]))
        return own(query, key, *args, **kwargs)

    own = functional.scaled_dot_product_attention
    monkeypatch.setattr(prepare_run, "choose_attention", choose)
    method = "lora" if "lora" in FAMILIES[family].methods else "full"
    settings = (f"family={family}", f"model.base={tiny_model(family)}", f"method={method}")
    one_shape = ("data.bucketing=false", "model.mixed_precision=bf16", "max_steps=1")
    trainer = start(make_config(*settings, *one_shape))
    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    trainer.train()
    lengths = {(case.queries, case.keys) for case in tried}
    assert attended
    assert attended <= lengths
    assert {case.masked for case in tried} == {False, True}


def test_a_run_whose_attention_could_not_train_is_refused_before_its_model_is_opened(
    make_config, tiny_sd15, start, monkeypatch
):
    monkeypatch.setenv("DIFFUSERS_ATTN_BACKEND", "sage")
    monkeypatch.setattr(prepare_run, "BaseModel", lambda *args, **options: pytest.fail("it was opened"))
    with pytest.raises(UserError, match="SageAttention has no backward pass"):
        start(make_config(f"model.base={tiny_sd15}", "max_steps=1"))


class Source:
    """The caches of a run with latents of some shapes and texts of some lengths."""

    def __init__(self, shapes, lengths):
        latents = {str(shape): {"latents": torch.empty(shape, device="meta")} for shape in shapes}
        texts = {str(length): {"text": torch.empty(length, 9), "pooled": torch.empty(9)} for length in lengths}
        self.pictures = CachedRecords(latents, dict(enumerate(latents)), lambda: None)
        self.text = CachedRecords(texts, {key: key for key in texts}, lambda: None)
        self.buckets = type("Buckets", (), {"index": range(len(shapes))})


def test_long_attentions_are_tried_with_a_last_tile_as_full():
    """81 frames of a video."""
    source = Source([(16, 21, 60, 104)], [512])
    cases = attention_cases(source, {"attention_head_dim": 128}, patch_size=2)
    tokens = 21 * 30 * 52
    assert AttentionCase(LONGEST + tokens % TILE, 512, 128) in cases
    assert max(max(case.queries, case.keys) for case in cases) < LONGEST + TILE


def test_each_width_of_the_heads_of_the_published_model_is_tried():
    """For Stable Diffusion 1.5, whose blocks have heads of three widths."""
    cases = [AttentionCase(256, 256, 64), AttentionCase(256, 77, 64)]
    kinds = tuple(AttentionKind(width, masked=False, count=10) for width in (40, 64, 160))
    tried = in_all_widths(cases, Attentions(kinds, linear=0))
    assert tried == [*cases, AttentionCase(256, 256, 40), AttentionCase(256, 256, 160)]
    assert in_all_widths(cases, None) == cases


def test_many_buckets_are_tried_in_part():
    source = Source([(16, 2 * side, 2 * side) for side in range(8, 40)], [512, 77])
    cases = attention_cases(source, {}, patch_size=2)
    assert len(cases) == 2 * MOST_LENGTHS
