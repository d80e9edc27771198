"""Folders of images by class: `cat/1.png`, `dog/2.png`, ..., or the same inside `train` and `test`."""

from pathlib import Path
from typing import Any

import numpy as np

from dnasa.core import InputError
from dnasa.data.rows import Rows, of_arrays
from dnasa.extras import needed_by

KINDS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")  # others may start a program, as PostScript does


def read_images(folder: Path) -> tuple[Rows, Rows | None]:
    """All images as bytes, grey or in colour, and those of the folder `test` if there is one."""
    if not (folder / "train").is_dir():
        return _read(folder, by_class(folder)), None
    train, test = by_class(folder / "train"), by_class(folder / "test") if (folder / "test").is_dir() else {}
    colour = _mode(train | test)
    return _read(folder, train, colour), _read(folder, test, colour) if test else None


def by_class(folder: Path) -> dict[Path, str]:
    """The images and the name of each one's class, the folder it is in."""
    found = {
        path: group.name
        for group in sorted(p for p in folder.iterdir() if p.is_dir())
        for path in sorted(group.iterdir())
        if path.suffix.lower() in KINDS and path.is_file()
    }
    if not found:
        raise InputError(
            f"{folder} holds neither a table (.csv, .npz, ...) nor images in a folder for each class, such as cat/1.png."
        )
    return found


def _mode(paths: dict[Path, str]) -> str:
    """Grey if all images are."""
    return "L" if all(_open(path).mode in ("L", "1", "I;16", "I") for path in paths) else "RGB"


def _open(path: Path) -> Any:
    with needed_by(f"Reading the image {path.name}"):
        from PIL import Image
    try:
        return Image.open(path, formats=FORMATS)
    except Exception as error:  # Pillow raises many kinds for damaged images
        raise InputError(f"{path} is not an image that Pillow can read: replace or remove it.") from error


def _read(folder: Path, paths: dict[Path, str], mode: str | None = None) -> Rows:
    mode, first = mode or _mode(paths), next(iter(paths))
    size = _open(first).size
    stacked = np.stack([pixels(path, mode, first, size) for path in paths])
    understood = {"format": f"images, {'grey' if mode == 'L' else 'colour'}"}
    return of_arrays(stacked, np.array(list(paths.values())), folder.name, understood=understood)


def pixels(path: Path, mode: str, first: Path | str, size: tuple[int, int]) -> np.ndarray:
    """Channels x height x width; the size is checked before memory is used for it."""
    image = _open(path)
    if image.size != size:
        sizes = [f"{width} x {height} pixels" for width, height in (image.size, size)]
        raise InputError(f"{path} has {sizes[0]} and {first} has {sizes[1]}: make all images the same size.")
    try:
        array = np.asarray(image.convert(mode))
    except Exception as error:  # Pillow raises many kinds for damaged images
        raise InputError(f"{path} is damaged: replace or remove it.") from error
    return array[None] if mode == "L" else array.transpose(2, 0, 1)
