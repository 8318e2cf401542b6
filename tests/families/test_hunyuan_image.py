"""HunyuanImage 2.1: text in quotes, which its second encoder reads, and the distilled model, which can't be trained."""

import pytest
import torch
from diffusers import HunyuanImageTransformer2DModel

from modules.config.errors import UserError
from modules.families.conditioning import encode_text
from modules.families.hunyuan_image import HUNYUAN_IMAGE
from tests.families.test_conformance import Case, largest_difference, load_pipe, spied_sampling


def test_text_in_quotes_reaches_the_denoiser_as_in_the_pipeline(tiny_model):
    folder = str(tiny_model(HUNYUAN_IMAGE.name))
    case = Case(HUNYUAN_IMAGE, folder, load_pipe(HUNYUAN_IMAGE, folder))
    with torch.no_grad():
        quoted, other, plain = (
            encode_text(HUNYUAN_IMAGE, case.pipe, [prompt]) for prompt in ('a "cat"', 'a "dog"', "a cat")
        )
    assert quoted["prompt_embeds_mask_2"].any()
    assert not plain["prompt_embeds_mask_2"].any()
    _, _, calls = spied_sampling(case, 'a "cat"')
    for prediction, timestep, latents in calls:
        assert largest_difference(case.predict(latents, timestep.reshape(1), quoted), prediction) == 0.0
        letters = {**quoted, "prompt_embeds_2": other["prompt_embeds_2"]}
        assert largest_difference(case.predict(latents, timestep.reshape(1), letters), prediction) > 1e-5


def test_the_distilled_model_is_refused():
    with torch.device("meta"):
        distilled = HunyuanImageTransformer2DModel(
            num_layers=1, num_single_layers=1, num_refiner_layers=1, use_meanflow=True
        )
    with pytest.raises(UserError, match=r"model\.base: the distilled HunyuanImage 2\.1 can't be trained"):
        HUNYUAN_IMAGE.adapt(distilled)
