"""Reads videos from files, with PyAV, and from folders of frames, and writes MP4.

Frames are chosen by time, because files may have a variable frame rate, and look as in a player: upright, with square
pixels, and in the colors of SDR.

Files are untrusted: the container format is one of few, by the content or else by the extension, and FFmpeg never
guesses it, so that a playlist can't pass as a video. Any damage is reported as ImageError. PyAV is imported only when a
video is opened.
"""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from modules.config.regular_file import open_regular
from modules.data.errors import ImageError
from modules.data.hdr import Curve, to_sdr
from modules.data.image_formats import EXTENSIONS as IMAGE_EXTENSIONS
from modules.data.images import DAMAGE, load_image, read_size
from modules.data.mask_names import is_mask

if TYPE_CHECKING:
    from fractions import Fraction

    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

    from modules.data.ClipWithAudio import Audio

# extension -> FFmpeg's name of the container format
FORMATS = {
    ".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "matroska", ".avi": "avi", ".gif": "gif",
}  # fmt: skip
EXTENSIONS = frozenset(FORMATS)
# Times in files are rounded to a time base, of milliseconds in WebM.
TOLERANCE_SECONDS = 0.002
# A frame of a video, as `frame_path` names it.
_FRAME = re.compile(rf"(.+(?:{'|'.join(map(re.escape, FORMATS))}))#t=([0-9]+(?:\.[0-9]+)?)", re.IGNORECASE)
MAX_SECONDS = 7 * 24 * 3600  # longer ones are damaged, and would be cut into billions of clips
MAX_PIXELS = 178_956_970  # of a frame, as Pillow limits those of an image
# How much earlier than its header says a good file may end: the last frame of a slow animation is shown this long.
MISSING_SECONDS = 0.5

_TAGGED_DURATION = re.compile(r"(\d+):(\d+):(\d+(?:\.\d+)?)")
GLANCE = 64, 36  # width and height, in pixels, in which frames are compared

_PACKETS = 300  # enough to see a frame rate that changes

# FFmpeg's AVCOL_..._BT709, AVCOL_RANGE_MPEG, AVCOL_SPC_UNSPECIFIED, AVCOL_SPC_BT2020_NCL, and two of its AVCOL_TRC
_BT709, _LIMITED_RANGE, _UNSPECIFIED, _BT2020 = 1, 1, 2, 9
_HDR_CURVES: dict[int, Curve] = {16: "PQ", 18: "HLG"}

