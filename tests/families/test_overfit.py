"""Four pictures with noise and timesteps that never change are learned by heart: what must change gets gradients."""

import pytest
import torch
from PIL import Image

from modules.data.Batch import Batch
from modules.families.conditioning import encode_records
from modules.families.conditions import Inpainting, References
from modules.families.inpainting import mask_channels
from modules.families.latents import encode_pixels
from modules.families.TextEncoding import collate_text
from modules.methods.registry import METHODS
from tests.support.prepared import prepared
from tests.support.tiny_models.wan22 import make_tiny_wan22_a14b

PROMPTS = ["a cat", "a dog below a tree", "red", "the blue sky over it all"]
U = [0.1, 0.35, 0.6, 0.95]
# A family of each kind: a U-Net, packed tokens, text as a list, experts, references, texts that see
# them, masks.
KINDS = ["sd15", "flux1", "zimage", "wan22_a14b", "flux1_kontext", "qwen_image_edit", "sd15_inpaint"]
LORA = {"rank": 16, "alpha": 16, "targets": "linear_conv"}


@pytest.fixture
def folder(tiny_model, tmp_path):
    def of(name):
        # A LoRA leaves the last layer as it is, and with the usual width of 24 it can't reach 64 values of each token.
        return make_tiny_wan22_a14b(tmp_path, heads=6) if name == "wan22_a14b" else tiny_model(name)

    return of


@pytest.mark.proof
@pytest.mark.parametrize(("method", "rate", "left"), [("full", 3e-3, 0.1), ("lora", 1e-2, 0.5)])
@pytest.mark.parametrize("name", KINDS)
def test_four_pictures_are_learned_by_heart(name, method, rate, left, folder):
    base, config = prepared(folder(name), method, name, **({"lora": LORA} if method == "lora" else {}))
    batch, loss = four_pictures(base), METHODS[method].loss(base, config)
    optimizer = torch.optim.AdamW([p for p in loss.parameters() if p.requires_grad], rate, weight_decay=0)
    values = []
    for _ in range(250):
        optimizer.zero_grad()
        total, count, _ = loss(batch)
        (total / count).backward()
        optimizer.step()
        values.append(total.item() / count)
    print(f"{name} {method}: {values[0]:.3f} -> {values[-1]:.4f}, {values[-1] / values[0]:.1%}")
    assert values[-1] <= left * values[0]


def to_pil_image(pixels):
    """pixels: [3, H, W] in [-1, 1]."""
    levels = ((pixels / 2 + 0.5) * 255).round().byte()
    return Image.fromarray(levels.permute(1, 2, 0).numpy())


def four_pictures(base) -> Batch:
    """The batch of every step."""
    family, generator = base.family, torch.Generator().manual_seed(0)
    side = 2 * max(16, family.align)
    base.require(*base.component_names)
    with torch.no_grad():
        pixels = torch.rand(4, 3, side, side, generator=generator) * 2 - 1
        latents = encode_pixels(family, base.vae, pixels)
        before = pixels.flip(3)
        seen = [[to_pil_image(image)] for image in before] if family.text.sees_images else None
        records = [
            encode_records(family, base.pipe, [prompt], seen and [seen[number]])[0]
            for number, prompt in enumerate(PROMPTS)
        ]
        references = encode_pixels(family, base.vae, before) if family.has(References) else []
        masks = torch.zeros(4, 1, side, side)
        masks[..., : side // 2] = 1
        masked = encode_pixels(family, base.vae, pixels * (1 - masks))
    given = {}
    if family.has(References):
        given["references"] = [[reference] for reference in references]
    if family.has(Inpainting):
        channels = mask_channels(family.fact(Inpainting, "resolution"), masks, *masked.shape[-2:])
        given["inpainting"] = torch.cat([channels, masked], dim=1)
    return Batch(
        weight=torch.ones(4),
        count=4,
        noise=torch.randn(latents.shape, generator=generator),
        u=torch.tensor(U),
        prompts=PROMPTS,
        latents=latents,
        text=collate_text(family.text, records),
        given=given,
    )
