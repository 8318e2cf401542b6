"""Videos are divided at their cuts and by length, at the frame that is meant, and the originals stay as they are."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from modules.config.ConceptConfig import ConceptConfig
from modules.config.presets import ROOT
from modules.curation.split_videos import (
    SplitRule,
    VideoGlance,
    find_cuts,
    glance,
    pieces_of,
    split_videos,
    write_piece,
)
from modules.data.errors import DataError
from modules.data.sounds import read_sound
from modules.data.timed_captions import Span
from modules.data.videos import read_frames, read_info, write_mp4
from scripts.split_videos import main
from tests.support.videos import write_sounding_video

FPS = 8.0
SIZE = (66, 48)
COLORS = ("red", "teal", "gold")


def write_scenes(path: Path, lengths: tuple[int, ...]) -> Path:
    """Scenes of one color each, in which a bar moves; their lengths are in frames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = []
    for color, length in zip(COLORS, lengths, strict=False):
        for number in range(length):
            frame = Image.new("RGB", SIZE, color)
            frame.paste("white", (4 * number % 50, 10, 4 * number % 50 + 8, 30))
            frames.append(frame)
    write_mp4(path, frames, FPS)
    return path


def color_of(image: Image.Image) -> str:
    pixel = np.array(image.getpixel((2, 44)), float)
    return min(COLORS, key=lambda color: np.abs(pixel - Image.new("RGB", (1, 1), color).getpixel((0, 0))).sum())


def test_cuts_are_found_and_movement_is_none(tmp_path):
    video = glance(str(write_scenes(tmp_path / "walk.mp4", (10, 6, 14))))
    assert video.seconds == pytest.approx(30 / FPS)
    assert video.fps == pytest.approx(FPS)
    assert find_cuts(video) == pytest.approx([10 / FPS, 16 / FPS])
    restless = VideoGlance([number / FPS for number in range(20)], [0.0, *[30.0] * 19])
    assert find_cuts(restless) == []


def test_long_scenes_are_divided_evenly_and_short_ones_left_out():
    differences = [0.0] * 40
    differences[4] = differences[8] = 60.0
    video = VideoGlance([number / FPS for number in range(40)], differences)
    assert pieces_of(video, True, 2.0, 0.6) == [Span(1.0, 3.0), Span(3.0, 5.0)]
    assert pieces_of(video, True, None) == [Span(0.0, 0.5), Span(0.5, 1.0), Span(1.0, 5.0)]
    assert pieces_of(video, False, 2.0) == [Span(*pair) for pair in ((0, 5 / 3), (5 / 3, 10 / 3), (10 / 3, 5))]


def test_pieces_begin_and_end_at_the_cut_and_have_their_captions(tmp_path):
    folder = tmp_path / "videos"
    write_scenes(folder / "sub" / "walk.mp4", (10, 6, 14))
    (folder / "sub" / "walk.txt").write_text("a walk [0:00 - 0:01] it starts")
    before = (folder / "sub" / "walk.mp4").read_bytes()
    done = split_videos(ConceptConfig(path=str(folder)), str(tmp_path / "new" / "pieces"), SplitRule(by_scene=True))
    assert (done.num_videos, done.num_written, done.unreadable) == (1, 3, [])
    made = tmp_path / "new" / "pieces" / "sub"
    assert sorted(path.name for path in made.glob("*.mp4")) == [f"walk_00{number}.mp4" for number in (1, 2, 3)]
    for color, number, length in zip(COLORS, (1, 2, 3), (10, 6, 14), strict=True):
        piece = str(made / f"walk_00{number}.mp4")
        info = read_info(piece)
        assert (info.width, info.height) == SIZE
        assert info.seconds == pytest.approx(length / FPS)
        frames = list(read_frames(piece, [index / FPS for index in range(length)]))
        assert {color_of(frame) for frame in frames} == {color}
    assert [(made / f"walk_00{number}.txt").read_text() for number in (1, 2, 3)] == ["it starts", "a walk", "a walk"]
    assert (folder / "sub" / "walk.mp4").read_bytes() == before


def test_the_sharpest_frame_of_each_interval_is_picked(tmp_path):
    with Image.open(ROOT / "scripts" / "pictures" / "chelsea.jpg") as image:
        photograph = image.convert("RGB").resize((300, 200))
    blurred = photograph.filter(ImageFilter.GaussianBlur(4))
    (tmp_path / "videos").mkdir()
    write_mp4(tmp_path / "videos" / "cat.mp4", [photograph if n in (2, 6) else blurred for n in range(8)], 4.0)
    arguments = [str(tmp_path / "videos"), "--to", str(tmp_path / "frames"), "--frames", "1"]
    assert main(arguments) == 0
    found = sorted((tmp_path / "frames").iterdir())
    assert [path.name for path in found] == ["cat_001.png", "cat_002.png"]
    for path in found:
        with Image.open(path) as frame:
            assert np.abs(np.asarray(frame, float) - np.asarray(photograph)).mean() < 6


def test_damaged_videos_are_named_and_equal_names_told_apart(tmp_path, capsys):
    folder = tmp_path / "videos"
    write_scenes(folder / "walk.mp4", (10,))
    (folder / "walk.m4v").write_bytes((folder / "walk.mp4").read_bytes())
    (folder / "bad.mp4").write_bytes(b"no video")
    assert main([str(folder), "--to", str(tmp_path / "pieces"), "--seconds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"4 pieces of 2 videos in {tmp_path / 'pieces'}"
    assert lines[1].startswith(f"left out: {folder / 'bad.mp4'} (")
    names = {path.name for path in (tmp_path / "pieces").iterdir()}
    assert names == {"walk_001.mp4", "walk_002.mp4", "walk_mp4_001.mp4", "walk_mp4_002.mp4"}


def test_what_cannot_be_divided_is_refused(tmp_path, capsys):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "a.png")
    concept = ConceptConfig(path=str(tmp_path / "images"))
    with pytest.raises(DataError, match="has no video files"):
        split_videos(concept, str(tmp_path / "pieces"), SplitRule(by_scene=True))
    for options in ([], ["--frames", "1", "--scenes"], ["--seconds", "0"]):
        with pytest.raises(SystemExit):
            main([str(tmp_path / "images"), "--to", str(tmp_path / "pieces"), *options])
    assert main([str(tmp_path / "images"), "--to", str(tmp_path / "images"), "--scenes"]) == 2
    assert "is there already" in capsys.readouterr().err


def test_pieces_have_the_sound_of_their_time(tmp_path):
    times = np.arange(2 * 48000) / 48000
    tone = np.where(times < 1, 0, np.sin(2 * np.pi * 440 * times)).astype(np.float32)
    path = str(write_sounding_video(tmp_path / "a.mp4", 32, np.stack([tone, tone])))
    for number, piece in enumerate((Span(0.0, 0.9), Span(0.5, 1.5))):
        write_piece(path, piece, tmp_path / f"{number}.mp4", 16.0)
    assert not read_info(str(tmp_path / "0.mp4")).has_audio  # nothing to hear
    (found, _) = read_sound(str(tmp_path / "1.mp4"), 0.0, 1.0, 48000)
    assert np.abs(found[:20000]).max() < 0.05
    assert np.abs(found[28000:]).max() > 0.8
