"""Compressed messages, for any rule: with memory (CHOCO, Koloskova et al., 2019) or without."""

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from dnasa.arrays import like, norm
from dnasa.channels.codec import Codec, transmit
from dnasa.channels.exchange import check_memory
from dnasa.core import Array, Channel, InputError, Memory, Messages, Multiply, UserCode, check_new_name, choose
from dnasa.extras import needed_by


class Builtin(NamedTuple):
    """A compression with a name: a function that needs torch, and so is imported on first use, and its arguments."""

    function: str
    arguments: tuple[Any, ...] = ()
    module: str = "codecs"
    takes_text: bool = False  # after `NAME:`, instead of a number

    def load(self) -> Callable[..., Any]:
        with needed_by("Compression"):
            return getattr(import_module(f"dnasa.channels.{self.module}"), self.function)

    @property
    def make(self) -> Callable[..., Any]:
        return partial(self.load(), *self.arguments)


COMPRESSIONS = {
    "moniqua": Builtin("moniqua", module="modular", takes_text=True),
    "topk": Builtin("top_k"),
    "randk": Builtin("random_k"),
    "8bit": Builtin("quantised", (8,)),
    "4bit": Builtin("quantised", (4,)),
    "sign": Builtin("sign"),
}
"""Built-in codecs, and channels of their own, by name."""
DTYPES = ("bfloat16", "float16")
REGISTERED: dict[str, Callable[..., Codec]] = {}
"""The user's codecs, by name."""


def register(name: str, make: Callable[..., Codec]) -> None:
    """Make a compressor of your own usable by name: in `connect` and `solve` (`compress=`) and as `--compress NAME`.

    Registering a name again replaces a codec of your own, not a built-in one.

    Args:
        name: Letters, digits, - and _.
        make: A function that returns a `Codec`. If it takes a number, `NAME:4` calls it with 4.
    """
    check_new_name("codec", name, COMPRESSIONS)
    if not callable(make):
        raise InputError(f"The maker of codec '{name}' must be a function that returns a Codec.")
    REGISTERED[name] = make


def compression(how: str | Codec) -> Channel:
    """Messages compressed by a codec, with CHOCO's memory where the codec needs it, or by a channel of its own.

    Args:
        how: A `Codec`, or the name of a built-in or registered one, such as topk:0.01 or moniqua:8. `sign,gamma=0.2` sets
            CHOCO's gamma.
    """
    if not isinstance(how, str):
        return _carried(how)
    parts = re.fullmatch(r"([^:,]*)(?::(.*?))?(?:,\s*gamma\s*=(.*))?", how.strip())
    if parts is None:
        raise InputError(f"Compression takes a name and gamma, such as topk:0.01,gamma=0.3; not '{how}'.")
    name, argument, gamma = parts.groups()
    made = _by_name(name.strip(), argument)
    if isinstance(made, Codec):
        return _carried(made) if gamma is None else choco(made, _number("gamma", gamma))
    if gamma is not None:
        raise InputError(f"{name} has no gamma: leave ',gamma={gamma}' out.")
    return made


def _carried(codec: Codec) -> Channel:
    return without_memory(codec) if isinstance(codec, Codec) and codec.gamma is None else choco(codec)


def _by_name(name: str, argument: str | None) -> Codec | Channel:
    known = choose("compression", name, COMPRESSIONS | REGISTERED)
    make = known.make if name in COMPRESSIONS else known
    parameters = list(signature(make).parameters.values())
    if argument is not None and not parameters:
        raise InputError(f"{name} takes no number: leave ':{argument}' out.")
    if argument is None and any(parameter.default is parameter.empty for parameter in parameters):
        what = "the share of numbers to send" if parameters[0].name == "share" else f"its {parameters[0].name}"
        raise InputError(f"{name} needs {what}, such as {name}:{0.01 if name in COMPRESSIONS else 4}.")
    if name in COMPRESSIONS and known.takes_text:
        return make() if argument is None else make(argument)
    codec = make() if argument is None else make(_number(f"The {parameters[0].name} of {name}", argument))
    if not isinstance(codec, Codec):
        raise InputError(f"The maker of codec '{name}' must return a Codec, not {type(codec).__name__}.")
    return codec if name in COMPRESSIONS else codec._replace(name=name if argument is None else f"{name}:{argument}")


def _number(name: str, text: str) -> float:
    try:
        return int(text) if text.strip().isdecimal() else float(text)
    except ValueError:
        raise InputError(f"{name} must be a number, not '{text}'.") from None


