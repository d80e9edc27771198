"""Folders of images by class: `cat/1.png`, `dog/2.png`, ..., or the same inside `train` and `test`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dnasa.core import InputError
from dnasa.data.rows import Rows, of_arrays
from dnasa.extras import needed_by

KINDS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")  # others may start a program, as PostScript does


def read_images(folder: Path) -> tuple[Rows, Rows | None]:
    """All images as bytes, gray or in color, and those of the folder `test` if there is one; all have the size of the first."""
    parts = [folder / name for name in ("train", "test") if (folder / name).is_dir()]
    train, *tests = (by_class(part) for part in (parts if (folder / "train").is_dir() else [folder]))
    every = [path for part in (train, *tests) for path in part]
    gray = all(_open(path).mode in ("L", "1", "I;16", "I") for path in every)
    size, mode = _open(every[0]).size, "L" if gray else "RGB"
    rows = [of_arrays(pixels([*part], mode, size), np.array([*part.values()]), folder.name) for part in (train, *tests)]
    return rows[0], rows[1] if tests else None


def read_unlabelled(folder: Path, shape: tuple[int, ...]) -> tuple[np.ndarray, list[str]]:
    """All images of a folder, for a model that takes rows of this shape, and their names."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in KINDS)
    if not paths or len(shape) != 3 or shape[0] not in (1, 3):
        raise InputError(f"{folder} holds no images, or the model takes none: give a file.")
    return pixels(paths, "L" if shape[0] == 1 else "RGB", (shape[2], shape[1])), [
        str(p.relative_to(folder)) for p in paths
    ]


def by_class(folder: Path) -> dict[Path, str]:
    """The images and the name of each one's class, the folder it is in."""
    groups = sorted(path for path in folder.iterdir() if path.is_dir())
    classes = {
        path: group.name
        for group in groups
        for path in sorted(group.iterdir())
        if path.suffix.lower() in KINDS and path.is_file()
    }
    if not classes:
        raise InputError(f"{folder} holds neither a table nor images by class, such as cat/1.png.")
    return classes


def _open(path: Path) -> Any:
    with needed_by(f"Reading the image {path.name}"):
        from PIL import Image
    try:
        return Image.open(path, formats=FORMATS)
    except Exception as error:  # Pillow raises many kinds for damaged images
        raise InputError(f"{path} is not an image that Pillow can read: replace or remove it.") from error


def pixels(paths: Sequence[Path], mode: str, size: tuple[int, int]) -> np.ndarray:
    """Images x channels x height x width; the size is checked before memory is used for it."""
    return np.stack([_pixels(path, mode, size) for path in paths])


def _pixels(path: Path, mode: str, size: tuple[int, int]) -> np.ndarray:
    image = _open(path)
    if image.size != size:
        sizes = [f"{width} x {height} pixels" for width, height in (image.size, size)]
        raise InputError(f"{path} has {sizes[0]} and others have {sizes[1]}: make all images the same size.")
    try:
        array = np.asarray(image.convert(mode))
    except Exception as error:  # Pillow raises many kinds for damaged images
        raise InputError(f"{path} is damaged: replace or remove it.") from error
    return array[None] if mode == "L" else array.transpose(2, 0, 1)
