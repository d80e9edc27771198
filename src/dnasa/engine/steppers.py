"""How a rule's steps are taken: in turn with the gradients, or with the exchanges hidden behind them.

All have `x`, where the next gradient is taken, `state`, `step(g, t)`, and `finish()` before anything else is exchanged. In
turn or hidden, the iterates are the same, bit for bit; those of a fast path are the same to rounding.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from dnasa.core import Array, InputError, Network, Rule, concatenate
from dnasa.fused import Fused, suits
from dnasa.timing import Timeline, now


def stepping(rule: Rule, network: Network, state: Any, timeline: Timeline, overlap: bool, t: int = 0) -> Any:
    if not overlap:
        parts = rule.parts and network.fixed_weights is not None  # otherwise none of them has a fast way
        kind: Any = SideBySide if parts else Fused if suits(rule, network, state) else InTurn
        return kind(rule, network, state, timeline)
    if rule.move is None:
        raise InputError(
            "Only dnasa and dasagt can hide their exchanges behind the gradient, one of them at a time: the next iterate of "
            "the other rules needs the gradient first. Leave overlap out."
        )
    return Overlapped(rule, network, state, timeline, t)


class InTurn:
    """Gradient, then exchange, then gradient, ..."""

    def __init__(self, rule: Rule, network: Network, state: Any, timeline: Timeline):
        self.rule, self.network, self.state, self.timeline = rule, network, state, timeline

    @property
    def x(self) -> Array:
        return self.state.x

    def step(self, g: Array, t: int) -> None:
        self.state = self.rule.step(self.state, g, self.timeline.timed(self.network.at(t), t), t)

    def aside(self, work: Callable[..., Any], *args: Any) -> Future:
        """Something else to exchange, done at once."""
        future: Future = Future()
        future.set_result(work(*args))
        return future

    def finish(self) -> None: ...

    def close(self) -> None: ...


class SideBySide:
    """Several rules, each stepping its own part of the iterates in the way that suits it."""

    def __init__(self, rule: Rule, network: Network, state: Any, timeline: Timeline):
        self.kind, self.slices = type(state), [part for _, part in rule.parts]
        self.steppers = [
            stepping(each, network, own, timeline, overlap=False)
            for (each, _), own in zip(rule.parts, state.parts, strict=True)
        ]
        self.x = state.x

    @property
    def state(self) -> Any:
        return self.kind(self.x, tuple(stepper.state for stepper in self.steppers))

    def step(self, g: Array, t: int) -> None:
        for stepper, part in zip(self.steppers, self.slices, strict=True):
            stepper.step(g[part], t)
        self.x = concatenate([stepper.x for stepper in self.steppers])

    def finish(self) -> None: ...

    def close(self) -> None: ...


class Overlapped:
    """A thread exchanges while the gradient is computed.

    Step t needs the gradient at x(t) only for u and z, and x(t+1) was formed from z(t) long before. So while the gradient at
    x(t+1) is being computed, the exchange of (u, z)(t+1) completes, then x(t+2) is formed and exchanged.
    """

    def __init__(self, rule: Rule, network: Network, state: Any, timeline: Timeline, t: int):
        self.rule, self.network, self.timeline = rule, network, timeline
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="exchange")
        self.side = Side(state.x)
        self.x = state.x
        self.pending: Future = self.thread.submit(self.side.run, self.side.mark(), self._ahead, state, t)

    def _ahead(self, state: Any, t: int) -> tuple[Any, Array]:
        (x,) = self._mix(t)(self.rule.move(state, t))  # type: ignore[misc]
        return state, x

    def _exchange(self, state: Any, u: Array, z: Array, t: int) -> tuple[Any, Array]:
        u, z = self._mix(t)(u, z)
        return self._ahead(state._replace(u=u, z=z), t + 1)

    def _mix(self, t: int) -> Any:
        return self.timeline.timed(self.network.at(t), t, thread=1)

    def _finished(self, of: str) -> tuple[Any, Array]:
        began = now()
        state, x = self.pending.result()
        self.timeline.waited(began, of)
        self.side.join()
        return state, x

    @property
    def state(self) -> Any:
        return self._finished("evaluation")[0]

    def finish(self) -> None:
        """Nothing is under way any more: others may exchange something."""
        self._finished("evaluation")

    def step(self, g: Array, t: int) -> None:
        state, self.x = self._finished("rule")
        u, z = self.rule.track(state, g, t)  # type: ignore[misc]
        after = state._replace(x=self.x, v=g)
        self.pending = self.thread.submit(self.side.run, self.side.mark(), self._exchange, after, u, z, t)

    def aside(self, work: Callable[..., Any], *args: Any) -> Future:
        """Something else to exchange, after what is under way."""
        return self.thread.submit(self.side.run, self.side.mark(), work, *args)

    def close(self) -> None:
        self.thread.shutdown(wait=True, cancel_futures=True)


class Side:
    """The exchange's own CUDA stream beside the gradient's; nothing at all for arrays in main memory."""

    def __init__(self, like: Array):
        self.stream = None
        if getattr(like, "is_cuda", False):
            import torch

            self.cuda = torch.cuda
            self.stream = torch.cuda.Stream(like.device)

    def mark(self) -> Any:
        """Where the gradient's stream is now: the exchange begins after that."""
        return self.cuda.current_stream().record_event() if self.stream else None

    def run(self, after: Any, work: Any, *args: Any) -> Any:
        with self.cuda.stream(self.stream) if self.stream else nullcontext():
            if self.stream:
                self.stream.wait_event(after)
            out = work(*args)
            if self.stream:
                self.done = self.stream.record_event()
                self.stream.synchronize()  # so that memory given back here is no longer in use
            return out

    def join(self) -> None:
        if self.stream:
            self.cuda.current_stream().wait_event(self.done)
