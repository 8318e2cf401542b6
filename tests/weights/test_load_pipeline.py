"""A pipeline that is loaded for sampling alone."""

import torch

from modules.weights.load_pipeline import load_pipeline


def test_a_denoiser_is_adapted_as_in_training(tiny_model):
    """Without it, diffusers would add the mask of zeros and ones to the logits, and no token would be masked."""
    pipe = load_pipeline(str(tiny_model("chroma")), {}, torch.device("cpu"))
    with torch.no_grad():
        text, _, mask, *_ = pipe.encode_prompt(["a cat"], do_classifier_free_guidance=False)
        image = torch.ones(1, 4, 16)
        call = {"hidden_states": image, "timestep": torch.ones(1), "img_ids": torch.zeros(4, 3)}
        call |= {"txt_ids": torch.zeros(text.shape[1], 3), "attention_mask": torch.cat([mask, torch.ones(1, 4)], dim=1)}
        predicted = pipe.transformer(encoder_hidden_states=text, **call)[0]
        changed = text + (mask == 0).unsqueeze(-1)
        assert (pipe.transformer(encoder_hidden_states=changed, **call)[0] - predicted).abs().max() <= 1e-6
