"""How a rule's steps are taken: what every stepper offers, the plain one, and the one with hidden exchanges.

Sequential or overlapped, the iterates are the same, bit for bit; those of a fast path are the same to rounding.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from dnasa.arrays import contiguous, copied, on_gpu, overlap
from dnasa.channels.exchange import exchange, row_bytes
from dnasa.communication import Memory, Network
from dnasa.core import Array, Gradients, InputError, Messages, ProcessLost, Rule, State, leaves, rebuilt, with_x
from dnasa.engine.rule_checks import check_state
from dnasa.engine.simulate import next_state
from dnasa.runs.snapshots import Sent, Snapshot
from dnasa.runs.timing import Timeline, now

MIN_COPIED_LATE = 1 << 20  # bytes of gradients from which copying them takes longer than finding out what is kept of them

T = TypeVar("T")


def first_snapshot(rule: Rule, x: Array) -> Snapshot:
    return Snapshot(check_state(rule.init(x), x), {}, Sent())


class Stepper:
    """Takes a rule's steps. As it stands here, one with a state and with nothing in flight between steps."""

    state: State
    sent: Sent

    @property
    def x(self) -> Array:
        return self.state.x

    @property
    def snapshots(self) -> list[Snapshot]:
        """The state of each rule, with nothing in flight."""
        return [Snapshot(self.state, {}, self.sent)]

    def last_complete(self) -> list[Snapshot]:
        """The states of the last complete step, after a process was lost."""
        return self.snapshots

    def points(self, t: int) -> tuple[Array, ...]:
        """The points to compute gradients at; none for a stepper that computes them itself."""
        return (self.x,)

    def step(self, gradients: Gradients, t: int) -> None:
        raise NotImplementedError

    def submit(self, work: Callable[..., T], *args: object) -> Future[T]:
        """Run another exchange after those in flight."""
        future: Future[T] = Future()
        future.set_result(work(*args))
        return future

    def finish(self) -> None:
        """Wait until nothing is in flight."""

    def close(self) -> None: ...


class Sequential(Stepper):
    """Gradient, then exchange, then gradient, ..."""

    def __init__(self, rule: Rule, network: Network, snapshot: Snapshot, timeline: Timeline):
        self.rule = rule
        self.network = network
        self.timeline = timeline
        self.state, self.memory, self.sent = snapshot

    @property
    def snapshots(self) -> list[Snapshot]:
        return [Snapshot(self.state, self.memory, self.sent)]

    def points(self, t: int) -> tuple[Array, ...]:
        return self.rule.gradient_points(self.state, t)

    def step(self, gradients: Gradients, t: int) -> None:
        """Take the step. State and memory change only if all of it succeeds; messages count as soon as they are sent."""
        memory, first = dict(self.memory), 0
        fading = self.rule.fading(t) if self.rule.fading else ()
        self.sent.compute(self.network, len(gradients))
        # a channel may keep a message that is a gradient
        late = self.network.settings.channel is None and sum([g.nbytes for g in gradients]) >= MIN_COPIED_LATE
        gradients = tuple(map(contiguous if late else copied, gradients))

        def mix(messages: Messages, number: int) -> Messages:
            nonlocal first
            began = now()
            mixed, memory[number] = exchange(self.network, memory.get(number, ()), messages, t, first, fading[: len(messages)])
            self.timeline.exchanged(began)
            self.sent.add(self.network, row_bytes(self.network, messages, t, first), t)
            first += len(messages)
            return mixed

        state = next_state(self.rule, self.state, gradients, t, mix)
        self.state = _independent(state, gradients) if late else state
        self.memory = memory


def _independent(state: State, gradients: Gradients) -> State:
    """The state with copies of what is a gradient: the problem may reuse that memory."""
    arrays = leaves(state)
    kept = {name: copied(a) for name, a in arrays.items() if any(overlap(a, g) for g in gradients)}
    return rebuilt(state, arrays | kept) if kept else state


class Begun(NamedTuple):
    """A step whose early messages have been exchanged."""

    state: State  # before the step, as are the channel's memory
    memory: Memory
    early: Messages  # mixed
    early_memory: Memory  # of the channel, for the early messages, after their exchange
    early_bytes: float  # of a node's row of them


