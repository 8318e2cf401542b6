"""Masks of source clips: found as images or clips, and seen by the model as the pipeline gives them to it."""

from itertools import repeat

import numpy as np
import pytest
import torch
from PIL import Image

from modules.config.ConceptConfig import ConceptConfig
from modules.config.DataConfig import DataConfig
from modules.config.SampleConfig import SampleConfig
from modules.config.SamplingConfig import SamplingConfig
from modules.config.TrainConfig import TrainConfig
from modules.curation.copy_dataset import copy_dataset
from modules.data.conditions import conditions_of
from modules.data.conditions.ConditionData import Rows
from modules.data.conditions.source_clip import source_frames, source_masks
from modules.data.decoding import decoded_or_reason
from modules.data.errors import DataError, ImageError
from modules.data.ImageRequest import ImageRequest
from modules.data.images import to_image
from modules.data.LatentEncoder import LatentEncoder
from modules.data.prepare import prepare_data
from modules.data.sample_images import check_sample_images
from modules.families.registry import FAMILIES
from modules.weights.libraries import import_pipeline
from tests.support.videos import write_video

FAMILY = FAMILIES["wan21_vace"]
(CONDITION,) = conditions_of(FAMILY)


@pytest.fixture
def folders(tmp_path):
    """Three clips and an image with sources; "clip" has a mask for each frame, "still" and the image one for all."""
    after, before, masks = (tmp_path / name for name in ("after", "before", "masks"))
    for name in ("clip", "still", "whole"):
        write_video(after / f"{name}.mp4", 9, fps=16)
        write_video(before / f"{name}.mp4", 9, fps=16, first=20)
    for folder in (after, before):
        Image.new("RGB", (64, 48), "red").save(folder / "image.png")
    write_video(masks / "clip.mp4", 18, fps=32, size=(128, 96), first=15)  # from dark to bright, with a white stripe
    for name in ("still", "image"):
        mask = Image.new("L", (64, 48))
        mask.paste(255, (5, 3, 30, 41))
        mask.save(masks / f"{name}.png")
    return after, before, masks


def prepared(after, before, masks, **concept):
    concepts = [ConceptConfig(path=str(after), source_folder=str(before), mask_folder=str(masks), **concept)]
    data = {"resolution": 64, "bucket_step": 16, "frames": 9}
    return prepare_data(TrainConfig(family=FAMILY.name, concepts=concepts, data=data), FAMILY)


def sample_named(dataset, name):
    return next(sample for sample, path in enumerate(dataset.paths) if name in path)


def test_what_the_model_sees_of_sources_and_masks_is_what_the_pipeline_makes_of_them(folders, tiny_model):
    pipe = import_pipeline(FAMILY.pipeline).from_pretrained(tiny_model(FAMILY.name))
    dataset, buckets = prepared(*folders)
    assert CONDITION.describe(dataset) == ("Sources", "one for each clip or image, 3 with a mask")
    encoder, records = LatentEncoder(FAMILY, pipe.vae), {}
    for sample, path in enumerate(dataset.paths):
        decoded = decoded_or_reason(dataset, buckets, sample, [CONDITION])
        frames, (width, height) = [*source_frames(dataset, buckets, sample)], buckets.shape_of(sample)
        latents = torch.zeros(FAMILY.codec.shape(pipe.vae, width, height, len(frames)))
        records[path] = CONDITION.encode(decoded, latents, encoder)
        rows = Rows([records[path]], [(0, 0, sample, 0)], latents.shape, dataset, buckets, DataConfig())
        masks = None if "whole" in path else repeat(decoded.mask, len(frames))
        if "clip" in path:
            masks = source_masks(dataset, buckets, sample)
        shown = masks and [Image.fromarray(np.uint8(255 * (mask[0] >= 0.5))) for mask in masks]
        given = [to_image(frame) for frame in frames], shown, None, 1, height, width, len(frames), torch.float32, "cpu"
        with torch.no_grad():
            video, mask, references = pipe.preprocess_conditions(*given)
            seen = pipe.prepare_video_latents(video, mask, references, None, "cpu")
            expected = torch.cat([seen, pipe.prepare_masks(mask, references, None)], 1)
        torch.testing.assert_close(CONDITION.given(rows)["source_clip"], expected, rtol=0, atol=2e-5)
    # in masked training, the loss of a clip has the mask of each frame, too
    of_loss = records[dataset.paths[sample_named(dataset, "clip")]]["mask"]
    assert of_loss.shape == (1, 3, *latents.shape[-2:])
    assert [float(frame.mean()) for frame in of_loss[0]][::2] == [0.0, 1.0]


def test_masks_have_the_times_of_their_clip_and_are_turned_with_it(folders):
    dataset, buckets = prepared(*folders, augmentation={"flip": True})
    clips = [sample for sample, path in enumerate(dataset.paths) if "clip" in path]
    assert len(clips) > 1
    for sample in clips:  # the lower part is gray of level 5 * (15 + number): white from number 11 on, at half the rate
        shown = [bool(mask[0, -1].all()) for mask in source_masks(dataset, buckets, sample)]
        assert shown == [number >= 6 for number in range(9)]


