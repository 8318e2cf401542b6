from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models.parts import SEED, qwen_tokenizer, randomize_and_save, tiny_qwen_vl, tiny_wan_vae


def make_tiny_cosmos_predict25(path: str | Path) -> Path:
    """Save a tiny Cosmos-Predict2.5 pipeline below `path` and return the path."""
    import diffusers
    import torch

    from modules.weights.libraries import import_pipeline

    torch.manual_seed(SEED)
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'][0]['text'] }}"
        "<|im_end|>\n{% endfor %}"
    )
    # words of the instruction as one token, or too little of a prompt would be left
    words = "system user You are helpful assistant who will provide prompts image generator"
    tokenizer.add_tokens([f" {word}" for word in words.split()])
    pipeline = import_pipeline("Cosmos2_5_PredictBasePipeline")(
        text_encoder=tiny_qwen_vl(tokenizer),
        tokenizer=tokenizer,
        transformer=diffusers.CosmosTransformer3DModel(
            in_channels=4 + 1,
            out_channels=4,
            num_attention_heads=2,
            attention_head_dim=16,
            num_layers=2,
            mlp_ratio=2,
            text_embed_dim=16,
            adaln_lora_dim=4,
            max_size=(16, 32, 32),
            rope_scale=(1.0, 3.0, 3.0),
            extra_pos_embed_type=None,
            use_crossattn_projection=True,
            crossattn_proj_in_channels=2 * 16,  # of both layers of the text encoder
            encoder_hidden_states_channels=16,
        ),
        vae=diffusers.AutoencoderKLWan(z_dim=4, **tiny_wan_vae(4)),
        # not the real UniPC, whose timesteps are whole numbers, unlike the sigmas that the transformer is given
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=5.0),
    )
    return randomize_and_save(pipeline, path)
