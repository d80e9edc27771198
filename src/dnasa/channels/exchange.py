"""One exchange of a step: the messages, mixed by W, as the network's channel carries them."""

from collections.abc import Callable, Sequence

from dnasa.communication import Memory, Network
from dnasa.core import InputError, Messages


def exchange(
    network: Network, memory: Memory, messages: Messages, t: int, first: int = 0, fading: Sequence[float] = ()
) -> tuple[Messages, Memory]:
    """Exchange the messages of a step. Returns them mixed by W, and the channel's memory after.

    Args:
        network: The network, with its channel.
        memory: What the channel remembers, an entry for each message seen so far; () at the start.
        messages: What this process's nodes send.
        t: The step, from 0.
        first: The number of the first of these messages within the step.
        fading: For each message, how much is left in it of what it was at the last exchange; by default all of it.
    """
    if not messages:
        return messages, memory
    channel = network.settings.channel
    if channel is None:
        for k in network.exchanges(t):
            messages = network.multiply(messages, k)
        return messages, memory
    if network.at is None:
        raise InputError("This network only multiplies by W: a channel needs its `at`, as the networks of dnasa.connect have.")
    count = len(messages)
    added = map(channel.init, messages[len(memory) :])  # messages that this rule has not sent before
    used, others = (*memory[:count], *added), memory[count:]
    if channel.fades and fading:
        used = tuple(tuple(left * a for a in arrays) for left, arrays in zip(fading, used, strict=True))
    for k in network.exchanges(t):
        messages, used = channel.exchange(used, messages, network.at(k), t, first)
    return messages, (*used, *others)


def check_memory(memory: Memory, messages: Messages, widths: Callable[[int], tuple[int, ...]]) -> None:
    """Check the arrays held for each message: a rule may send other messages than before, a checkpoint may hold anything."""
    for number, (message, arrays) in enumerate(zip(messages, memory, strict=True)):
        shapes = [tuple(a.shape) for a in arrays]
        if shapes != [(*message.shape[:-1], width) for width in widths(message.shape[-1])]:
            raise InputError(
                f"Message {number} has shape {tuple(message.shape)}, the channel remembers {len(arrays)} arrays of shape "
                f"{', '.join(map(str, shapes))} for it: a rule must send messages of the same widths in every step."
            )


def row_bytes(network: Network, messages: Messages, t: int, first: int = 0) -> float:
    """Bytes of one node's row of these messages of step t on the wire."""
    channel = network.settings.channel
    if channel is not None and channel.size is not None:
        return sum([channel.size(m, number, t) for number, m in enumerate(messages, first)])
    least = 4 if network.settings.all_reduce else 1  # numbers of 16 bits are added in 32
    return sum([m.shape[-1] * max(m.dtype.itemsize, least) for m in messages])
