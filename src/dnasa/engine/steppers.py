"""How a rule's steps are taken: what every stepper offers, the plain one, and the one with hidden exchanges.

Sequential or overlapped, the iterates are the same, bit for bit; those of a fast path are the same to rounding.
"""

import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from dnasa.arrays import copied
from dnasa.channels.exchange import exchange, row_bytes
from dnasa.checks import UserCode
from dnasa.communication import Memory, Network
from dnasa.core import Array, Exchange, Gradients, InputError, Messages, ProcessLost, Rule, State, leaves, with_x
from dnasa.engine.simulate import next_state
from dnasa.runs.snapshots import Sent, Snapshot
from dnasa.runs.timing import Timeline, now


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

    @property
    def complete(self) -> Snapshot:
        """The state of the last complete step, after a process was lost."""
        return self.snapshots[0]

    def points(self, t: int) -> tuple[Array, ...]:
        """The points to compute gradients at."""
        return (self.x,)

    def step(self, gradients: Gradients, t: int) -> None:
        raise NotImplementedError

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run another exchange after those in flight."""
        future: Future[Any] = Future()
        future.set_result(work(*args))
        return future

    def finish(self) -> None:
        """Wait until nothing is in flight."""

    def close(self) -> None: ...


class Sequential(Stepper):
    """Gradient, then exchange, then gradient, ..."""

    def __init__(self, rule: Rule, network: Network, snapshot: Snapshot, timeline: Timeline):
        self.plain_rule = rule
        self.rule = with_checks(rule)  # in the first step
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
        self.sent.compute(self.network, len(gradients))

        def mix(messages: Messages, number: int) -> Messages:
            nonlocal first
            began = now()
            mixed, memory[number] = exchange(self.network, memory.get(number, ()), messages, t, first)
            self.timeline.exchanged(began)
            self.sent.add(self.network, row_bytes(self.network, messages, t, first), t)
            first += len(messages)
            return mixed

        state = next_state(self.rule, self.state, tuple(map(copied, gradients)), t, mix)
        if self.rule is not self.plain_rule:
            check_next(state, self.state)
        self.state, self.memory, self.rule = state, memory, self.plain_rule


class Overlapped(Stepper):
    """A thread exchanges while the gradient is computed.

    Step t needs the gradient at x(t) only for the later messages: x(t+1) is the first early message, mixed. So while the
    gradient at x(t+1) is being computed, the exchange of step t completes, and then the early messages of step t+1 travel.
    """

    x: Array = None

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
            raise InputError(f"This rule has no early message at step {t}, which hidden exchanges need: leave overlap out.")
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


# ---------------------------------------------------------------- checks of rules


def with_checks(rule: Rule) -> Rule:
    """The rule with a check of what its functions return. Engines use it in the first step, which ends with `check_next`."""

    def early(s: State, t: int) -> Messages:
        return check_messages(rule.early_messages(s, t), s.x)

    def points(s: State, t: int) -> tuple[Array, ...]:
        wanted = rule.gradient_points(s, t)
        if not isinstance(wanted, tuple) or not wanted or any(getattr(p, "shape", None) != s.x.shape for p in wanted):
            raise InputError(f"A rule's points must return a tuple of arrays of the shape of x, {tuple(s.x.shape)}.")
        return wanted

    def checked(send: Callable[..., Any], receive: Callable[..., Any]) -> tuple[Any, Any]:
        def checked_send(s: State, *args: Any) -> tuple[Messages, State]:
            sent = send(s, *args)
            pair = isinstance(sent, tuple) and len(sent) == 2 and isinstance(sent[0], (tuple, list))
            if not pair or hasattr(sent[0], "_fields") or not isinstance(sent[1], type(s)):
                raise InputError("A rule's send must return two things: a tuple of messages, and the state until they arrive.")
            return check_messages(tuple(sent[0]), s.x), sent[1]

        def checked_receive(s: State, mixed: Messages) -> State:
            with UserCode(lambda: f"This rule's receive, with the {len(mixed)} messages sent,"):
                return receive(s, mixed)

        return checked_send, checked_receive

    send, receive = checked(rule.send, rule.receive)
    then = tuple(Exchange(*checked(*pair)) for pair in rule.then)
    return rule._replace(
        send=send, receive=receive, then=then, early=rule.early and early, points=rule.points and points, form=None
    )


def check_state(state: State, x: Array) -> State:
    """Check that a state is a NamedTuple of arrays like x, the first of which is x."""
    arrays = leaves(state) if isinstance(state, tuple) and hasattr(state, "_fields") and hasattr(state, "x") else {}
    if not arrays or next(iter(arrays.values())) is not state.x:
        raise InputError("A rule's init must return a NamedTuple of arrays with x first.")
    for name, a in arrays.items():
        if not is_like(a, x) or (a is state.x and a.shape != x.shape):
            raise InputError(f"'{name}' of this rule's state is {kind_of(a)}; it must be like x: {kind_of(x)}, any width.")
    return state


def check_messages(messages: Messages, x: Array) -> Messages:
    for number, message in enumerate(messages):
        if not is_like(message, x):
            raise InputError(
                f"Message {number} of this rule is {kind_of(message)}; it must be like x: {kind_of(x)}, any width. For several "
                "stepsizes, give a list of rules."
            )
    return messages


def check_next(state: State, before: State) -> State:
    """Check that every array of the state has the shape and dtype it had before the step."""
    if type(state) is not type(before):
        raise InputError(f"A rule's receive must return its {type(before).__name__}, not {type(state).__name__}.")
    for (name, a), old in zip(leaves(state).items(), leaves(before).values(), strict=True):
        if not is_like(a, old) or a.shape != old.shape:
            raise InputError(
                f"After a step {name} of this rule is {kind_of(a)}; it must stay {kind_of(old)}. For several stepsizes, give a "
                "list of rules."
            )
    return state


def is_like(a: Any, x: Array) -> bool:
    """Whether an array has the library and dtype of x, and a row for each of its nodes."""
    return type(a) is type(x) and a.dtype == x.dtype and a.shape[:-1] == x.shape[:-1]


def kind_of(a: Any) -> str:
    shape = f" of shape {tuple(a.shape)} and {a.dtype}" if hasattr(a, "shape") else ""
    return f"{type(a).__name__}{shape}"


def explained(error: Any) -> Any:
    """Replace the TypeError of a rule that was made from a number in place of a schedule by an error that says so."""
    if isinstance(error, TypeError) and re.fullmatch(r"'(int|float|numpy\.\w+)' object is not callable", str(error)):
        clear = InputError(
            "This rule calls a number: a schedule is a function of t, such as lambda t: 0.1, or schedules.constant(0.1)."
        )
        clear.__cause__ = error
        return clear
    return error
