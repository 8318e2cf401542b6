"""Samples of models that decompose images: what is made of their layers."""

import numpy as np
from PIL import Image

from modules.data.conditions.SampleLayers import DARK, GAP, LIGHT, SampleLayers
from modules.sampling.generation import ImageRequest, save_sample

WIDTH, HEIGHT = 32, 16


def test_a_sample_shows_the_composed_layers_and_each_of_them_which_are_kept_beside_it(tmp_path):
    lower = Image.new("RGBA", (WIDTH, HEIGHT), (200, 0, 0, 255))
    upper = Image.new("RGBA", (WIDTH, HEIGHT), (0, 0, 200, 0))
    upper.paste((0, 0, 200, 255), (0, 0, 4, HEIGHT))
    request = ImageRequest("a poster", "", 1, None, None, 2, 1.0)
    save_sample(tmp_path / "000_a.png", SampleLayers([lower, upper]), request, 16.0)
    with Image.open(tmp_path / "000_a.png") as image:
        strip = np.asarray(image)
    assert strip.shape == (HEIGHT, 3 * WIDTH + 2 * GAP, 3)
    composed, first, second = (strip[:, number * (WIDTH + GAP) :][:, :WIDTH] for number in range(3))
    assert composed[0, 0].tolist() == [0, 0, 200]
    assert composed[0, -1].tolist() == [200, 0, 0]
    assert (first == [200, 0, 0]).all()
    assert second[0, 0].tolist() == [0, 0, 200]
    assert {tuple(color) for color in second[:, 4:].reshape(-1, 3).tolist()} == {LIGHT, DARK}
    for number, layer in enumerate((lower, upper)):
        with Image.open(tmp_path / "000_a" / f"{number}.png") as image:
            assert image.mode == "RGBA"
            assert np.array_equal(np.asarray(image), np.asarray(layer))
