"""Which processes are lost.

A process asks its `Liveness` while it waits for others: `Monitor` reads their reports, `Heartbeat` leaves it to MPI's failure
detector.
"""

import os
import signal
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from dnasa.core import RunError


class Liveness:
    """Says which processes are lost. This class knows nothing of the others: to it, silence for the timeout is a loss."""

    def note(self, network: str, call: str) -> None:
        """This process now makes the next call of that network; all processes must make the same one."""

    def fail(self, reason: str) -> None:
        """Tell the others why this process stops."""

    def diagnose(self) -> None:
        """Raise the reason for an error of a transport, if another process gives one."""

    def lost(self, began: float, timeout: float) -> list[int]:
        """The processes that were lost since this one began to wait; raises an error that ends the wait at once."""
        if time.monotonic() > began + timeout:
            raise RunError(f"The other processes did not answer for {timeout:g} s: one of them hangs.")
        return []

    def check(self, began: float, timeout: float, error: Callable[[list[int]], RunError]) -> None:
        """Raise the error for the processes that were lost."""
        lost = self.lost(began, timeout)
        if lost:
            raise error(lost)

    def wait(self, done: Callable[[], bool], timeout: float, error: Callable[[list[int]], RunError]) -> None:
        """Wait until `done`, unless processes are lost."""
        began = time.monotonic()
        while not done():
            self.check(began, timeout, error)


class ThreadedLiveness(Liveness, ABC):
    """Liveness with a thread that calls `_beat` at this interval, in seconds."""

    def __init__(self, interval: float):
        self.interval, self.stop = interval, threading.Event()
        self.thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.stop.set()
        self.thread.join(timeout=10 * self.interval)

    def _run(self) -> None:
        while not self.stop.wait(self.interval):
            self._beat()

    @abstractmethod
    def _beat(self) -> None: ...


class Heartbeat(ThreadedLiveness):
    """Open MPI's failure detector sends heartbeats only while a process calls MPI: a thread does so between exchanges.

    MPI raises an error at whoever waits for a lost process. A process that is stopped or holds Python's lock calls nothing,
    and the others continue without it.
    """

    def __init__(self, call_mpi: Callable[[], object], rank: int, timeout: float):
        self.call_mpi = call_mpi
        self.rank = rank
        self.timeout = timeout
        self.last = time.monotonic()
        self.warned = False
        self.ending = threading.Lock()
        super().__init__(interval=min(0.5, timeout / 20))

    def lost(self, began: float, timeout: float) -> list[int]:
        """Returns none, since MPI reports losses; ends this process if it was silent itself."""
        self.end_if_silent()
        if not self.warned and time.monotonic() > began + timeout:
            self.warned = True
            warnings.warn(
                f"Rank {self.rank} has waited {timeout:g} s for the others; none has been lost so far.", stacklevel=2
            )
        return []

    def end_if_silent(self) -> None:
        """End this process if the others may have continued without it: they count from an earlier heartbeat."""
        silent = time.monotonic() - self.last
        if silent > 0.8 * self.timeout:
            with self.ending:
                line = f"Rank {self.rank} did not run for {silent:.0f} s and ends: the others continue without it.\n"
                os.write(2, line.encode())
                os.kill(os.getpid(), signal.SIGKILL)  # lost like any other: mpirun does not fail because of it

    def _beat(self) -> None:
        self.end_if_silent()
        self.call_mpi()
        self.last = time.monotonic()


class HostProcess(NamedTuple):
    """A process of a machine; the time it was started distinguishes it from a later one with the same number."""

    host: str
    pid: int
    started: str

    @classmethod
    def parse(cls, text: str) -> "HostProcess":
        host, pid, started = text.rsplit(" ", 2)
        return cls(host, int(pid), started)

    def __str__(self) -> str:
        return f"{self.host} {self.pid} {self.started}"

    def runs(self) -> bool:
        """Whether the process runs on this machine."""
        return start_time(self.pid) == self.started

    def kill(self, timeout: float) -> None:
        """End the process and wait until it is gone, and its files and its lock of the run folder are free."""
        deadline = time.monotonic() + timeout
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        while self.runs() and time.monotonic() < deadline:
            time.sleep(0.01)


def this_process(host: str) -> HostProcess:
    return HostProcess(host, os.getpid(), start_time(os.getpid()))


def start_time(pid: int) -> str:
    """When that process was started, as the kernel counts it; empty if it has ended, or there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat") as status:
            fields = status.read().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    state, threads, started = fields[0], int(fields[17]), fields[19]
    return "" if state in "ZX" and threads <= 1 else started  # other threads may still hold its files
