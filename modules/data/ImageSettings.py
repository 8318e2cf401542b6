"""What a person has decided about single images: the file `image_settings.json` in a concept's folder.

It leaves images out and crops them, without touching their files. Each image has a line of its own, by its path below
the folder:

    {
      "version": 1,
      "images": {
        "cat.jpg": {"left_out": true},
        "people/ann.jpg": {"crop": {"x": 120, "y": 0, "width": 900, "height": 900}}
      }
    }
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from modules.config.regular_file import read_regular
from modules.data.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

FILE_NAME = "image_settings.json"
VERSION = 1

_EMPTY = "{}"
_SIDES = ("x", "y", "width", "height")


class Crop(NamedTuple):
    """The part of an image that is used, in pixels of the upright image: left, top, width and height."""

    x: int
    y: int
    width: int
    height: int

    def fits(self, size: tuple[int, int]) -> bool:
        """Whether it lies inside an image of this width and height."""
        return self.x + self.width <= size[0] and self.y + self.height <= size[1]

    def scaled(self, whole: tuple[int, int], size: tuple[int, int]) -> Crop:
        """The same part of the image in another size, at least a pixel. whole: the size that this crop is made for."""
        if whole == size:
            return self
        left, right = _scaled(self.x, self.x + self.width, whole[0], size[0])
        top, bottom = _scaled(self.y, self.y + self.height, whole[1], size[1])
        return Crop(left, top, right - left, bottom - top)

    def of(self, image: Image, whole: tuple[int, int]) -> Image:
        """This part of an image, which may have another size than `whole`, as its mask may. whole: as for `scaled`."""
        x, y, width, height = self.scaled(whole, image.size)
        return image.crop((x, y, x + width, y + height))


@dataclass(frozen=True)
class ImageSetting:
    """What is decided about one image. left_out: it is not trained. crop: None for the whole image."""

    left_out: bool = False
    crop: Crop | None = None


PLAIN = ImageSetting()


@dataclass(frozen=True)
class ImageSettings:
    """The settings of the images in one folder: path below it, with forward slashes -> setting. Never changed."""

    images: Mapping[str, ImageSetting]

    @classmethod
    def read(cls, folder: str, setting: str = "") -> ImageSettings:
        """Those of a concept's folder; without any if it has no such file.

        setting: the one that names the folder, such as "concepts.0.path", for messages.
        Raises DataError if the file can't be read or holds anything but settings.
        """
        path = settings_file(folder)
        try:
            content = read_regular(path)
        except FileNotFoundError:
            return cls({})
        except OSError as error:
            raise _refused(setting, path, f"it can't be read ({error.strerror})", "make it a readable file") from error
        return cls.parse(content, path, setting)

    @classmethod
    def parse(cls, content: bytes, path: str, setting: str = "") -> ImageSettings:
        """The settings in the content of a file. path: of the file; setting: as for `read`. Raises DataError."""
        try:
            return cls(dict(_images(json.loads(content))))
        except (ValueError, RecursionError) as error:
            raise _refused(setting, path, str(error), "correct or remove the file") from error

    def of(self, path: str) -> ImageSetting:
        """The setting of an image. path: below the folder, with forward slashes."""
        return self.images.get(path, PLAIN)

    def with_images(self, images: Mapping[str, ImageSetting]) -> ImageSettings:
        """These settings with others for some images; images that are trained as usual have no entry."""
        changed = {**self.images, **images}
        return ImageSettings({path: setting for path, setting in changed.items() if setting != PLAIN})

    def to_bytes(self) -> bytes:
        """The content of the file, with the images in the order of their paths."""
        lines = [
            f"    {json.dumps(path, ensure_ascii=False)}: {json.dumps(_values(setting), ensure_ascii=False)}"
            for path, setting in sorted(self.images.items())
        ]
        images = "{\n" + ",\n".join(lines) + "\n  }" if lines else _EMPTY
        text = f'{{\n  "version": {VERSION},\n  "images": {images}\n}}\n'
        return text.encode("utf-8", "surrogatepass")  # file names need not be valid Unicode; json.loads takes it, too


def settings_file(folder: str) -> str:
    """The path of the settings of the images in a concept's folder, whether it exists or not."""
    return os.path.join(os.path.expanduser(folder), FILE_NAME)


def _images(content: Any) -> Iterator[tuple[str, ImageSetting]]:
    """The entries of a parsed file. Raises ValueError, whose text is a clause about the file."""
    content = _with_keys(content, "it", ("version", "images"))
    version = content.get("version")
    if not _is_int(version) or version < 1:
        raise ValueError(f'its "version" is {_shown(version)}, not a number from 1 on')
    if version > VERSION:
        raise ValueError(f'its "version" is {version}, from a later Chorus than this one, which reads up to {VERSION}')
    images = content.get("images", {})
    if not isinstance(images, dict):
        raise ValueError(f'its "images" are {_shown(images)}, not an object with the path of each image')
    for path, values in images.items():
        name = f"the entry of {path!r}"
        values = _with_keys(values, name, ("left_out", "crop"))
        left_out = values.get("left_out", False)
        if not isinstance(left_out, bool):
            raise ValueError(f'"left_out" in {name} is {_shown(left_out)}, neither true nor false')
        yield path, ImageSetting(left_out, _crop(values["crop"], name) if values.get("crop") is not None else None)


def _crop(values: Any, name: str) -> Crop:
    values = _with_keys(values, f'"crop" in {name}', _SIDES)
    for side, least in zip(_SIDES, (0, 0, 1, 1), strict=True):
        if not _is_int(values.get(side)) or values[side] < least:
            raise ValueError(
                f'"{side}" of the crop in {name} is {_shown(values.get(side))}, not a number of pixels from {least} on'
            )
    return Crop(*(values[side] for side in _SIDES))


def _with_keys(values: Any, name: str, known: tuple[str, ...]) -> dict[str, Any]:
    """`values`, which must be an object without other keys than these. name: what it is called."""
    if not isinstance(values, dict):
        raise ValueError(f"{name} is {_shown(values)}, not an object with {', '.join(known)}")
    if unknown := [key for key in values if key not in known]:
        raise ValueError(f"{name} has an unknown key {_shown(unknown[0])}; known are {', '.join(known)}")
    return values


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _values(setting: ImageSetting) -> dict[str, Any]:
    crop = {} if setting.crop is None else {"crop": setting.crop._asdict()}
    return ({"left_out": True} if setting.left_out else {}) | crop


def _scaled(first: int, end: int, whole: int, size: int) -> tuple[int, int]:
    """Where a stretch of one side begins and ends in another size of it, rounded half up, as integers round alike."""
    first, end = ((2 * place * size + whole) // (2 * whole) for place in (first, end))
    first = min(first, size - 1)
    return first, max(end, first + 1)


def _refused(setting: str, path: str, what: str, remedy: str) -> DataError:
    text = f"{path} can't be used: {what}; {remedy}."
    return DataError.at(setting, f": {text}") if setting else DataError(text)
