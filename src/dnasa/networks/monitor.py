"""What every process is doing: a thread of each reports twice a second, so that slow processes differ from dead ones."""

import json
import threading
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from dnasa.core import InputError, RunError
from dnasa.networks.liveness import ThreadedLiveness

INTERVAL = 0.5  # seconds between two reports
RECENT = 32  # calls that a report names; neighbours are never that many calls apart
SILENT = 4  # own reports without one of another process, after which it is called silent
END = "the end of its script"
REMEDY = (
    "Every process must call step(), averaged() and consensus() equally often: give all of them the same number of "
    "batches, or train inside dnasa.optim.Join; an error that one of them catches leaves out its call."
)


class ProcessReport(NamedTuple):
    """What a process is doing."""

    beats: int
    calls: dict[str, str]
    failure: str
    ended: bool

    @classmethod
    def parse(cls, text: str) -> "ProcessReport | None":
        """Parse a report; None if it is not one, since others may write to the store too."""
        try:
            report = cls(**json.loads(text))
        except (TypeError, ValueError, RecursionError):
            return None
        texts = [report.failure, *report.calls.values()] if isinstance(report.calls, dict) else [None]
        return report if all(isinstance(text, str) for text in texts) and type(report.ended) is bool else None


class Board(Protocol):
    """A place where processes publish their reports."""

    def share(self, report: str) -> list[str]:
        """Publish this report; returns the latest one of every process, empty where there is none yet."""


class StoreBoard:
    """A board in a store of torch, with a key for each process."""

    def __init__(self, store: Any, own: str, everyone: Sequence[str]):
        self.store = store
        self.own = own
        self.everyone = list(everyone)

    def share(self, report: str) -> list[str]:
        self.store.set(self.own, report)
        return [text.decode(errors="replace") for text in self.store.multi_get(self.everyone)]


class Monitor(ThreadedLiveness):
    """Reads the others' reports. `problem` is set as soon as a process has failed, or makes a different call than this one."""

    def __init__(self, board: Board, rank: int, size: int, interval: float = INTERVAL):
        self.board, self.rank = board, rank
        self.counts: dict[str, int] = {}  # calls of each network
        self.calls: dict[str, str] = {}  # the recent ones, by network and number
        self.beats = 0
        self.failure = ""
        self.ended = False
        self.problem: Exception | None = None
        self.reports: list[ProcessReport | None] = [None] * size
        self.quiet = [0] * size  # own reports since the last news of each process
        self.warned = False
        self.lock, self.sharing = threading.Lock(), threading.Lock()
        super().__init__(interval)

    def name(self, rank: int) -> str:
        return f"rank {rank}"

    def note(self, network: str, call: str) -> None:
        self._count(network, call)
        self._raise_problem()

    def _count(self, network: str, call: str) -> None:
        with self.lock:
            number = self.counts[network] = self.counts.get(network, 0) + 1
            self.calls[f"{network} {number}"] = call
            if len(self.calls) > RECENT:
                del self.calls[next(iter(self.calls))]

    def fail(self, reason: str) -> None:
        self.failure = reason
        self._beat()

    def end(self) -> None:
        """The script has ended: a further call of another process will not be answered."""
        for network in self.counts:
            self._count(network, END)
        self.ended = True
        self._beat()

    def wait_for_ends(self, timeout: float) -> None:
        """Wait until the scripts of all others have ended, too, or these are silent."""
        others = set(range(len(self.reports))) - {self.rank}
        while others and not self.stop.wait(self.interval / 5):
            others = {rank for rank in others if not self._has_ended(rank) and not self.silent(rank, timeout)}

    def lost(self, began: float, timeout: float) -> list[int]:
        """The processes that were silent for the timeout; raises the problem, if there is one."""
        self._raise_problem()
        if time.monotonic() <= began + timeout:
            return []
        others = [rank for rank in range(len(self.reports)) if rank != self.rank and not self._has_ended(rank)]
        lost = [rank for rank in others if self.silent(rank, timeout)]
        if not lost and not self.warned:
            self.warned = True
            described = self._described(others)
            warnings.warn(f"At {self.name(self.rank)}, a call has waited {timeout:g} s; {described}.", stacklevel=2)
        return lost

    def _described(self, others: list[int]) -> str:
        """Describes what the others are doing."""
        silent = [rank for rank in others if self.quiet[rank] >= SILENT]
        running = ", ".join(f"{self.name(rank)} {self._last_call(rank)}" for rank in others if rank not in silent)
        parts = [f"nothing is heard from {self.name(rank)}, which {self._last_call(rank)}" for rank in silent]
        return "; ".join([*parts, f"the others are running: {running}"] if running else parts)

    def _raise_problem(self) -> None:
        if self.problem is not None:
            raise type(self.problem)(*self.problem.args)

    def silent(self, rank: int, timeout: float) -> bool:
        """Whether a process has not reported for the timeout, counted in own reports: this process may have been stopped."""
        return self.quiet[rank] * self.interval > timeout

    def diagnose(self) -> None:
        for _ in range(2):
            self._beat()
            self._raise_problem()
            time.sleep(self.interval)

    def _beat(self) -> None:
        with self.sharing:
            self.beats += 1
            with self.lock:
                calls = dict(self.calls)
            own = ProcessReport(self.beats, calls, self.failure, self.ended)
            try:
                texts = self.board.share(json.dumps(own._asdict()))
            except Exception as error:
                lost = RunError(f"Rank {self.rank} lost the connection to the others: {error}.")
                self.problem = self.problem or (error if isinstance(error, RunError) else lost)
                self.stop.set()
                return
            self._read(texts)
            self.problem = self.problem or self._find_problem(calls)

    def _read(self, texts: list[str]) -> None:
        for rank, report in enumerate(map(ProcessReport.parse, texts)):
            self.quiet[rank] += 1
            if rank != self.rank and report is not None and report != self.reports[rank]:
                self.reports[rank], self.quiet[rank] = report, 0

    def _find_problem(self, calls: dict[str, str]) -> Exception | None:
        others = {rank: report for rank, report in enumerate(self.reports) if report}
        failed = [RunError(report.failure) for report in others.values() if report.failure]
        different = [self._difference(calls, *other) for other in others.items()]  # perhaps as a result
        return next(filter(None, [*failed, *different]), None)

    def _difference(self, calls: dict[str, str], rank: int, report: ProcessReport) -> Exception | None:
        for key in calls.keys() & report.calls.keys():
            if calls[key] != report.calls[key]:
                (first, one), (second, other) = sorted([(self.rank, calls[key]), (rank, report.calls[key])])
                return InputError(
                    f"The processes call different things: {self.name(first)} is in {one}, {self.name(second)} in {other}. "
                    f"{REMEDY}"
                )
        return None

    def _has_ended(self, rank: int) -> bool:
        report = self.reports[rank]
        return report is not None and report.ended

    def _last_call(self, rank: int) -> str:
        report = self.reports[rank]
        calls = report.calls if report else {}
        return f"was last in {list(calls.values())[-1]}" if calls else "has not called anything yet"