def test_colors_are_changed_of_what_stays_alone(folders):
    dataset, buckets = prepared(*folders, augmentation={"fixed_brightness": -0.5})
    decoded = decoded_or_reason(dataset, buckets, sample_named(dataset, "still"), [CONDITION])
    seen, half = decoded.loaded[CONDITION.spec.name], decoded.mask >= 0.5
    stays, made = (next(seen.part(is_made)) for is_made in (False, True))
    shown = next(source_frames(dataset, buckets, sample_named(dataset, "still"), keeps_colors=True))
    assert np.array_equal(made, shown * half)
    assert (stays[:, ~half[0]] + 1).mean() == pytest.approx((shown[:, ~half[0]] + 1).mean() / 2, rel=0.05)


def test_masks_that_do_not_fit_are_named(folders, tmp_path):
    after, _, masks = folders

    def refused():
        with pytest.raises(DataError) as error:
            prepared(*folders)
        return str(error.value)

    write_video(masks / "clip.mp4", 6, fps=16)
    dataset, _ = prepared(*folders)
    ((path, reason),) = dataset.unreadable
    assert path == str(after / "clip.mp4")
    assert reason.startswith("its mask clip.mp4 ends after 0.38 s, before the clip does at 0.56 s")
    write_video(masks / "clip.mp4", 9, size=(64, 64))
    assert "mask" in (text := refused())
    assert text.endswith("a mask needs the aspect ratio of its image; save it in the size of the image.")
    (masks / "clip.mp4").write_bytes(b"no video")
    assert prepared(*folders)[0].unreadable[0][1].startswith("its mask clip.mp4 can't be read: ")
    (masks / "clip.mp4").unlink()
    (masks / "image.png").unlink()
    write_video(masks / "image.mp4", 9)
    assert f"mask {masks / 'image.mp4'} is a video and {after / 'image.png'} an image" in refused()
    with pytest.raises(DataError, match=r"source_folder has .*mp4 as the source clip of itself"):
        prepared(after, after, "")


def test_samples_take_an_image_a_video_or_its_frames_as_their_mask(folders, tmp_path):
    _, before, masks = folders

    def made(mask, width=64, height=48):
        references = (str(before / "clip.mp4"),)
        request = ImageRequest("", "", 1, width, height, 1, 1.0, references, frames=9, mask=str(mask))
        return CONDITION.sample_arguments(request, 1)

    def is_white(mask, **size):
        return [image.getpixel((20, image.height - 10)) == 255 for image in made(mask, **size)["mask"]]

    assert is_white(masks / "still.png") == [True] * 9
    assert is_white(f"{masks / 'clip.mp4'}") == [number >= 6 for number in range(9)]
    frames = [str(tmp_path / f"{number}.png") for number in range(9)]
    for number, path in enumerate(frames):
        Image.new("L", (64, 48), 30 * number).save(path)
    assert is_white("\n".join(frames)) == [number >= 5 for number in range(9)]
    free = made(masks / "still.png", None, None)
    assert (free["width"], free["height"], free["video"][0].size, free["mask"][0].size) == (64, 48, (64, 48), (64, 48))
    with pytest.raises(ImageError, match="this mask has 1 frame, and the video 9"):
        made(f"{masks / 'clip.mp4'}#t=0.5")
    Image.new("L", (64, 64)).save(masks / "square.png")
    with pytest.raises(ImageError, match="this mask is 64 x 64 and the source clip 64 x 48, of another aspect ratio"):
        made(masks / "square.png")
    sample = SampleConfig(prompt="a cat", reference=str(before / "clip.mp4"), mask=str(masks / "none.mp4"))
    with pytest.raises(DataError, match=r"none\.mp4: it can't be read \(.*\); choose another mask\."):
        check_sample_images(SamplingConfig(samples=[sample]), FAMILY)


def test_samples_of_the_dataset_have_its_masks(folders):
    dataset, _ = prepared(*folders)
    found = {
        name: CONDITION.sample_settings(dataset, sample_named(dataset, name)) for name in ("clip", "still", "whole")
    }
    _, before, masks = folders
    assert found["clip"] == {"reference": str(before / "clip.mp4"), "mask": str(masks / "clip.mp4")}
    assert found["still"]["mask"] == str(masks / "still.png")
    assert found["whole"] == {"reference": str(before / "whole.mp4")}


def test_a_copy_of_a_dataset_has_the_masks(folders, tmp_path):
    after, before, masks = folders
    concept = ConceptConfig(path=str(after), source_folder=str(before), mask_folder=str(masks))
    copied = copy_dataset(concept, str(tmp_path / "copy")).concept
    dataset, _ = prepared(copied.path, copied.source_folder, copied.mask_folder)
    assert len(dataset) == 4
    assert CONDITION.describe(dataset) == ("Sources", "one for each clip or image, 3 with a mask")
