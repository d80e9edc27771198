"""What left this process: a line for each kind of message, receiver and range of steps."""

from collections.abc import Sequence
from typing import Any

from dnasa.runs.names import node_name


class Audit:
    """Reports what was sent since the last report.

    Args:
        traffic: Counts everything that this process sends, by kind; None: nothing is sent.
        names: The names of the nodes, if they have some.
    """

    def __init__(self, traffic: Any, names: Sequence[str] = ()):
        self.traffic, self.names = traffic, names
        self.reported: dict[Any, tuple[int, int]] = {}

    def lines(self) -> list[dict[str, Any]]:
        """What was sent since the last call, by kind and receiver."""
        before, self.reported = self.reported, dict(self.traffic.sent if self.traffic else {})
        out = []
        for sending, (messages, size) in self.reported.items():
            earlier, earlier_size = before.get(sending, (0, 0))
            if messages > earlier:
                out.append(
                    {
                        "kind": sending.kind,
                        "to": "all others" if sending.peer is None else node_name(self.names, sending.peer),
                        "messages": messages - earlier,
                        "bytes": size - earlier_size,
                        "arrays": [{"shape": list(shape), "dtype": dtype} for shape, dtype in sending.arrays],
                    }
                )
        return out
