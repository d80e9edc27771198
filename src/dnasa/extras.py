"""Packages that only some parts need: each comes with an extra, `pip install 'dnasa[EXTRA]'`."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from dnasa.core import InputError

EXTRAS = {  # the module: the name of its package, and the extra that installs it
    "cryptography": ("cryptography", "sites"),
    "dp_accounting": ("dp-accounting", "private"),
    "matplotlib": ("matplotlib", "plot"),
    "onnx": ("onnx", "onnx"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "onnxscript": ("onnxscript", "onnx"),
    "PIL": ("Pillow", "data"),
    "pyarrow": ("pyarrow", "parquet"),
    "sklearn": ("scikit-learn", "data"),
    "statsmodels": ("statsmodels", "data"),
    "tokenizers": ("tokenizers", "text"),
    "torch": ("torch", "torch"),
}


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Wrap imports: if a package of an extra is missing, one line says what needs it and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        package, extra = EXTRAS[module]
        raise InputError(f"{what} needs {package}: pip install 'dnasa[{extra}]'.") from error


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None
