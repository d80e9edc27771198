"""Which processes run: heartbeats of this one, and the others of the same machine."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple


class Heartbeat:
    """Open MPI's failure detector sends heartbeats only while a process calls MPI: a thread does so between exchanges.

    A process that is stopped or holds Python's lock calls nothing, and the others continue without it.
    """

    def __init__(self, call_mpi: Callable[[], object], rank: int, timeout: float):
        self.call_mpi, self.rank, self.timeout = call_mpi, rank, timeout
        self.interval = min(0.5, timeout / 20)
        self.last, self.warned = time.monotonic(), False
        self.stop, self.ending = threading.Event(), threading.Lock()
        self.thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.thread.start()

    def check(self) -> None:
        """End this process if the others may have continued without it: they count from an earlier heartbeat."""
        silent = time.monotonic() - self.last
        if silent > 0.8 * self.timeout:
            with self.ending:
                line = f"Rank {self.rank} did not run for {silent:.0f} s and ends: the others continue without it.\n"
                os.write(2, line.encode())
                os.kill(os.getpid(), signal.SIGKILL)  # lost like any other: mpirun does not fail because of it

    def warn(self) -> None:
        """Once, when waiting takes longer than the timeout."""
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"Rank {self.rank} has waited {self.timeout:g} s for the others; none has been lost so far.",
                stacklevel=2,
            )

    def close(self) -> None:
        self.stop.set()
        self.thread.join(timeout=10 * self.interval)

    def _run(self) -> None:
        while not self.stop.wait(self.interval):
            self.check()
            self.call_mpi()
            self.last = time.monotonic()


class Place(NamedTuple):
    """A process of a machine; the time it was started distinguishes it from a later one with the same number."""

    machine: str
    pid: int
    started: str

    @classmethod
    def parse(cls, text: str) -> "Place":
        machine, pid, started = text.rsplit(" ", 2)
        return cls(machine, int(pid), started)

    def __str__(self) -> str:
        return f"{self.machine} {self.pid} {self.started}"

    def runs(self) -> bool:
        """On the same machine."""
        return start_time(self.pid) == self.started

    def kill(self, patience: float) -> None:
        """And wait until it is gone: its files, and its lock of the run folder, are free then."""
        began = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        while self.runs() and time.monotonic() < began + patience:
            time.sleep(0.01)


def here(machine: str) -> Place:
    """This process."""
    return Place(machine, os.getpid(), start_time(os.getpid()))


def start_time(pid: int) -> str:
    """When that process was started, as the kernel counts it; empty if it has ended, or there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat") as status:
            fields = status.read().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    state, threads, started = fields[0], int(fields[17]), fields[19]
    return "" if state in "ZX" and threads <= 1 else started  # other threads may still hold its files
