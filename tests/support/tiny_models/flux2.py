from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, qwen_tokenizer, randomize_and_save, tiny_flux2_parts


def make_tiny_flux2_dev(path: str | Path) -> Path:
    """Save a tiny FLUX.2 dev pipeline below `path` and return the path."""
    import torch
    from diffusers import Flux2Pipeline
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    torch.manual_seed(SEED)
    # The real one has a PixtralProcessor, which adds images to the same template.
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{% for part in message['content'] %}[{{ part['text'] }}]{% endfor %}{% endfor %}"
    )
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 31,  # the denoiser reads the outputs of the 10th, 20th and 30th
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 4,
    }
    vision = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = Mistral3Config(
        text_config={"model_type": "mistral", **text}, vision_config={"model_type": "pixtral", **vision}
    )
    pipeline = Flux2Pipeline(
        text_encoder=Mistral3ForConditionalGeneration(config),
        tokenizer=tokenizer,
        **tiny_flux2_parts(guidance_embeds=True),
    )
    return randomize_and_save(pipeline, path)
