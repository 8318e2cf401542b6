"""What is no file, or no longer there, is named and left out wherever a dataset may have it, and never waited for."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, TiffImagePlugin

from modules.config.ConceptConfig import ConceptConfig
from modules.config.TrainConfig import TrainConfig
from modules.data import health
from modules.data.caption_tables import read_table
from modules.data.captions import read_captions
from modules.data.concepts import scan
from modules.data.errors import DataError, ImageError
from modules.data.holdout import hold_out
from modules.data.images import read_size
from modules.data.masks import MASK, with_masks
from modules.data.videos import load_still, read_frames, read_info, read_traits
from modules.weights.errors import WeightsError
from modules.weights.gguf_files import check_gguf
from modules.weights.safe import load_tensors, read_header
from tests.support.videos import write_video

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")


@pytest.fixture(autouse=True)
def alarm():
    """Ends a test that waits for a pipe."""

    def end(number, frame):
        raise TimeoutError("waited for a file that nobody writes")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(path):
    os.mkfifo(path)


def unix_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.getcwd()
        os.chdir(path.parent)  # the path of a socket must be short
        server.bind(path.name)
        os.chdir(folder)


def endless_device(path):
    path.symlink_to("/dev/zero")


def folder(path):
    path.mkdir()


def link_to_nothing(path):
    path.symlink_to("nowhere")


def link_to_itself(path):
    path.symlink_to(path.name)


NO_FILES = {
    pipe: "it is a named pipe, not a file",
    unix_socket: "it is a socket, not a file",
    endless_device: "it is a device, not a file",
    folder: "it is a folder",
    link_to_nothing: "(No such file|a file that is not there)",
    link_to_itself: "symbolic link",
}
every_kind = pytest.mark.parametrize("make", NO_FILES, ids=lambda make: make.__name__)


def add_picture(path, color="red"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 64), color).save(path)


@every_kind
def test_no_reader_waits_for_what_is_no_file(tmp_path, make):
    readers = {
        "a.png": read_size,
        "a.mp4": lambda path: next(read_frames(path, [0])),
        "a.webm": read_traits,
        "a.safetensors": read_header,
        "a.ckpt": load_tensors,
        "a.gguf": lambda path: check_gguf(path, "model.denoiser"),
        "a.txt": lambda path: read_captions(path.removesuffix(".txt") + ".png", ConceptConfig()),
    }
    for name, read in readers.items():
        make(tmp_path / name)
        if make is folder and name in ("a.mp4", "a.webm"):
            continue  # frames
        with pytest.raises((DataError, WeightsError), match=NO_FILES[make]) as caught:
            read(tmp_path / name if name.endswith("gguf") else str(tmp_path / name))
        assert name in str(caught.value)


@pytest.mark.parametrize("make", [pipe, unix_socket, endless_device, link_to_nothing, link_to_itself])
def test_an_image_that_is_no_file_is_left_out_by_name(tmp_path, make):
    add_picture(tmp_path / "a.png")
    make(tmp_path / "b.png")
    make(tmp_path / "c.mp4")
    dataset = scan([ConceptConfig(path=str(tmp_path), captions="prompt")], videos=True)
    assert dataset.paths == [str(tmp_path / "a.png")]
    reasons = dict(dataset.unreadable)
    assert set(reasons) == {str(tmp_path / "b.png"), str(tmp_path / "c.mp4")}
    assert all(re.search(NO_FILES[make], reason) for reason in reasons.values())


@every_kind
def test_an_image_whose_mask_is_no_file_is_left_out(tmp_path, make):
    for name in ("a.png", "b.png"):
        add_picture(tmp_path / name)
    make(tmp_path / "b-masklabel.png")
    dataset = with_masks(scan([ConceptConfig(path=str(tmp_path), captions="prompt")]))
    assert dataset.paths == [str(tmp_path / "a.png")]
    ((path, reason),) = dataset.unreadable
    assert path == str(tmp_path / "b.png")
    assert "b-masklabel.png" in reason


@every_kind
def test_the_check_names_a_caption_that_is_no_file(tmp_path, make):
    add_picture(tmp_path / "a.png")
    make(tmp_path / "a.txt")
    found = health.check_health(TrainConfig(concepts=[ConceptConfig(path=str(tmp_path))])).findings
    (message,) = [finding.message for finding in found if finding.kind == "unreadable_caption"]
    assert "a.txt" in message


@pytest.mark.parametrize("make", [pipe, unix_socket, endless_device])
@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_a_table_that_is_no_file_is_refused_by_name(tmp_path, make, name):
    make(tmp_path / name)
    with pytest.raises(DataError, match=rf"{name} can't be read \({NO_FILES[make]}\)"):
        read_table(ConceptConfig(path=str(tmp_path), captions="table"), "concepts.0")


def test_a_caption_that_nobody_may_read_and_a_huge_one_are_named(tmp_path):
    add_picture(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("a")
    with (tmp_path / "a.txt").open("r+b") as file:
        file.truncate(2 << 30)  # takes no space
    with pytest.raises(DataError, match=r"a\.txt is larger than 1024 KB"):
        read_captions(str(tmp_path / "a.png"), ConceptConfig())
    if os.geteuid():
        (tmp_path / "a.txt").chmod(0)
        with pytest.raises(DataError, match=r"a\.txt can't be read"):
            read_captions(str(tmp_path / "a.png"), ConceptConfig())


def test_an_image_that_vanishes_after_the_scan_ends_no_later_step(tmp_path):
    for name, color in (("a.png", "red"), ("b.png", "red"), ("c.png", "blue")):
        add_picture(tmp_path / name, color)
    dataset = scan([ConceptConfig(path=str(tmp_path), captions="prompt", alpha_mask=True)])
    (tmp_path / "b.png").unlink()
    held_out = hold_out(dataset, 0.1).held_out
    assert held_out is None or len(held_out) == 3
    assert with_masks(dataset).column(MASK) == [None, None, None]


def test_a_video_of_an_unknown_codec_is_left_out_by_name(tmp_path):
    content = write_video(tmp_path / "a.mp4", 4).read_bytes()
    (tmp_path / "b.mp4").write_bytes(content.replace(b"avc1", b"zzzz"))
    dataset = scan([ConceptConfig(path=str(tmp_path), captions="prompt")], videos=True)
    assert dataset.unreadable == [(str(tmp_path / "b.mp4"), "its codec is unknown; convert it to H.264")]
    for read in (read_info, read_traits, load_still, lambda path: next(read_frames(path, [0.0]))):
        with pytest.raises(ImageError, match=r"b\.mp4 .*codec is unknown"):
            read(str(tmp_path / "b.mp4"))


def test_pillow_itself_says_nothing_of_a_large_image_and_a_tiff_with_odd_tags(tmp_path):
    Image.new("L", (64, 64)).save(tmp_path / "a.png")
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[270] = "a" * 40
    Image.new("L", (8, 8)).save(tmp_path / "b.tif", tiffinfo=tags)
    content = (tmp_path / "b.tif").read_bytes()
    (tmp_path / "b.tif").write_bytes(content.replace(b"\x0e\x01\x02\x00", b"\x0e\x01\x05\x00"))  # text as fractions
    code = (
        "from modules.data.images import Image, load_image\n"
        "Image.MAX_IMAGE_PIXELS = 3000\n"  # below the pixels of the first one, and above half of them
        f"load_image({str(tmp_path / 'a.png')!r}), load_image({str(tmp_path / 'b.tif')!r})"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_the_check_names_a_huge_image(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "HUGE_PIXELS", 4000)
    add_picture(tmp_path / "a.png")
    found = health.check_health(TrainConfig(concepts=[ConceptConfig(path=str(tmp_path), captions="prompt")])).findings
    (paths,) = [finding.paths for finding in found if finding.kind == "huge"]
    assert paths == [str(tmp_path / "a.png")]
