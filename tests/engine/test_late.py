"""Runs without waiting, simulated."""

import heapq
import signal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import dnasa
from dnasa import problems, topology
from dnasa.clock import with_clock
from dnasa.core import Array, InputError, Interrupted, Rule, assign
from dnasa.engine.late import Late
from dnasa.networks.simulated import connect
from dnasa.rules import registry
from dnasa.runs.snapshots import Sent, Snapshot

UNEVEN: Any = {"compute": [0.02, 0.1, 0.02, 0.03, 0.02], "bandwidth": 100, "latency": 50}
SAFE = ["dsgt", "dasagt", "adanasa", "dnasa"]
OF_MESSAGES = ("late", "clock", "rounds", "every", "compress", "overlap")


class State(NamedTuple):
    x: Array


TARGETS = np.random.default_rng(0).normal(size=(5, 3)) * 3


def pull(x: np.ndarray, node: int, rng: np.random.Generator) -> np.ndarray:
    """The gradient of |x - target|^2 / 2, whose target differs between nodes."""
    return x - TARGETS[node] + 0.1 * rng.normal(size=3)


def problem() -> Any:
    return problems.Custom(pull, start=np.zeros(3))


def solve(rule: Any = "dnasa", graph: Any = None, steps: int = 60, **options: Any) -> Any:
    messages = {"late": 4, "clock": UNEVEN} | {key: options.pop(key) for key in OF_MESSAGES if key in options}
    network = dnasa.connect(graph or topology.ring(5), **messages)
    return dnasa.solve(problem(), network, rule, steps=steps, progress=False, **options)


@pytest.mark.parametrize("rule", ["dnasa", "adanasa"])
def test_without_lateness_the_run_is_the_synchronous_one(rule: str) -> None:
    even = {"compute": 0.1, "bandwidth": 100, "latency": 10}
    waits, late = solve(rule, late=None, clock=even), solve(rule, late=0, clock=even)
    assert late.x == pytest.approx(waits.x, rel=1e-9)
    assert late.history.messages.tolist() == waits.history.messages.tolist()
    assert late.history.bytes.tolist() == waits.history.bytes.tolist()


def test_without_lateness_speeds_and_losses_change_nothing() -> None:
    """Nodes are steps apart, and each is where the synchronous run is at the same step."""
    stepper, waits = simulated(steps=12, late=0), {0: np.zeros((5, 3))}
    for steps in range(1, 13):
        waits[steps] = solve(late=None, steps=steps).x
    while stepper.done < 5 * 10 + 2:
        stepper.now, _, event = heapq.heappop(stepper.events)
        event()
    counts = [node.own_steps for node in stepper.nodes]
    assert len({*counts}) > 1
    for i, node in enumerate(stepper.nodes):
        assert node.state.x[0, 0, 0] == pytest.approx(waits[counts[i]][i], rel=1e-9)


def test_the_clock_of_a_run_is_the_one_calculated_by_hand() -> None:
    """A second for a gradient, half a second on the way: with waiting a step takes both, without it the first."""
    links = {"compute": 1, "bandwidth": 1e9, "latency": 500}

    def seconds(late: int) -> list[float]:
        quiet = problems.Custom(lambda x, node, rng: x, start=np.zeros(3))
        network = dnasa.connect(topology.path(2), clock=links, late=late)
        return dnasa.solve(quiet, network, steps=4, evaluate=1, progress=False).history.clock_seconds.tolist()

    assert seconds(0) == pytest.approx([0, 1.5, 3, 4.5, 6])
    assert seconds(1) == pytest.approx([0, 1, 2, 3, 4])


@pytest.mark.long  # test_late_sites.py has short runs of real sites
@pytest.mark.parametrize("rule", SAFE)
def test_safe_rules_find_the_solution_of_all_nodes(rule: str) -> None:
    """The slow node takes a fifth of the steps of others, and counts as much."""
    eta = [] if rule in ("dnasa", "adanasa") else [0.1]
    run = solve(rule, steps=1500, late=8, eta=eta[0] if eta else None)
    assert run.x.mean(0) == pytest.approx(TARGETS.mean(0), abs=0.15)


def test_the_same_run_again_is_the_same_and_seeds_run_side_by_side() -> None:
    together = solve(seed=[0, 1])
    for seed in (0, 1):
        assert (solve(seed=seed).x == together.x[seed]).all()
    assert (solve(seed=0, clock=UNEVEN | {"latency": 200}).x != together.x[0]).any()


def test_nodes_that_do_not_wait_take_different_numbers_of_steps() -> None:
    stepper = simulated(steps=200, late=16)
    for t in range(200):
        stepper.step((), t)
    counts = [node.own_steps for node in stepper.nodes]
    assert sum(counts) == 5 * 200
    assert counts[1] < 0.6 * min(counts[:1] + counts[2:])
    assert [node.mean_steps for node in stepper.nodes] == pytest.approx([200] * 5, rel=0.1)


