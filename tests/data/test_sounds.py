"""The sound of videos is read from the part of a clip, in stereo and at the rate of the model."""

from __future__ import annotations

import numpy as np
import pytest

from modules.data.sounds import read_sound
from tests.support.videos import write_sounding_video, write_video

RATE = 32000


def test_a_clip_has_the_sound_of_its_own_time_in_both_channels(tmp_path):
    times = np.arange(2 * 48000) / 48000
    tone = np.where(times < 1, 0, np.sin(2 * np.pi * 440 * times)).astype(np.float32)
    path = str(write_sounding_video(tmp_path / "a.mp4", 32, np.stack([tone, -0.5 * tone])))
    found = read_sound(path, 0.75, 0.5, RATE)
    assert found.shape == (2, RATE // 2)
    times = 0.75 + np.arange(RATE // 2) / RATE
    assert np.abs(found[:, : RATE // 5]).max() < 0.05  # the tone begins in the middle
    later = slice(RATE * 3 // 10, None)
    for channel, size in zip(found, (1, -0.5), strict=True):
        expected = size * np.sin(2 * np.pi * 440 * times[later])
        assert np.corrcoef(channel[later], expected)[0, 1] > 0.98
        assert np.abs(channel[later]).max() == pytest.approx(abs(size), rel=0.2)
    assert read_sound(path, 0.0, 0.5, RATE) is None  # nothing to hear
    beyond = read_sound(path, 1.9, 0.5, RATE)
    assert np.abs(beyond[:, : RATE // 20]).max() > 0.1
    assert not beyond[:, -RATE // 10 :].any()


def test_videos_without_sound_and_folders_of_frames_have_none(tmp_path):
    assert read_sound(str(write_video(tmp_path / "a.mp4", 8)), 0.0, 0.5, RATE) is None
    assert read_sound(str(tmp_path), 0.0, 0.5, RATE) is None
