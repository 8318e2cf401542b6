"""Pictures are encoded as many at once as fit into the GPU's memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from modules.data.errors import DataError
from modules.data.LatentEncoder import LatentEncoder
from modules.families.registry import FAMILIES


class Vae:
    """Latents are means of 8 x 8 pixels. calls: (pictures, whether in tiles) of each call; `fits` decides by them."""

    device, dtype, config = torch.device("cpu"), torch.float32, SimpleNamespace(scaling_factor=2.0)

    def __init__(self, fits=lambda count, tiled: True):
        self.calls, self.tiled, self._fits = [], False, fits

    def encode(self, pixels):
        self.calls.append((len(pixels), self.tiled))
        if not self._fits(*self.calls[-1]):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        means = torch.nn.functional.avg_pool2d(pixels, 8)
        return SimpleNamespace(latent_dist=SimpleNamespace(mode=lambda: means))

    def enable_tiling(self):
        self.tiled = True

    def disable_tiling(self):
        self.tiled = False


def pictures(count: int, side: int) -> torch.Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(0))


def encoder(vae: Vae) -> LatentEncoder:
    return LatentEncoder(FAMILIES["sd15"], vae)


@pytest.mark.parametrize(("side", "counts"), [(256, [4]), (512, [4]), (768, [1] * 4), (1024, [1] * 4), (2048, [1] * 4)])
def test_the_pixels_of_all_decide_how_many_are_encoded_at_once(side, counts):
    vae = Vae()
    assert encoder(vae).encode(pictures(4, side)).shape == (4, 3, side // 8, side // 8)
    assert [count for count, _ in vae.calls] == counts


def test_a_vae_that_always_encodes_in_tiles_still_does_after_a_single_image_did_not_fit():
    vae = Vae(fits=lambda count, tiled: len(vae.calls) > 1)
    vae.use_tiling = vae.tiled = True
    encoder(vae).encode(pictures(1, 16))
    assert vae.tiled


def test_where_memory_is_too_small_fewer_are_encoded_at_once_from_then_on():
    vae = Vae(fits=lambda count, tiled: count == 1)
    small, batch = encoder(vae), pictures(4, 16)
    expected = encoder(Vae()).encode(batch)
    assert torch.equal(small.encode(batch), expected)
    assert [count for count, _ in vae.calls] == [4, 2, 1, 1, 1, 1]
    vae.calls.clear()
    assert torch.equal(small.encode(batch), expected)
    assert [count for count, _ in vae.calls] == [1, 1, 1, 1]


def test_a_picture_that_does_not_fit_alone_is_encoded_in_tiles_and_smaller_ones_are_not():
    vae = Vae(fits=lambda count, tiled: tiled or count == 2)
    large = encoder(vae)
    large.encode(pictures(1, 32))
    large.encode(pictures(1, 32))
    large.encode(pictures(2, 16))
    assert vae.calls == [(1, False), (1, True), (1, True), (2, False)]
    assert not vae.tiled


def test_a_picture_that_does_not_fit_even_in_tiles_is_refused_with_what_to_do():
    with pytest.raises(DataError, match=r"an image of 32 x 16 pixels, even in tiles: lower data.resolution"):
        encoder(Vae(fits=lambda count, tiled: False)).encode(torch.zeros(2, 3, 16, 32))


def test_other_errors_are_raised_as_they_are():
    def break_down(count, tiled):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        encoder(Vae(fits=break_down)).encode(pictures(2, 16))