# What files begin with -> FFmpeg's name of their container format, or what they are called in messages
_MARKS = {
    b"\x1a\x45\xdf\xa3": "matroska", b"GIF8": "gif",
    b"FLV\x01": "Flash video", b"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "Windows Media", b"OggS": "Ogg",
    b"\x00\x00\x01\xba": "an MPEG stream", b"\x47\x40": "an MPEG stream",
}  # fmt: skip
_UNREAD = {"Flash video", "Windows Media", "Ogg", "an MPEG stream"}
_MP4_BOXES = {b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"}
_STILL_MARKS = b"\x89PNG", b"\xff\xd8\xff", b"\xff\x0a"
_STILL_BRANDS = {b"avif", b"heic", b"heix", b"mif1", b"WEBP"}  # of files that begin like videos
_HEAD_BYTES = 16


class VideoInfo(NamedTuple):
    """width, height: of the upright frames, in pixels. seconds: the duration.

    folder_fps: frames per second of a folder of frames; None of a file. has_audio: whether a file has an audio track.
    """

    width: int
    height: int
    seconds: float
    folder_fps: float | None = None
    has_audio: bool = False


def is_video(path: str | os.PathLike) -> bool:
    """Whether it is a folder of frames or has the extension of a video; animated GIFs are among them."""
    return os.path.splitext(path)[1].lower() in EXTENSIONS or os.path.isdir(path)


def files_of(path: str) -> list[str]:
    """The file of an image or a video, or those of a folder of frames. Raises ImageError."""
    return frame_files(path) if os.path.isdir(path) else [path]


def frame_files(folder: str) -> list[str]:
    """The paths of the images in a folder of frames, without masks of single ones, in the order of the numbers in their
    names. Raises ImageError."""
    try:
        names = [name for name in os.listdir(folder) if os.path.splitext(name)[1].lower() in IMAGE_EXTENSIONS]
    except OSError as error:
        raise ImageError(folder, error.strerror or str(error)) from error
    stems = {os.path.splitext(name)[0].lower() for name in names}
    names = [name for name in names if not is_mask(name, stems)]
    if not names:
        raise ImageError(folder, "it holds no images")
    return [os.path.join(folder, name) for name in sorted(names, key=by_numbers)]


def frame_path(path: str, seconds: float, folder_fps: float | None = None) -> str:
    """A path of the frame that a video shows at `seconds`, for `load_still`: `walk.mp4#t=2.5`, as in web pages.

    Of a folder of frames, it is that of a file. folder_fps: as in `read_frames`. Raises ImageError.
    """
    if os.path.isdir(path):
        return _shown_file(frame_files(path), seconds, folder_fps)
    return f"{path}#t={round(seconds, 3)}" if seconds else path


def split_time(path: str) -> tuple[str, float | None]:
    """The video and the time of a `frame_path`; another path as it is, without a time."""
    match = _FRAME.fullmatch(path)
    return (match[1], float(match[2])) if match else (path, None)


def read_info(path: str, folder_fps: float | None = None) -> VideoInfo:
    """Size and duration, from the first frame and the header. Raises ImageError if the file is not a usable video.

    folder_fps: as in VideoInfo.
    """
    if folder_fps is not None and os.path.isdir(path):
        frames = frame_files(path)
        return VideoInfo(*read_size(frames[0]), len(frames) / folder_fps, folder_fps)
    with opened(path) as (container, stream):
        stream.codec_context.thread_count = 1  # starting more takes ten times as long as the one frame
        frame = _first(container, stream)
        width, height = _square_size(frame, stream.sample_aspect_ratio)
        if _is_sideways(frame):
            width, height = height, width
        seconds = _seconds(container, stream)
        if not 0 <= seconds <= MAX_SECONDS:
            raise ValueError(f"its header claims that it lasts {seconds:.1f} s")
        return VideoInfo(width, height, seconds, has_audio=bool(container.streams.audio))


def read_changes(path: str) -> list[str]:
    """Names of what about a video file was once not heeded: "square" pixels, "bt709" in HD without tags, and "hdr".

    Raises ImageError.
    """
    with opened(path) as (container, stream):
        stream.codec_context.thread_count = 1
        frame = _first(container, stream)
        is_square = _square_size(frame, stream.sample_aspect_ratio) == (frame.width, frame.height)
        found = {"square": not is_square, "bt709": _is_untagged_hd(frame), "hdr": frame.color_trc in _HDR_CURVES}
        return [name for name, is_found in found.items() if is_found]


class VideoTraits(NamedTuple):
    """is_variable: whether the frame rate changes. is_sideways: whether frames are stored turned by 90 degrees. is_hdr:
    whether its colors are converted to SDR."""

    is_variable: bool
    is_sideways: bool
    is_hdr: bool


def read_traits(path: str) -> VideoTraits:
    """What is unusual about a video, from its first frames. Raises ImageError."""
    with opened(path) as (container, stream):
        stream.codec_context.thread_count = 1
        packets = itertools.islice(container.demux(stream), _PACKETS)
        times = sorted(packet.pts for packet in packets if packet.pts is not None)
        steps = [later - earlier for earlier, later in itertools.pairwise(times)]
        # times are rounded to the time base, so that steps of a constant rate may differ by one
        is_variable = bool(steps) and max(steps) - min(steps) > max(2, 0.1 * max(steps))
        container.seek(0)
        frame = _first(container, stream)
        return VideoTraits(is_variable, _is_sideways(frame), frame.color_trc in _HDR_CURVES)


def info_or_reason(path: str, folder_fps: float | None = None) -> VideoInfo | str:
    """The result of `read_info`, or the reason why it can't be read."""
    try:
        return read_info(path, folder_fps)
    except ImageError as error:
        return error.reason


def read_frames(path: str, times: Sequence[float], folder_fps: float | None = None) -> Iterator[Image.Image]:
    """The upright RGB frames that a player shows at these times, which must ascend.

    times: in seconds from the first frame. Past the end, the last frame counts for half a second.
    folder_fps: as in VideoInfo; a folder without has one frame per second.
    Only one frame is in memory at a time. Raises ImageError if the file is damaged or ends too early.
    """
    if os.path.isdir(path):
        files = frame_files(path)
        for time in times:
            yield load_image(_shown_file(files, time, folder_fps))
        return
    with opened(path) as (container, stream):
        tick = _time_base(stream)
        begin = float((stream.start_time or 0) * tick)
        if times[0] > 0:
            container.seek(int((begin + times[0]) / tick), stream=stream, backward=True)
        waiting = list(times)
        shown: VideoFrame | None = None
        for frame in container.decode(stream):
            at = (frame.time or 0.0) - begin
            while shown is not None and waiting and waiting[0] < at - TOLERANCE_SECONDS:
                yield _upright(shown, stream)
                waiting.pop(0)
            if not waiting:
                return
            shown, shown_at = frame, at
        if shown is None:
            raise ValueError("it has no frames")
        for time in waiting:
            if time > shown_at + MISSING_SECONDS:
                raise ValueError(f"it ends after {shown_at:.1f} s, before the {time:.1f} s that its header promises")
            yield _upright(shown, stream)


def load_still(path: str, at_least: tuple[int, int] | None = None, seconds: float = 0.0) -> Image.Image:
    """The image at `path`, or the frame that a video shows at `seconds`, at most its last one. Raises ImageError.

    path: its own time, as of `frame_path`, goes before `seconds`. at_least: as for `load_image`.
    """
    path, own_seconds = split_time(path)
    seconds = seconds if own_seconds is None else own_seconds
    if os.path.splitext(path)[1].lower() in IMAGE_EXTENSIONS and not (seconds and is_video(path)):
        return load_image(path, at_least)
    return _frame_at(path, seconds) if seconds else next(read_frames(path, [0.0]))


def _frame_at(path: str, seconds: float) -> Image.Image:
    """As of `load_still`; in `read_frames`, a time behind the end is an error."""
    end = read_info(path).seconds
    with opened(path) as (container, stream):
        tick = _time_base(stream)
        begin = float((stream.start_time or 0) * tick)
        container.seek(int((begin + min(seconds, end)) / tick), stream=stream, backward=True)
        shown: VideoFrame | None = None
        for frame in container.decode(stream):
            if shown is not None and (frame.time or 0.0) - begin > seconds + TOLERANCE_SECONDS:
                break
            shown = frame
        if shown is None:
            raise ValueError("it has no frames")
        return _upright(shown, stream)


def glance_frames(path: str, size: tuple[int, int] = GLANCE) -> Iterator[tuple[float, np.ndarray]]:
    """Every frame of a video file in a few pixels, uint8[H, W, 3] as it is stored, with its time in seconds from the
    first one. size: width and height in pixels. Raises ImageError."""
    with opened(path) as (container, stream):
        stream.thread_type = "AUTO"
        begin = float((stream.start_time or 0) * _time_base(stream))
        for frame in container.decode(stream):
            small = frame.reformat(width=size[0], height=size[1], format="rgb24", interpolation="AREA")
            yield (frame.time or 0.0) - begin, small.to_ndarray()


def to_mp4(frames: Sequence[Image.Image], fps: float, audio: Audio | None = None) -> bytes:
    """The content of an MP4 file: H.264 in the colors of BT.709, as players expect. Sides must be even.

    audio: becomes an AAC track.
    """
    file = io.BytesIO()
    write_mp4(file, frames, fps, audio)
    return file.getvalue()


def write_mp4(
    file: str | os.PathLike | BinaryIO, frames: Iterable[Image.Image], fps: float, audio: Audio | None = None
) -> None:
    """Like `to_mp4`, into a file, with one frame in memory at a time. frames: at least one. Raises OSError."""
    from fractions import Fraction

    import av
    from av.video.reformatter import Colorspace

    frames = iter(frames)
    first = next(frames)
    target = os.fspath(file) if isinstance(file, (str, os.PathLike)) else file
    with av.open(target, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000), options={"crf": "17"})
        stream.width, stream.height = first.size
        stream.pix_fmt = "yuv420p"
        codec = stream.codec_context
        codec.color_primaries = codec.color_trc = codec.colorspace = _BT709
        codec.color_range = _LIMITED_RANGE
        track = None if audio is None else container.add_stream("aac", rate=audio.rate, layout="stereo")
        for image in itertools.chain([first], frames):
            frame = av.VideoFrame.from_image(image)
            container.mux(stream.encode(frame.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709)))
        container.mux(stream.encode())
        if audio is not None and track is not None:
            whole = av.AudioFrame.from_ndarray(np.ascontiguousarray(audio.waveform), format="fltp", layout="stereo")
            whole.sample_rate, whole.pts = audio.rate, 0
            container.mux(track.encode(whole))
            container.mux(track.encode())


