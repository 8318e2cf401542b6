"""Videos whose frames tell their number by their gray level."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

LEVELS = 5  # between two frames: more than compression changes


def gray_frames(count: int, size: tuple[int, int] = (64, 48), first: int = 0) -> list[Image.Image]:
    """Frame n has the gray level LEVELS * (first + n), and a white stripe at its top, so that turning it shows."""
    frames = [Image.new("RGB", size, (LEVELS * (first + number),) * 3) for number in range(count)]
    for frame in frames:
        frame.paste((255, 255, 255), (0, 0, size[0], 8))
    return frames


def number_of(frame: Image.Image) -> int:
    """The number of one of `gray_frames`, of any size."""
    center = np.asarray(frame.convert("L"), float)[frame.height // 2, frame.width // 2]
    return round(center / LEVELS)


def write_video(
    path: Path, count: int, fps: int = 16, size: tuple[int, int] = (64, 48), times=None, first: int = 0
) -> Path:
    """times: of each frame, in milliseconds, for a variable rate; the container follows from the extension. first: as
    in `gray_frames`."""
    import av  # here, because tests that need no video also run where it is not installed

    path.parent.mkdir(exist_ok=True)
    codec = {".webm": "libvpx-vp9", ".avi": "mpeg4"}.get(path.suffix, "libx264")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = 250  # one key frame: seeking has to decode from the start
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for number, image in enumerate(gray_frames(count, size, first)):
            frame = av.VideoFrame.from_image(image)
            if times is not None:
                frame.pts, frame.time_base = times[number], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def write_sounding_video(path: Path, count: int, waveform: np.ndarray, **options) -> Path:
    """As of `write_video`, with a sound: float32[2, samples] in [-1, 1], 48000 in a second."""
    import av

    path.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, av.open(str(path), "w") as target:
        with av.open(str(write_video(Path(folder) / "mute.mp4", count, **options))) as source:
            video = target.add_stream_from_template(source.streams.video[0])
            sound = target.add_stream("aac", rate=48000, layout="stereo")
            sound.bit_rate = 256_000
            for packet in source.demux(video=0):
                if packet.dts is not None:
                    packet.stream = video
                    target.mux(packet)
        for first in range(0, waveform.shape[1], 1024):
            part = np.ascontiguousarray(waveform[:, first : first + 1024])
            frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="stereo")
            frame.sample_rate, frame.pts = 48000, first
            target.mux(sound.encode(frame))
        target.mux(sound.encode(None))
    return path


def turn_sideways(path: Path, turned: Path) -> Path:
    """A copy of an MP4 as phones store it: players turn its frames clockwise."""
    import av

    with av.open(str(path)) as source, av.open(str(turned), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    data = bytearray(turned.read_bytes())
    at = data.index(b"tkhd") + 4 + 40  # the matrix of the track header, in 16.16 fixed point
    matrix = [0, 0x10000, 0, -0x10000 & 0xFFFFFFFF, 0, 0, 0, 0, 0x40000000]
    data[at : at + 36] = b"".join(value.to_bytes(4, "big") for value in matrix)
    turned.write_bytes(data)
    return turned
