"""Reading frames of video files by time, and writing them."""

from pathlib import Path

import av
import numpy as np
import pytest
from av.video.reformatter import Colorspace
from PIL import Image

from modules.data import videos
from modules.data.errors import ImageError
from modules.data.videos import (
    frame_path,
    info_or_reason,
    load_still,
    read_changes,
    read_frames,
    read_info,
    read_traits,
    to_mp4,
)
from tests.support.videos import gray_frames, number_of, turn_sideways, write_video

PICTURES = Path(__file__).parent / "pictures"
UNTAGGED = 2  # FFmpeg's AVCOL_SPC_UNSPECIFIED


def numbers(path, times):
    return [number_of(frame) for frame in read_frames(str(path), times)]


@pytest.mark.parametrize("extension", ["mp4", "mov", "mkv", "webm", "avi"])
def test_frames_are_those_shown_at_a_time_in_every_format(tmp_path, extension):
    path = write_video(tmp_path / f"a.{extension}", 40)
    info = read_info(str(path))
    assert info[:2] == (64, 48)
    assert info.seconds == pytest.approx(2.5, abs=0.01)
    assert numbers(path, [0, 1 / 16, 1.0, 2.4]) == [0, 1, 16, 38]
    assert numbers(path, [1.5 + number / 8 for number in range(5)]) == [24, 26, 28, 30, 32]  # half the rate, later
    assert [number_of(load_still(str(path), seconds=seconds)) for seconds in (0.0, 1.0, 2.45, 9.0)] == [0, 16, 39, 39]
    assert number_of(load_still(frame_path(str(path), 15 / 16), seconds=2.0)) == 15  # a time that is named holds


def test_a_gif_is_a_video_with_the_durations_of_its_frames(tmp_path):
    first, *others = gray_frames(3)
    first.save(tmp_path / "a.gif", save_all=True, append_images=others, duration=[100, 500, 900])
    assert read_info(str(tmp_path / "a.gif")).seconds == pytest.approx(1.5)
    assert [number_of(load_still(str(tmp_path / "a.gif"), seconds=time)) for time in (0.2, 1.4, 9.0)] == [1, 2, 2]
    assert numbers(tmp_path / "a.gif", [0, 0.2, 0.5, 0.65]) == [0, 1, 1, 2]


def test_of_a_variable_rate_the_frame_on_screen_is_taken(tmp_path):
    path = write_video(tmp_path / "a.mkv", 5, times=[0, 40, 80, 880, 920])
    assert numbers(path, [0.0, 0.05, 0.1, 0.5, 0.85, 0.89, 0.95]) == [0, 1, 2, 2, 2, 3, 4]


@pytest.mark.parametrize("extension", ["mp4", "mkv"])
def test_a_video_is_as_long_as_its_frames_whatever_its_audio(tmp_path, extension):
    path = tmp_path / f"a.{extension}"
    with av.open(str(path), "w") as container:
        video, audio = container.add_stream("libx264", rate=16), container.add_stream("aac", rate=44100, layout="mono")
        video.width, video.height = 64, 48
        video.pix_fmt = "yuv420p"
        for image in gray_frames(32):
            container.mux(video.encode(av.VideoFrame.from_image(image)))
        container.mux(video.encode())
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 5 * 44100), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 44100
        container.mux(audio.encode(silence))
        container.mux(audio.encode())
    assert read_info(str(path)).seconds == pytest.approx(2, abs=0.1)


def test_a_sideways_video_of_a_phone_is_turned(tmp_path):
    path = write_video(tmp_path / "a.mp4", 3)
    turned = turn_sideways(path, tmp_path / "turned.mp4")
    assert read_info(str(turned))[:2] == (48, 64)
    (frame,) = read_frames(str(turned), [0])
    assert frame.size == (48, 64)
    stripe = np.asarray(frame.convert("L"))[:, -6:]  # turned clockwise, the top is at the right
    assert stripe.min() > 200


def test_written_colours_are_read_back(tmp_path):
    colours = [(255, 0, 0), (0, 255, 0), (20, 90, 200)]
    (tmp_path / "a.mp4").write_bytes(to_mp4([Image.new("RGB", (32, 16), colour) for colour in colours], fps=23.976))
    read = [frame.getpixel((9, 9)) for frame in read_frames(str(tmp_path / "a.mp4"), [0, 0.05, 0.1])]
    assert np.abs(np.array(read) - colours).max() <= 4


