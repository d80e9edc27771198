"""Channels by name, as options give them. Those that compress need torch, which is imported on first use."""

import re
from collections.abc import Mapping
from typing import Any

from dnasa.channels.compressed import COMPRESSIONS, Codec, choco, without_memory
from dnasa.channels.faulty import faulty
from dnasa.checks import choose
from dnasa.communication import Channel
from dnasa.core import InputError
from dnasa.extras import needed_by

NUMBER = r"\d*\.?\d+(?:e-?\d+)?"


def compression(how: str | Codec) -> Channel:
    """Messages compressed by a codec, with CHOCO's memory where the codec needs it, or by Moniqua.

    Args:
        how: A `Codec`; or bfloat16 or float16, whose messages have 16 bits; or feedback:2, moniqua:8, topk:0.01 or sign.
            `sign,gamma=0.2` sets CHOCO's gamma.
    """
    if isinstance(how, Codec) and how.gamma is None:
        return without_memory(how)
    if not isinstance(how, str):
        return choco(how)
    text = how.strip()
    name = re.split("[:,]", text)[0]
    choose("compression", name, dict.fromkeys(COMPRESSIONS))
    with needed_by("Compression"):
        from dnasa.channels.codecs import rounded, sign, top_k
        from dnasa.channels.error_feedback import feedback
        from dnasa.channels.modular import moniqua
    if text in ("bfloat16", "float16"):
        return without_memory(rounded(text))
    if re.fullmatch(r"feedback(:\d)?", text):
        return feedback(int(text[-1]) if ":" in text else 2)
    if name == "moniqua":
        return moniqua(text.removeprefix("moniqua").removeprefix(":") or 8)
    parts = re.fullmatch(rf"(?:topk:({NUMBER})|sign)(?:,\s*gamma\s*=\s*({NUMBER}))?", text)
    if parts is None:
        raise InputError(f"Compression is such as topk:0.01, sign or sign,gamma=0.2; not '{how}'.")
    share, gamma = parts.groups()
    return choco(sign() if share is None else top_k(float(share)), None if gamma is None else float(gamma))


def channel_of(options: Mapping[str, Any]) -> Channel | None:
    """How messages travel with the options of a command or a study: some of them lost, compressed, or as they are."""
    if not options["drop"]:
        return compression(options["compress"]) if options["compress"] else None
    for name in ("clock", "compress"):
        if options[name] is not None:
            raise InputError(f"--{name} cannot be combined with --drop: leave one of them out.")
    if options["rounds"] not in (None, "1", 1):
        raise InputError("--drop needs one round per exchange: leave out --rounds.")
    return faulty(options["drop"], seed=options["seed"])