def _shown_file(files: Sequence[str], seconds: float, folder_fps: float | None) -> str:
    return files[min(int((seconds + TOLERANCE_SECONDS) * (folder_fps or 1.0)), len(files) - 1)]


def by_numbers(name: str) -> tuple:
    """A key that sorts frame2.png before frame10.png."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)), name


@contextmanager
def opened(path: str) -> Iterator[tuple[InputContainer, VideoStream]]:
    """The file and its first video stream; whatever FFmpeg finds wrong with it becomes an ImageError."""
    import av

    try:
        with open_regular(path) as file, av.open(file, format=_format_of(file, path)) as container:
            if not container.streams.video:
                raise ValueError("it has no video stream")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise ValueError("its codec is unknown; convert it to H.264")
            width, height = stream.codec_context.width, stream.codec_context.height
            if width * height > MAX_PIXELS:
                raise ValueError(f"its frames are {width} x {height}")
            yield container, stream
    except (av.error.FFmpegError, *DAMAGE) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ImageError(path, " ".join(reason.split()).rstrip(".")) from error


def _format_of(file: BinaryIO, path: str) -> str:
    """FFmpeg's name of the container format of a file: of its content, or of its name if that has no known mark."""
    head = file.read(_HEAD_BYTES)
    file.seek(0)
    if not head:
        raise ValueError("it is empty")
    if head.startswith(_STILL_MARKS) or head[8:12] in _STILL_BRANDS:
        raise ValueError("its content is an image, not a video; give it the extension of its format")
    if head[4:8] in _MP4_BOXES:
        return "mp4"
    if head.startswith(b"RIFF"):
        return "avi"
    kind = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if kind in _UNREAD:
        raise ValueError(f"its content is {kind}, which is not read; convert it to MP4")
    return kind or FORMATS[os.path.splitext(path)[1].lower()]