class Overlapped(Stepper):
    """A thread exchanges while the gradient is computed.

    Step t needs the gradient at x(t) only for the later messages: x(t+1) is the first early message, mixed. So while the
    gradient at x(t+1) is being computed, the exchange of step t completes, and then the early messages of step t+1 travel.
    """

    def __init__(self, rule: Rule, network: Network, snapshot: Snapshot, timeline: Timeline, t: int):
        self.rule = rule
        self.network = network
        self.timeline = timeline
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="exchange")
        self.iterate = snapshot.state.x
        self.stream = CudaStream(self.iterate.device) if on_gpu(self.iterate) else None
        self.sent = snapshot.sent
        self.last = snapshot  # with nothing in flight
        self.pending = self.submit(self._begin, snapshot.state, snapshot.memory.get(0, ()), t)

    @property
    def x(self) -> Array:
        return self.iterate

    @property
    def snapshots(self) -> list[Snapshot]:
        begun = self._wait("evaluation")
        return [Snapshot(begun.state, {0: begun.memory}, self.sent)]

    def last_complete(self) -> list[Snapshot]:
        try:
            return self.snapshots
        except ProcessLost:
            return [self.last]

    def step(self, gradients: Gradients, t: int) -> None:
        begun = self._wait("rule")
        self.iterate = begun.early[0]
        self.last = Snapshot(with_x(begun.state, self.iterate), {}, self.sent)
        messages, state = self.rule.send(begun.state, tuple(map(copied, gradients)), t)
        self.pending = self.submit(self._complete, begun, state, messages, t)

    def submit(self, work: Callable[..., T], *args: object) -> Future[T]:
        if self.stream is not None:
            work = self.stream.after_gradient(work)
        return self.thread.submit(work, *args)

    def finish(self) -> None:
        self._wait("evaluation")

    def close(self) -> None:
        self.thread.shutdown(wait=True, cancel_futures=True)

    def _wait(self, part_of: str) -> Begun:
        """Wait for the thread, as a part of the rule's step or of an evaluation."""
        began = now()
        begun = self.pending.result()
        self.timeline.waited(began, part_of)
        if self.stream is not None:
            self.stream.join()
        return begun

    # ------------------------------------------------------------ in the thread

    def _begin(self, state: State, memory: Memory, t: int) -> Begun:
        """Exchange the early messages of step t."""
        early = self.rule.early_messages(state, t)
        if not early:
            raise InputError(f"This rule has no early message at step {t}, which hidden exchanges need: leave overlap out.")
        mixed, early_memory = self._exchange(early, memory[: len(early)], t, first=0)
        return Begun(state, memory, mixed, early_memory, row_bytes(self.network, early, t))

    def _complete(self, begun: Begun, state: State, messages: Messages, t: int) -> Begun:
        """Exchange the other messages of step t, and begin the next step."""
        first = len(begun.early)
        mixed, memory = self._exchange(messages, begun.memory[first:], t, first)
        self.sent.add_hidden(self.network, begun.early_bytes, row_bytes(self.network, messages, t, first), t)
        following = self.rule.receive(state, (*begun.early, *mixed))
        return self._begin(following, (*begun.early_memory, *memory), t + 1)

    def _exchange(self, messages: Messages, memory: Memory, t: int, first: int) -> tuple[Messages, Memory]:
        began = now()
        mixed = exchange(self.network, memory, messages, t, first)
        self.timeline.add("exchange", began)
        return mixed


class CudaStream:
    """A CUDA stream for the exchange, next to the gradient's."""

    def __init__(self, device: object):
        from torch import cuda

        self.current = cuda.current_stream
        self.use = cuda.stream
        self.stream = cuda.Stream(device)
        self.done = self.stream.record_event()  # the last work

    def after_gradient(self, work: Callable[..., T]) -> Callable[..., T]:
        """The work on this stream, to begin after all that the gradient's stream has been given so far."""
        ready = self.current().record_event()

        def run(*args: object) -> T:
            with self.use(self.stream):
                self.stream.wait_event(ready)
                result = work(*args)
                self.done = self.stream.record_event()
                self.stream.synchronize()  # so that memory freed here is no longer in use
                return result

        return run

    def join(self) -> None:
        """Let the gradient's stream wait for the last work."""
        self.current().wait_event(self.done)
