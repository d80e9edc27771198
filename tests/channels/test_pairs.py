"""Exchanges in pairs: against a literal twin, whatever is late, lost, repeated or out of order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnasa import topology
from dnasa.channels.pairs import Offer, Pairs

GRAPHS = ["ring", "star", "complete", "path"]


class Disorder:
    """Nodes that begin and end steps in any order, over links that deliver any offer ever sent, at any time, or never."""

    def __init__(self, graph: str, nodes: int, late: int, seed: int):
        self.W = topology.make(graph, nodes).sparse.toarray()
        self.W = (self.W + self.W.T) / 2
        self.draw = np.random.default_rng(seed)
        self.neighbours = [[j for j in range(nodes) if j != i and self.W[i, j]] for i in range(nodes)]
        self.nodes = [Pairs({j: self.W[i, j] for j in self.neighbours[i]}, late) for i in range(nodes)]
        self.y = self.draw.normal(size=(nodes, 3))
        self.added = np.append(self.y, np.zeros((nodes, 1)), 1)  # by the nodes themselves: messages, and steps begun
        self.offers: dict[tuple[int, int, int], np.ndarray] = {}  # (sender, receiver, number)
        self.sent: list[tuple[int, int, Offer]] = []

    def post(self, i: int, offers: list[tuple[int, Offer]]) -> None:
        for j, offer in offers:
            assert (i, j, offer.number) not in self.offers  # one offer for each exchange
            self.offers[i, j, offer.number] = np.append(offer.messages[0], offer.steps)
            self.sent.append((i, j, offer))

    def step(self, i: int) -> None:
        node = self.nodes[i]
        if node.messages is None:
            own = self.draw.normal(size=3)
            self.added[i] += [*own, 1]
            self.post(i, node.begin((self.y[i] + own,)))
        elif not node.overdue:
            (self.y[i],) = node.end()

    def deliver(self) -> None:
        i, j, offer = self.sent[self.draw.integers(len(self.sent))]
        self.post(j, self.nodes[j].arrived(i, offer))

    def run(self, events: int) -> None:
        for _ in range(events):
            if not self.sent or self.draw.random() < 0.5:
                self.step(int(self.draw.integers(len(self.nodes))))
            else:
                self.deliver()

    def now(self, i: int) -> np.ndarray:
        messages = self.nodes[i].messages
        return np.append(self.y[i] if messages is None else messages[0], self.nodes[i].steps)

    def change(self, i: int, j: int, number: int) -> np.ndarray:
        return self.W[i, j] * (self.offers[j, i, number] - self.offers[i, j, number])


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(GRAPHS), st.integers(2, 5), st.integers(0, 4), st.integers(0, 2**32))
def test_each_complete_exchange_counts_once_at_both_ends(graph: str, nodes: int, late: int, seed: int) -> None:
    """So the means of the messages, and that of the steps, are those of what nodes added and what is under way."""
    run = Disorder(graph, nodes, late, seed)
    run.run(150)
    missing = np.zeros(4)
    for i, node in enumerate(run.nodes):
        expected = run.added[i].copy()
        for j, pair in node.pairs.items():
            expected += sum((run.change(i, j, number) for number in range(pair.number)), np.zeros(4))
            behind = range(pair.number, run.nodes[j].pairs[i].number)
            assert len(behind) <= 1
            missing += sum((run.change(i, j, number) for number in behind), np.zeros(4))
        assert run.now(i) == pytest.approx(expected)
    total = sum(run.now(i) for i in range(nodes)) + missing
    assert total == pytest.approx(run.added.sum(0))


@pytest.mark.parametrize("late", [0, 1, 4])
def test_a_node_waits_for_an_exchange_that_lasts_longer_than_late(late: int) -> None:
    node = Pairs({1: 0.5}, late)
    for _ in range(late):
        node.begin((np.ones(1),))
        assert node.overdue == []
        node.end()
    node.begin((np.ones(1),))
    assert node.overdue == [1]
    node.arrived(1, Offer(0, 1.0, (np.full(1, 3.0),)))
    assert node.overdue == []
    assert node.end()[0] == 2


def test_a_neighbour_that_left_is_not_waited_for() -> None:
    node = Pairs({1: 0.5}, 0)
    ((_, offer),) = node.begin((np.ones(1),))
    node.left(1)
    assert node.overdue == []
    node.arrived(1, offer)
    assert node.end()[0] == 1