@pytest.mark.parametrize("late", [0, 1, 4])
def test_each_exchange_counts_once_at_both_ends(late: int) -> None:
    """So the means of the messages, and that of the steps, stay what the nodes have added."""
    network, start = with_clock(connect(topology.path(5)), UNEVEN), TARGETS[None, None]
    silent = Rule(State, lambda s, gradients, t: ((s.x,), s), assign("x"))
    stepper = Late(silent, network, Snapshot(State(start), {}, Sent()), late, 100, lambda point, node, step: 0 * point)
    for t in range(8):
        stepper.step((), t)
    stepper.compute = np.full(5, np.inf)  # no further step begins, and all messages arrive
    while stepper.events[0][0] < np.inf:
        stepper.now, _, event = heapq.heappop(stepper.events)
        event()
    begun = [node.own_steps + (node.messages is not None) for node in stepper.nodes]
    for node in stepper.nodes:
        node.messages = node.messages or (node.state.x,)
        node.complete()
    messages = [node.messages[0] for node in stepper.nodes if node.messages]
    assert (len({*begun}) > 1) == (late > 0)
    assert np.mean(messages, 0) == pytest.approx(start.mean(-2, keepdims=True))
    assert np.mean([node.mean_steps for node in stepper.nodes]) == pytest.approx(np.mean(begun))


def test_nodes_may_count_differently() -> None:
    run = solve("dsgt", steps=500, eta=0.1, node_weights=[1, 2, 3, 4, 5])
    assert run.x.mean(0) == pytest.approx(np.average(TARGETS, axis=0, weights=[1, 2, 3, 4, 5]), abs=0.2)


def test_a_node_that_diverges_is_named() -> None:
    class Broken(problems.Problem):
        def start(self, seed: int) -> np.ndarray:
            return np.ones(3)

        def gradient(self, x: np.ndarray, nodes: range, seeds: Any, t: int) -> np.ndarray:
            return x * (np.nan if nodes[0] == 3 and t == 2 else 1)

    network, broken = dnasa.connect(topology.ring(5), clock=UNEVEN, late=4), Broken()
    run = dnasa.solve(broken, network, steps=50, progress=False)
    assert run.runs.diverged_node.tolist() == [3]


def gradient_of(point: np.ndarray, node: int, step: int) -> np.ndarray:
    return problem().gradient(point, range(node, node + 1), [0], step)


def simulated(steps: int, late: int) -> Late:
    graph = topology.ring(5)
    network = with_clock(connect(graph), UNEVEN)
    x = np.zeros((1, 1, 5, 3))
    made = registry.groups(registry.variants("dnasa"), 5, steps, x, (("x", (3,)),))[0].rule
    return Late(made, network, Snapshot(made.init(x), {}, Sent()), late, steps, gradient_of)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"late": -1}, "late must be a whole number from 0 on, not -1."),
        ({"clock": None}, "late is for simulated runs with a clock"),
        *(
            (wrong, "late takes one rule, of adanasa, dasagt, dnasa, dsgt, on an undirected graph that stays the same")
            for wrong in (
                {"rule": "dsgd", "eta": 0.1},
                {"rule": "gt_hsgd", "eta": 0.1},
                {"rule": ["dnasa", "adanasa"]},
                {"graph": topology.exact(5)},
                {"rounds": 2},
                {"every": 2},
                {"compress": "bfloat16"},
                {"overlap": True},
            )
        ),
    ],
)
def test_what_needs_waiting_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        solve(**options)


def test_a_run_without_waiting_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave out rounds, every, overlap, compression and checkpoints"):
        solve(folder=tmp_path / "run", record=dnasa.Record(checkpoint_every=10))
    solve(folder=tmp_path / "run")
    with pytest.raises(InputError, match="leave out rounds, every, overlap, compression and checkpoints"):
        solve(folder=tmp_path / "run", resume=True)


def test_the_rules_that_say_they_are_safe_are_those_tested_here() -> None:
    assert {name for name in registry.BUILT_IN if registry.example(name).needs.late} == {*SAFE}


def test_an_interrupted_run_says_that_it_cannot_be_resumed(tmp_path: Path) -> None:
    def interrupt(evaluation: Any) -> None:
        if evaluation.step == 20:
            signal.raise_signal(signal.SIGTERM)  # SIGINT may be ignored, as in the background of a shell

    with pytest.raises(Interrupted, match="A run with late cannot be resumed"):
        solve(folder=tmp_path / "run", evaluate=10, record=dnasa.Record(callback=interrupt))