def _first(container: InputContainer, stream: VideoStream) -> VideoFrame:
    for frame in container.decode(stream):
        return frame
    raise ValueError("it has no frames")


def _seconds(container: InputContainer, stream: VideoStream) -> float:
    """The duration: of the stream, else of the file, else of its packets."""
    tick = _time_base(stream)
    if stream.duration:
        return float(stream.duration * tick)
    # Matroska has it in a tag alone; the file lasts as long as its longest stream, such as its audio.
    if tag := _TAGGED_DURATION.fullmatch(stream.metadata.get("DURATION", "")):
        hours, minutes, seconds = map(float, tag.groups())
        return 3600 * hours + 60 * minutes + seconds
    if container.duration:
        return container.duration / 1e6  # of AV_TIME_BASE
    container.seek(0)
    ends = [packet.pts + (packet.duration or 0) for packet in container.demux(stream) if packet.pts is not None]
    return float((max(ends) - (stream.start_time or 0)) * tick)


def _time_base(stream: VideoStream) -> Fraction:
    """The unit of times in the stream, in seconds."""
    if stream.time_base is None:
        raise ValueError("its frames have no times")
    return stream.time_base


def _is_sideways(frame: VideoFrame) -> bool:
    return frame.rotation % 180 != 0


def _upright(frame: VideoFrame, stream: VideoStream) -> Image.Image:
    """A frame as a player shows it. Decoding applies neither the rotation of phones nor the shape of pixels."""
    array = _colors(frame)
    size = _square_size(frame, stream.sample_aspect_ratio)
    if size != (frame.width, frame.height):
        array = np.asarray(Image.fromarray(array).resize(size, Image.Resampling.LANCZOS))
    return Image.fromarray(np.ascontiguousarray(np.rot90(array, frame.rotation // 90)))


def _square_size(frame: VideoFrame, aspect: Fraction | None) -> tuple[int, int]:
    """Width and height of a stored frame with square pixels; the side that is too short becomes longer.

    aspect: width of a pixel relative to its height; None or 0 if it is unknown, and counts as 1.
    """
    if not aspect or aspect <= 0:
        return frame.width, frame.height
    is_wide = aspect > 1
    size = (round(frame.width * aspect), frame.height) if is_wide else (frame.width, round(frame.height / aspect))
    if size[0] * size[1] > MAX_PIXELS:
        raise ValueError(
            f"its frames are {size[0]} x {size[1]}, with pixels of {aspect.numerator}:{aspect.denominator}"
        )
    return size


def _is_untagged_hd(frame: VideoFrame) -> bool:
    """Whether it does not say how its colors are stored, and has the size for which players then take BT.709."""
    is_yuv = len(frame.format.components) >= 3 and not frame.format.is_rgb
    return is_yuv and frame.colorspace == _UNSPECIFIED and (frame.width >= 1280 or frame.height > 576)


def _colors(frame: VideoFrame) -> np.ndarray:
    """The pixels of a frame as uint8[H, W, 3]."""
    if curve := _HDR_CURVES.get(frame.color_trc):
        if frame.colorspace == _UNSPECIFIED:
            frame.colorspace = _BT2020
        return to_sdr(frame.to_ndarray(format="rgb48le"), curve, frame.color_primaries)
    if _is_untagged_hd(frame):
        frame.colorspace = _BT709
    return frame.to_ndarray(format="rgb24")