def test_a_video_of_sound_alone_and_one_of_absurd_size_or_length_are_refused(tmp_path, monkeypatch):
    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        audio = container.add_stream("aac", rate=44100, layout="mono")
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 44100), np.float32), format="fltp", layout="mono")
        silence.sample_rate = 44100
        container.mux(audio.encode(silence))
        container.mux(audio.encode())
    assert info_or_reason(str(tmp_path / "sound.mp4")) == "it has no video stream"
    path = str(write_video(tmp_path / "a.mp4", 40))
    monkeypatch.setattr(videos, "MAX_SECONDS", 2)
    assert info_or_reason(path) == "its header claims that it lasts 2.5 s"
    monkeypatch.setattr(videos, "MAX_PIXELS", 3000)
    assert info_or_reason(path) == "its frames are 64 x 48"
    with pytest.raises(ImageError, match="its frames are 64 x 48"):
        next(read_frames(path, [0]))


def flat_video(path, size, frame_traits=(), matrix="ITU709", color=(200, 60, 40)):
    """A video of one color. frame_traits: attributes of its frames and its codec."""
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=8, options={"crf": "5"})
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        image = av.VideoFrame.from_image(Image.new("RGB", size, color))
        frame = image.reformat(format="yuv420p", dst_colorspace=Colorspace[matrix])
        for name, value in {"colorspace": UNTAGGED, **dict(frame_traits)}.items():
            setattr(frame, name, value)
            setattr(stream.codec_context, name, value)
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


@pytest.mark.parametrize(
    ("size", "tags", "matrix"),
    [
        ((1280, 16), {}, "ITU709"),
        ((16, 720), {}, "ITU709"),
        ((64, 64), {}, "ITU601"),
        ((1280, 16), {"colorspace": 6}, "ITU601"),
        ((64, 64), {"colorspace": 1}, "ITU709"),
    ],
    ids=["wide", "high", "small", "tagged 601", "tagged 709"],
)
def test_untagged_hd_is_bt709_and_all_else_as_it_says(tmp_path, size, tags, matrix):
    path = flat_video(tmp_path / "a.mp4", size, tags, matrix)
    assert np.abs(np.array(load_still(path).getpixel((8, 8))) - (200, 60, 40)).max() <= 4


def test_pixels_that_are_not_square_become_square():
    path = str(PICTURES / "sar_2to1.mp4")
    assert read_info(path)[:2] == (128, 64)
    (frame,) = read_frames(path, [0])
    assert frame.size == load_still(path, seconds=0.5).size == (128, 64)


HDR = {"color_primaries": 9, "colorspace": 9}


@pytest.mark.parametrize(("curve", "gray"), [(16, 112), (18, 127)], ids=["PQ", "HLG"])
def test_hdr_becomes_sdr(tmp_path, curve, gray):
    path = flat_video(tmp_path / "a.mp4", (64, 64), {**HDR, "color_trc": curve}, "BT2020", (gray,) * 3)
    sdr_of_50_nits = 136  # where 203 are white; 8-bit video has few steps for that much light
    assert np.abs(np.array(load_still(path).getpixel((8, 8))) - sdr_of_50_nits).max() <= 8
    assert read_info(path)[:2] == (64, 64)
    assert read_changes(path) == ["hdr"]
    assert read_traits(path).is_hdr


def test_colors_of_hdr_keep_their_hue_in_the_primaries_of_sdr(tmp_path):
    path = flat_video(tmp_path / "a.mp4", (64, 64), {**HDR, "color_trc": 16}, "BT2020", (110, 80, 70))
    red, green, blue = load_still(path).getpixel((8, 8))
    washed_out = 110 - 70
    assert red > green > blue
    assert red - blue > 2 * washed_out


def test_a_video_is_read_by_its_content_whatever_it_is_called(tmp_path):
    assert read_info(str(PICTURES / "webm_named.mp4"))[:2] == (64, 64)
    movie = write_video(tmp_path / "a.mp4", 3).read_bytes()
    for name in ("a.mkv", "a.avi", "a.gif"):
        (tmp_path / name).write_bytes(movie)
        assert numbers(tmp_path / name, [0, 0.3]) == numbers(tmp_path / "a.mp4", [0, 0.3])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"\x89PNG\r\n\x1a\n", "its content is an image"),
        (b"FLV\x01\x05", "its content is Flash video, which is not read; convert it to MP4"),
    ],
)
def test_content_that_is_no_video_is_named(tmp_path, content, reason):
    (tmp_path / "a.mp4").write_bytes(content)
    assert reason in info_or_reason(str(tmp_path / "a.mp4"))


def test_damaged_files_and_files_that_are_no_videos_say_so(tmp_path):
    whole = write_video(tmp_path / "a.webm", 200, size=(320, 240)).read_bytes()
    cut = tmp_path / "cut.webm"
    cut.write_bytes(whole[: len(whole) // 3])
    with pytest.raises(ImageError, match=r"cut\.webm can't be used \(it ends after"):
        numbers(cut, [0, 12.0])
    for name, content in (("empty.mp4", b""), ("list.mp4", b"#EXTM3U\nfile:///etc/passwd\n"), ("gone.mp4", None)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        assert isinstance(info_or_reason(str(tmp_path / name)), str)
