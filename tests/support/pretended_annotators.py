"""Captioners and maskers on the pretended GPU, for tests/trainer/test_pretended_gpu.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image

from modules.annotators import captioner_kinds, masker_kinds
from modules.annotators.Captioner import CaptionOptions, LocalModel
from modules.annotators.Masker import Click, LocalMasker, MaskHint
from tests.support.tiny_captioners import make_tiny_captioner
from tests.support.tiny_maskers import make_tiny_masker


def annotate(_: Any, folder: str) -> dict[str, Any]:
    """Each kind of transformers in bfloat16, on two images: name -> texts, or the shape of the mask.

    folder: to save the tiny models to. Raises AssertionError if something is left on the CPU, or if dtypes are mixed.
    """
    from tests.support import pretended_gpu  # not in the process of the tests, which this module is imported in, too

    pretended_gpu.begin_run()
    device, dtype, found = pretended_gpu.GPU, torch.bfloat16, {}
    images = [Image.new("RGB", (64, 64), "red"), Image.new("RGB", (64, 96), "blue")]
    for kind in captioner_kinds.KINDS:
        if kind.models:
            path = make_tiny_captioner(kind.name, Path(folder, kind.name))
            captioner = kind.load(LocalModel(kind, path, device, dtype), CaptionOptions(max_tokens=2))
            found[kind.name] = captioner.caption([[image] for image in images])
    for masker in masker_kinds.KINDS:
        if masker.models:
            path = make_tiny_masker(masker.name, Path(folder, masker.name))
            local = LocalMasker(path, masker_kinds.masker_class(masker, path), device, dtype)
            hint = MaskHint("a cat, a dog", (Click(3, 4),))
            found[masker.name] = masker.load(local).mask(images[1], hint).shape
    return found
