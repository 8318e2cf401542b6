"""Whatever is wrong with a video, it is a video that can be read or one that is left out."""

import random
from functools import partial

import pytest

from modules.config.clips import ClipRule
from modules.config.visible_text import visible_text
from modules.data.clips import clips_of
from modules.data.errors import ImageError
from modules.data.videos import info_or_reason, load_still, read_frames, read_traits
from tests.support.mutations import bounded, cases, check_text, mutated_bytes, refused_with
from tests.support.videos import gray_frames, write_video

NAMES = (b"avc1", b"avcC", b"moov", b"mdat", b"stsd", b"stts", b"mvhd", b"vide", b"V_VP9", b"V_MPEG4", b"FMP4", b"RIFF")
RULE = ClipRule(frames=5, fps=16.0, selection="chunks", step=4)
CLIPS = 3  # that are read of each video


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    files = [write_video(folder / f"a.{extension}", 12) for extension in ("mp4", "mov", "mkv", "webm", "avi")]
    first, *others = gray_frames(12)
    first.save(folder / "a.gif", save_all=True, append_images=others, duration=60)
    return [*files, folder / "a.gif"]


def read_all(path):
    """As the check and the training read a video."""
    info = info_or_reason(path)
    if isinstance(info, str):
        check_text(visible_text(info))
        return
    for number, clip in enumerate(clips_of(info, RULE, "a")):
        if number < CLIPS:
            list(read_frames(path, clip.times))
    read_traits(path)
    load_still(path, seconds=info.seconds / 2)


@pytest.mark.parametrize("seeds", cases(500))
def test_a_mutated_video_is_read_or_refused_by_name(seeds, videos, tmp_path, capfd):
    for seed in seeds:
        rng = random.Random(seed)
        source = rng.choice(videos)
        path = tmp_path / f"{seed}{source.suffix}"
        path.write_bytes(mutated_bytes(source.read_bytes(), rng, NAMES))
        with bounded(seed):
            refusal = refused_with(ImageError, partial(read_all, str(path)))
        assert refusal is None or path.name in refusal
        path.unlink()
    assert capfd.readouterr() == ("", "")
