"""Several rules as one: their iterates share one array, so that one gradient call serves all of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dnasa.core import Array, Mix, Rule, concatenate


class State(NamedTuple):
    x: Array
    parts: tuple[Any, ...]

    @property
    def z(self) -> Array:
        """The moving averages of the rules that have one, not a number for the others."""
        return concatenate([getattr(part, "z", part.x * float("nan")) for part in self.parts])


def together(rules: Sequence[Rule], sizes: Sequence[int]) -> Rule:
    """Rule j owns `sizes[j]` entries of the first axis; each takes its own step on its own part."""
    ends = [sum(sizes[: j + 1]) for j in range(len(sizes))]
    parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]

    def init(x: Array) -> State:
        return State(x, tuple(rule.init(x[part]) for rule, part in zip(rules, parts, strict=True)))

    def step(s: State, g: Array, mix: Mix, t: int) -> State:
        states = tuple(
            rule.step(state, g[part], mix, t) for rule, state, part in zip(rules, s.parts, parts, strict=True)
        )
        return State(concatenate([state.x for state in states]), states)

    needed = max(rule.smallest_eigenvalue for rule in rules)
    return Rule(init, step, needed, parts=tuple(zip(rules, parts, strict=True)))
