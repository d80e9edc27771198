"""Channels by name, as options give them. Those that compress need torch, which is imported on first use."""

import re

from dnasa.channels.compressed import COMPRESSIONS, Codec, choco, without_memory
from dnasa.checks import choose
from dnasa.communication import Channel
from dnasa.core import InputError
from dnasa.extras import needed_by


def compression(how: str | Codec) -> Channel:
    """Messages compressed by a codec, with CHOCO's memory where the codec needs it, or by Moniqua.

    Args:
        how: A `Codec`; or bfloat16 or float16, whose messages have 16 bits; or moniqua:8, topk:0.01 or sign.
            `sign,gamma=0.2` sets CHOCO's gamma.
    """
    if not isinstance(how, str):
        return without_memory(how) if isinstance(how, Codec) and how.gamma is None else choco(how)
    name = choose("compression", re.split("[:,]", how.strip())[0], {known: known for known in COMPRESSIONS})
    with needed_by("Compression"):
        from dnasa.channels.codecs import rounded, sign, top_k
        from dnasa.channels.modular import moniqua
    if how.strip() in ("bfloat16", "float16"):
        return without_memory(rounded(name))
    if name == "moniqua":
        return moniqua(how.strip().removeprefix("moniqua").removeprefix(":") or 8)
    parts = re.fullmatch(r"(?:topk:([^,]+)|sign)(?:,\s*gamma\s*=(.+))?", how.strip())
    try:
        share, gamma = [None if text is None else float(text) for text in parts.groups()]  # type: ignore[union-attr]
    except (AttributeError, ValueError):
        raise InputError(f"Compression is such as topk:0.01, sign or sign,gamma=0.2; not '{how}'.") from None
    return choco(sign() if share is None else top_k(share), gamma)
