"""Exchanges hidden behind the gradient: they run in a thread of their own while the next gradient is computed."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from dnasa.arrays import copied
from dnasa.channels.exchange import exchange, row_bytes
from dnasa.core import (
    Array,
    Gradients,
    InputError,
    Memory,
    Messages,
    Network,
    ProcessLost,
    Rule,
    Snapshot,
    State,
    with_x,
)
from dnasa.engine.steppers import check_next, with_checks
from dnasa.runs.timing import Timeline, now


class Overlapped:
    """A thread exchanges while the gradient is computed.

    Step t needs the gradient at x(t) only for the later messages: x(t+1) is the first early message, mixed. So while the
    gradient at x(t+1) is being computed, the exchange of step t completes, and then the early messages of step t+1 travel.
    """

    def __init__(self, rule: Rule, network: Network, snapshot: Snapshot, timeline: Timeline, t: int):
        self.plain_rule = rule
        self.rule = with_checks(rule)  # in the first step
        self.network = network
        self.timeline = timeline
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="exchange")
        self.stream = CudaStream(snapshot.state.x)
        self.x, self.sent = snapshot.state.x, snapshot.sent
        self.last = snapshot  # with nothing in flight
        self.pending: Future[Any] = self.submit(self._ahead, snapshot.state, snapshot.memory.get(0, ()), t)

    def _ahead(self, state: State, memory: Memory, t: int) -> tuple[State, Memory, Messages, Memory]:
        """The state of step t with its early messages exchanged; the memory before and after that."""
        early = self.rule.early_messages(state, t)
        if not early:
            raise InputError(
                f"This rule has no early message at step {t}, which hidden exchanges need: leave overlap out."
            )
        mixed, after = self._exchange(early, memory[: len(early)], t, first=0)
        self.early_bytes = row_bytes(self.network, early, t)
        return state, memory, mixed, after

    def _rest(
        self, state: State, memory: Memory, early: Messages, after: Memory, messages: Messages, t: int
    ) -> tuple[State, Memory, Messages, Memory]:
        first = len(early)
        mixed, rest = self._exchange(messages, memory[first:], t, first)
        self.sent.add_hidden(self.network, self.early_bytes, row_bytes(self.network, messages, t, first), t)
        following = self.rule.receive(state, (*early, *mixed))
        if self.rule is not self.plain_rule:
            check_next(following, state)
        self.rule = self.plain_rule
        return self._ahead(following, (*after, *rest), t + 1)

    def _exchange(self, messages: Messages, memory: Memory, t: int, first: int) -> tuple[Messages, Memory]:
        began = now()
        mixed = exchange(self.network, memory, messages, t, first)
        self.timeline.add("exchange", began)
        return mixed

    def _finished(self, booked_to: str) -> tuple[State, Memory, Messages, Memory]:
        began = now()
        result = self.pending.result()
        self.timeline.waited(began, booked_to)
        self.stream.join()
        return result

    @property
    def snapshots(self) -> list[Snapshot]:
        state, memory, _, _ = self._finished("evaluation")
        return [Snapshot(state, {0: memory}, self.sent)]

    @property
    def complete(self) -> Snapshot:
        try:
            return self.snapshots[0]
        except ProcessLost:
            return self.last

    def points(self, t: int) -> tuple[Array, ...]:
        return (self.x,)

    def step(self, gradients: Gradients, t: int) -> None:
        state, memory, early, after = self._finished("rule")
        self.x = early[0]
        self.last = Snapshot(with_x(state, self.x), {}, self.sent)
        messages, sent_state = self.rule.send(state, tuple(map(copied, gradients)), t)
        self.pending = self.submit(self._rest, sent_state, memory, early, after, messages, t)

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        return self.thread.submit(self.stream.run, self.stream.mark(), work, *args)

    def finish(self) -> None:
        self._finished("evaluation")

    def close(self) -> None:
        self.thread.shutdown(wait=True, cancel_futures=True)


class CudaStream:
    """A CUDA stream for the exchange, next to the gradient's; does nothing for arrays in main memory."""

    def __init__(self, like: Array):
        self.stream = None
        if getattr(like, "is_cuda", False):
            import torch

            self.cuda = torch.cuda
            self.stream = torch.cuda.Stream(like.device)

    def mark(self) -> Any:
        """The current position of the gradient's stream: the exchange begins after that."""
        return self.cuda.current_stream().record_event() if self.stream else None

    def run(self, after: Any, work: Any, *args: Any) -> Any:
        with self.cuda.stream(self.stream) if self.stream else nullcontext():
            if self.stream:
                self.stream.wait_event(after)
            out = work(*args)
            if self.stream:
                self.done = self.stream.record_event()
                self.stream.synchronize()  # so that memory freed here is no longer in use
            return out

    def join(self) -> None:
        if self.stream:
            self.cuda.current_stream().wait_event(self.done)
