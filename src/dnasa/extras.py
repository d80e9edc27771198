"""Packages that only some parts need: each comes with an extra, `pip install 'dnasa[EXTRA]'`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

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


def on_first_use(
    package: str, names: Sequence[str], places: Mapping[str, str], what: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that imports public names on first use, as some need SciPy, torch or matplotlib.

    `places` has the modules of functions and classes, relative to the package; other names are modules. `what` needs them.
    """

    def attribute(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        with needed_by(what or f"{package}.{name}"):
            module = import_module(f"{package}.{places.get(name, name)}")
        return getattr(module, name) if name in places else module

    return attribute, lambda: sorted(names)


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None