def cast(dtype: str) -> Channel:
    """Messages travel in 16 bits, while the state stays in full precision.

    Args:
        dtype: "bfloat16" or "float16".
    """
    choose("message dtype", dtype, dict.fromkeys(DTYPES))
    with needed_by("A message dtype of 16 bits"):
        from dnasa.channels.codecs import rounded
    return without_memory(rounded(dtype))


def without_memory(codec: Codec) -> Channel:
    """A node receives Q(y) of its neighbours, and the exchange is y + (W - I) Q(y) in place of W y.

    What the codec removes stays with its owner, so the mean over the nodes, and with it mean(u) = mean(v), is preserved.
    """

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int, first: int) -> tuple[Messages, Memory]:
        sent, mixed = transmit(codec, messages, multiply, t)
        return tuple(w + (y - q) for w, y, q in zip(mixed, messages, sent, strict=True)), memory

    def init(message: Array) -> tuple[Array, ...]:
        _check(codec, message)
        return ()

    return Channel(init, exchange, settings=codec.name, size=codec.size)


def _check(codec: Codec, message: Array) -> None:
    """Refuse a codec that does not decode rows of the message's kind to the same kind, nearer to them than zeros are."""
    count, width = message.shape[-2:]
    rows = like(np.resize(np.sin(np.arange(1, 1000, dtype=np.float32)), (min(count, 2), width)), message)
    with UserCode(lambda: f"encode(a, t) of codec '{codec.name}'"):
        payload = codec.encode(rows, 0)
    with UserCode(lambda: f"decode(payload, like, t) of codec '{codec.name}'"):
        arrived = codec.decode(payload, rows, 0)
    with UserCode(lambda: f"row_bytes(a) of codec '{codec.name}'"):
        stated = codec.row_bytes(rows)
    if type(arrived) is not type(rows) or (arrived.shape, arrived.dtype) != (rows.shape, rows.dtype):
        raise InputError(
            f"Codec '{codec.name}' decodes a {_kind(rows)} to a {_kind(arrived)}: decode must return what encode was given, "
            "in shape, dtype and library."
        )
    if not (norm(rows - arrived) <= norm(rows) * (1 + 1e-3)).all():
        raise InputError(
            f"Codec '{codec.name}' decodes to numbers that are farther from the message than zeros are, so errors would grow: "
            "correct decode, or scale what it returns down."
        )
    if not hasattr(payload, "dtype") or payload.shape[-1] * payload.dtype.itemsize != stated:
        raise InputError(
            f"row_bytes of codec '{codec.name}' is {stated} for a {_kind(rows)}, but encode returns a {_kind(payload)}: "
            "return the bytes of one of its rows."
        )


def _kind(a: Array) -> str:
    shape = "" if getattr(a, "shape", None) is None else f" of shape {tuple(a.shape)} and {a.dtype}"
    return f"{type(a).__name__}{shape}"


def choco(codec: Codec, gamma: float | None = None) -> Channel:
    """Each node sends q = Q(y - xhat), everybody does xhat <- xhat + q, and the exchange gives y + gamma (W - I) xhat.

    Its mean is that of y exactly. A node remembers its own xhat and the weighted sum W xhat of its neighbours'.

    Args:
        codec: The compressor Q.
        gamma: Above 0 and at most 1; by default the codec's. The larger, the faster nodes agree, until it diverges.
    """
    if not isinstance(codec, Codec):
        raise InputError(f"CHOCO needs a Codec, such as channels.top_k(0.1), not {type(codec).__name__}.")
    gamma = codec.gamma if gamma is None else gamma
    if gamma is None:
        raise InputError(f"{codec.name} has no default gamma for CHOCO: give one, at most the share of numbers sent.")
    if not 0 < gamma <= 1:
        raise InputError(f"CHOCO's gamma must be a number above 0 and at most 1, not {gamma}.")

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int, first: int) -> tuple[Messages, Memory]:
        check_memory(memory, messages, counts=range(2, 3))
        changes = [y - xhat for y, (xhat, _) in zip(messages, memory, strict=True)]
        sent = zip(memory, *transmit(codec, changes, multiply, t), strict=True)
        after = tuple((xhat + q, total + mixed) for (xhat, total), q, mixed in sent)
        return tuple(corrected(y, xhat, total) for y, (xhat, total) in zip(messages, after, strict=True)), after

    def corrected(y: Array, xhat: Array, total: Array) -> Array:
        """y + gamma (total - xhat) with one new array: large ones take longer to allocate than to add."""
        mixed = total - xhat
        mixed *= gamma
        mixed += y
        return mixed

    def init(message: Array) -> tuple[Array, ...]:
        _check(codec, message)
        return 0 * message, 0 * message

    return Channel(
        init,
        exchange,
        settings=[codec.name, gamma],
        size=codec.size,
        fixed_graph=True,  # W xhat is a sum over all steps
    )
