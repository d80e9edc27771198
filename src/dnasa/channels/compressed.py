"""Compressed messages, for any rule: with memory (CHOCO, Koloskova et al., 2019), or at positions that all nodes share."""

from collections.abc import Callable
from typing import NamedTuple

from dnasa.channels.exchange import check_memory
from dnasa.core import Array, Channel, InputError, Memory, Messages, Multiply, choose
from dnasa.extras import needed_by


class Codec(NamedTuple):
    """`encode(a, t)` turns `(..., k, m)` into payload rows `(..., k, w)` of any dtype, `decode(payload, like, t)` back.

    `like` is a message, for its width and dtype. What is random is a function of t (and a seed) alone, alike at all nodes.
    `gamma` is CHOCO's default with this codec; None, where payloads can be mixed as they are (`without_memory`).
    """

    encode: Callable[[Array, int], Array]
    decode: Callable[[Array, Array, int], Array]
    row_bytes: Callable[[Array], float]
    name: str
    gamma: float | None = 0.3


def compression(how: str | Codec) -> Channel:
    """Messages compressed by a codec, or by one of its name: topk:0.01, randk:0.01, 8bit, 4bit or sign.

    With CHOCO's memory, but for randk; `sign,gamma=0.2` sets CHOCO's gamma.
    """
    name, _, setting = how.partition(",") if isinstance(how, str) else (how, "", "")
    codec = _named(name) if isinstance(name, str) else name
    if setting:
        key, _, gamma = setting.partition("=")
        if key.strip() != "gamma":
            raise InputError(f"Compression takes a name and gamma, such as topk:0.01,gamma=0.3; not '{how}'.")
        return choco(codec, _number("gamma", gamma))
    return without_memory(codec) if isinstance(codec, Codec) and codec.gamma is None else choco(codec)


def _named(text: str) -> Codec:
    with needed_by("Compression"):
        from dnasa.channels.codecs import quantised, random_k, sign, top_k

    name, _, share = text.strip().partition(":")
    shares = {"topk": top_k, "randk": random_k}
    plain = {"8bit": lambda: quantised(8), "4bit": lambda: quantised(4), "sign": sign}
    choose("compression", name, shares | plain)
    if name in plain:
        if share:
            raise InputError(f"{name} takes no number: leave ':{share}' out.")
        return plain[name]()
    if not share:
        raise InputError(f"{name} needs the share of numbers to send, such as {name}:0.01.")
    return shares[name](_number(f"The share of {name}", share))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name} must be a number, not '{text}'.") from None


def without_memory(codec: Codec) -> Channel:
    """The numbers that a codec selects, the same ones at all nodes, are mixed; the others stay as they are."""

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int) -> tuple[Messages, Memory]:
        sent = tuple(codec.encode(y, t) for y in messages)
        mixed = multiply(sent)
        changes = (codec.decode(w - q, y, t) for y, q, w in zip(messages, sent, mixed, strict=True))
        return tuple(y + change for y, change in zip(messages, changes, strict=True)), memory

    return Channel(lambda message: (), exchange, settings=[codec.name, None], size=codec.row_bytes)


def choco(codec: Codec, gamma: float | None = None) -> Channel:
    """Each node sends q = Q(y - xhat), everybody does xhat <- xhat + q, and the exchange gives y + gamma (W - I) xhat.

    Its mean is that of y exactly. A node remembers its own xhat and the weighted sum W xhat of its neighbours'.
    By default gamma is the codec's: the larger it is, the faster nodes agree, until it diverges.
    """
    if not isinstance(codec, Codec):
        raise InputError(f"CHOCO needs a Codec, such as channels.top_k(0.1), not {type(codec).__name__}.")
    gamma = codec.gamma if gamma is None else gamma
    if gamma is None:
        raise InputError(f"{codec.name} has no default gamma for CHOCO: give one, at most the share of numbers sent.")
    if not 0 < gamma <= 1:
        raise InputError(f"CHOCO's gamma must be a number above 0 and at most 1, not {gamma}.")

    def decoder(like: Array, t: int) -> Callable[[Array], Array]:
        return lambda payload: codec.decode(payload, like, t)

    def exchange(memory: Memory, messages: Messages, multiply: Multiply, t: int) -> tuple[Messages, Memory]:
        check_memory(memory, messages, counts=range(2, 3))
        payloads = tuple(codec.encode(y - xhat, t) for y, (xhat, _) in zip(messages, memory, strict=True))
        decoders = [decoder(y, t) for y in messages]
        arrived = multiply(payloads, decoders)
        mixed, after = [], []
        for y, (xhat, total), payload, decode, weighted in zip(
            messages, memory, payloads, decoders, arrived, strict=True
        ):
            xhat, total = xhat + decode(payload), total + weighted
            mixed.append(y + gamma * (total - xhat))
            after.append((xhat, total))
        return tuple(mixed), tuple(after)

    return Channel(
        lambda message: (0 * message, 0 * message),
        exchange,
        settings=[codec.name, gamma],
        size=codec.row_bytes,
        fixed_graph=True,  # W xhat is a sum over all steps
    )
