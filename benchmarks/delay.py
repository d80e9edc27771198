"""Forwards frames between the ports of a switch, each after a delay; a share of them gets lost.

    python benchmarks/delay.py MILLISECONDS MILLISECONDS LOSS PORT ...

The delay of two ports lies between these two, and is the same both ways and in every run.
`benchmarks.machines` starts it in the namespace of the switch. Offloads stay as they are, so one frame may hold 64 kB of TCP.
"""

import heapq
import os
import random
import select
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

ALL_PROTOCOLS, SOL_PACKET, VNET_HDR, IGNORE_OUTGOING, RCVBUFFORCE = 3, 263, 15, 23, 33  # of linux/if_packet.h
HEADER = 10  # bytes of virtio_net_hdr before the frame, which carry the offloads
LARGEST = 1 << 17


def open_port(name: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(SOL_PACKET, VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    port.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, 1 << 26)
    port.bind((name, ALL_PROTOCOLS))
    return port


def forward(ports: Sequence[socket.socket], low: float, high: float, loss: float) -> None:
    """Runs until its standard input is closed, which the end of the process that started it does."""
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    where: dict[bytes, socket.socket] = {}  # the port of each hardware address
    number = {port: i for i, port in enumerate(ports)}
    pairs = {(i, j): random.Random(f"{i} {j}").uniform(low, high) for j in range(len(ports)) for i in range(j)}
    count = 0
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready = select.select([sys.stdin, *ports], [], [], timeout)[0]
        if sys.stdin in ready:
            return
        for port in filter(ready.__contains__, ports):
            frame = port.recv(LARGEST)
            where[frame[HEADER + 6 : HEADER + 12]] = port
            if random.random() < loss:
                continue
            target = where.get(frame[HEADER : HEADER + 6])
            for out in [target] if target else [other for other in ports if other is not port]:
                i, j = sorted((number[port], number[out]))
                count += 1
                heapq.heappush(waiting, (time.monotonic() + pairs.get((i, j), low), count, out, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, out, frame = heapq.heappop(waiting)
            with suppress(OSError):  # the machine is stopped
                out.send(frame)


if __name__ == "__main__":
    with suppress(PermissionError):  # frames wait for the delay, not for a core
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    low, high, loss = map(float, sys.argv[1:4])
    forward([open_port(name) for name in sys.argv[4:]], low / 1000, high / 1000, loss)
