"""The fast path is the rule: the same numbers to rounding on every backend, for all shapes, graphs and scales."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import pairwise

from dnasa import problems, rules, solve, topology
from dnasa.arrays import compiled
from dnasa.core import Array, Channel, Exchange, InputError, Messages, Network, Rule, Sent, Snapshot, State
from dnasa.engine import fused, side_by_side
from dnasa.engine.fused import (
    MAX_GPU_NODES,
    CompiledBackend,
    Fused,
    TorchBackend,
    TritonBackend,
    supports,
    with_fused_messages,
)
from dnasa.engine.side_by_side import SideBySide, make_stepper
from dnasa.engine.steppers import Sequential
from dnasa.networks.simulated import connect
from dnasa.problems import classification
from dnasa.rules import schedules
from dnasa.rules.registry import groups, variants
from dnasa.rules.weight_decay import with_weight_decay
from dnasa.runs.timing import Timeline
from dnasa.topology import Topology

needs_compiler = pytest.mark.skipif(compiled is None, reason="needs a C compiler when it is installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
INTERPRETED = not torch.cuda.is_available() and bool(os.environ.get("TRITON_INTERPRET"))  # by Triton, without a GPU
needs_triton = pytest.mark.skipif(not (torch.cuda.is_available() or INTERPRETED), reason="needs a GPU")
# backend, dtype, library or device
BACKENDS = {
    "compiled, numpy": (CompiledBackend, "float64", "numpy"),
    "compiled, numpy, float32": (CompiledBackend, "float32", "numpy"),
    "compiled, torch": (CompiledBackend, "float32", "cpu"),
    "compiled, torch, float64": (CompiledBackend, "float64", "cpu"),
    "torch": (TorchBackend, "float32", "cpu"),
    "triton": (TritonBackend, "float32", "cpu" if INTERPRETED else "cuda"),
}
MARKS: Any = {CompiledBackend: needs_compiler, TritonBackend: needs_triton, TorchBackend: ()}
RULES = {
    "dnasa": lambda n: rules.dnasa(*schedules.diminishing(n)),
    "dasagt": lambda n: rules.dasagt(schedules.root_decay(0.1, n), schedules.averaging(n)),
}
backends = pytest.mark.parametrize("backend", [pytest.param(b, marks=MARKS[BACKENDS[b][0]]) for b in BACKENDS])
backends_of_adanasa = pytest.mark.parametrize(
    "backend", [pytest.param(b, marks=MARKS[BACKENDS[b][0]]) for b in BACKENDS if b != "torch"]
)
SHAPES = [(8, 25), (5, 1000), (2, 3, 6, 300), (1, 7), (1, 1000), (2, 3, 40_000)]
compiled_numpy = pytest.mark.parametrize("backend", [pytest.param("compiled, numpy", marks=needs_compiler)])


@pytest.fixture
def arrays(backend: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Array]:
    """A function that makes random arrays for the backend; the extension is disabled where it is not to be chosen."""
    kind, dtype, device = BACKENDS[backend]
    if kind is TorchBackend:
        monkeypatch.setattr(fused, "compiled", None)
    if kind is TritonBackend and INTERPRETED:
        monkeypatch.setattr(fused, "_backend", lambda form, network, x: TritonBackend)
        monkeypatch.setattr(fused, "SMALL", 0)  # no CUDA graphs
    generator = np.random.default_rng(0)

    def make(shape: tuple[int, ...], scale: float = 1.0) -> Array:
        drawn = (scale * generator.standard_normal(shape)).astype(dtype)
        return drawn if device == "numpy" else torch.as_tensor(drawn, device=device)

    return make


def network_of(graph: Topology) -> Network:
    dense = graph.weights if isinstance(graph.weights, np.ndarray) else graph.weights.toarray()

    def multiply(messages: Messages, t: int) -> Messages:
        return tuple(
            (dense.astype(m.dtype) if isinstance(m, np.ndarray) else torch.as_tensor(dense).to(m)) @ m for m in messages
        )

    return Network(graph.nodes, multiply, mean=lambda a: a.mean(-2), topology=graph, step_weights=[graph.weights])


def ring(nodes: int) -> Network:
    return network_of(topology.ring(nodes))


def started(rule: Rule, network: Network, x: Array) -> Fused:
    return Fused(rule, network, Snapshot(rule.init(x), {}, Sent()), timeline=None)


def plain_step(rule: Rule, network: Network, state: State, g: Array, t: int) -> State:
    early = rule.early_messages(state, t)
    messages, state = rule.send(state, (g,), t)
    messages = (*early, *messages)
    for k in network.exchanges(t):
        messages = network.multiply(messages, k)
    return rule.receive(state, messages)


def assert_close(a: Array, b: Array, **tolerance: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), **tolerance)


def assert_steps_agree(backend: str, rule: Rule, network: Network, start: Array, gradients: Iterable[Array]) -> None:
    plain, fast = rule.init(start), started(rule, network, start)
    assert isinstance(fast.backend, BACKENDS[backend][0])
    for t, g in enumerate(gradients):
        plain = plain_step(rule, network, plain, g, t)
        fast.step((g,), t)
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if "64" in str(start.dtype) else {"rtol": 1e-4, "atol": 1e-5}
    for expected, actual in zip(plain, fast.state, strict=True):
        assert_close(actual, expected, **tolerance)


@pytest.mark.parametrize(
    ("backend", "shape", "rule"),
    [pytest.param(*case, marks=MARKS[BACKENDS[case[0]][0]]) for case in pairwise([*BACKENDS], SHAPES, [*RULES])],
)
def test_fused_steps_are_the_rules_steps(
    rule: str, shape: tuple[int, ...], backend: str, arrays: Callable[..., Array]
) -> None:
    nodes = shape[-2]
    gradients = [arrays(shape) for _ in range(30)]
    assert_steps_agree(backend, RULES[rule](nodes), ring(nodes), arrays(shape), gradients)


@pytest.mark.parametrize(
    ("backend", "rule"),
    [
        pytest.param(backend, rule, marks=MARKS[BACKENDS[backend][0]])
        for backend, rule in product(BACKENDS, [*RULES, "adanasa"])
        if (backend, rule) != ("torch", "adanasa")
    ],
)
def test_fused_steps_with_weight_decay_are_the_rules_steps(
    rule: str, backend: str, arrays: Callable[..., Array]
) -> None:
    shape = (2, 3, 6, 300)
    made = adanasa(shape) if rule == "adanasa" else RULES[rule](6)
    decay = schedules.constant(arrays((300,)) ** 2)  # of each parameter
    gradients = [1 + arrays(shape) for _ in range(20)]
    assert_steps_agree(backend, with_weight_decay(made, decay), ring(6), arrays(shape), gradients)


@backends
@pytest.mark.parametrize("graph", [topology.star(9), topology.paper_random(), topology.complete(7), topology.grid(8)])
def test_steps_agree_on_any_graph(graph: Topology, backend: str, arrays: Callable[..., Array]) -> None:
    shape = (graph.nodes, 70)
    gradients = [arrays(shape) for _ in range(20)]
    assert_steps_agree(backend, RULES["dnasa"](graph.nodes), network_of(graph), arrays(shape), gradients)


SEVERAL = {  # graphs that change, several rounds, or both
    "exact, 8": lambda: connect(topology.exact(8)),
    "exact, 5": lambda: connect(topology.exact(5)),
    "rounds": lambda: connect(topology.ladder(16), rounds=2),
}


@pytest.mark.parametrize(
    ("backend", "rule", "several"),
    [
        pytest.param(*case, marks=MARKS[BACKENDS[case[0]][0]])
        for case in pairwise([*BACKENDS], [*RULES, "adanasa"], [*SEVERAL])
        if case[:2] != ("torch", "adanasa")
    ],
)
def test_steps_agree_on_changing_graphs_and_with_several_rounds(
    several: str, rule: str, backend: str, arrays: Callable[..., Array]
) -> None:
    network = SEVERAL[several]()
    shape = (2, network.nodes, 70)
    made = adanasa(shape) if rule == "adanasa" else RULES[rule](network.nodes)
    assert_steps_agree(backend, made, network, arrays(shape), [1 + arrays(shape) for _ in range(20)])


@backends_of_adanasa
def test_second_moments_are_not_negative_where_rounds_have_negative_weights(
    backend: str, arrays: Callable[..., Array]
) -> None:
    network, shape = connect(topology.ladder(16), rounds=2), (16, 40)
    assert network.step_weights[0].min() < -0.01
    gradients = [arrays(shape) for _ in range(5)]
    for g in gradients:
        g[1:] = 0  # all of m is at one node, and negative weights would take it from others
    rule = adanasa(shape)
    assert_steps_agree(backend, rule, network, arrays(shape), gradients)


@backends
def test_the_first_steps_after_an_underflow_use_the_graph_of_their_step(
    backend: str, arrays: Callable[..., Array]
) -> None:
    network, gradients = connect(topology.exact(5)), [arrays((5, 4), 1e-30) for _ in range(7)]
    assert_steps_agree(backend, RULES["dnasa"](5), network, arrays((5, 4)), gradients)


@needs_compiler
def test_a_fast_step_counts_the_messages_and_bytes_of_the_plain_one() -> None:
    network, rule, x = connect(topology.exact(5)), RULES["dnasa"](5), np.ones((5, 3))
    fast, plain = (kind(rule, network, Snapshot(rule.init(x), {}, Sent()), Timeline()) for kind in (Fused, Sequential))
    for t in range(7):
        fast.step((x,), t)
        plain.step((x,), t)
    assert fast.sent == plain.sent


@compiled_numpy
def test_steps_agree_with_a_sparse_matrix_of_many_nodes(backend: str, arrays: Callable[..., Array]) -> None:
    shape, network = (2, 1000, 3), network_of(topology.exponential(1000))
    assert not isinstance(network.step_weights[0], np.ndarray)
    assert_steps_agree(backend, RULES["dnasa"](1000), network, arrays(shape), [arrays(shape) for _ in range(9)])


@backends
def test_every_run_uses_its_own_schedule(backend: str, arrays: Callable[..., Array]) -> None:
    etas = schedules.side_by_side([schedules.root_decay(eta, 4) for eta in (0.01, 0.1, 1.0)], arrays((1,)))
    rule, shape = rules.dasagt(etas, schedules.averaging(4)), (3, 2, 4, 3)
    assert_steps_agree(backend, rule, ring(4), arrays(shape), [arrays(shape) for _ in range(20)])


@backends
@pytest.mark.parametrize("scale", [1e-30, 1e-14, 1.0, 1e14, 1e30])
def test_iterates_do_not_depend_on_the_scale_of_the_loss(
    scale: float, backend: str, arrays: Callable[..., Array]
) -> None:
    rule, network, start = RULES["dnasa"](4), ring(4), 0 * arrays((4, 5))
    scaled, unscaled = started(rule, network, start), started(rule, network, start)
    for t in range(10):
        g = arrays((4, 5))
        scaled.step((scale * g,), t)
        unscaled.step((g,), t)
    assert_close(scaled.x, unscaled.x, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- AdaNASA


def adanasa(shape: tuple[int, ...], averaged: bool = False, steps: int = 30) -> Rule:
    made = schedules.adanasa_averaged(shape[-2]) if averaged else schedules.adanasa(shape[-2], steps)
    return rules.adanasa(*made, layout=(("x", shape[-1:]),))


@pytest.mark.parametrize(
    ("backend", "shape", "averaged"),
    [
        pytest.param(*case, marks=MARKS[BACKENDS[case[0]][0]])
        for case in pairwise([b for b in BACKENDS if b != "torch"], SHAPES, [False, True])
    ],
)
def test_fused_steps_of_adanasa_are_the_rules_steps(
    shape: tuple[int, ...], averaged: bool, backend: str, arrays: Callable[..., Array]
) -> None:
    rule, gradients = adanasa(shape, averaged), [1 + arrays(shape) for _ in range(20)]
    assert_steps_agree(backend, rule, ring(shape[-2]), arrays(shape), gradients)


@backends_of_adanasa
@pytest.mark.parametrize(
    "graph", [topology.star(9), topology.paper_random(), topology.grid(8), topology.exponential(300)]
)
def test_steps_of_adanasa_agree_on_any_graph(graph: Topology, backend: str, arrays: Callable[..., Array]) -> None:
    if backend == "triton" and graph.nodes > MAX_GPU_NODES:
        pytest.skip("too many nodes for a kernel")
    shape = (graph.nodes, 70)
    gradients = [1 + arrays(shape) for _ in range(20)]
    assert_steps_agree(backend, adanasa(shape), network_of(graph), arrays(shape), gradients)


@backends_of_adanasa
def test_every_run_of_adanasa_uses_its_own_schedules(backend: str, arrays: Callable[..., Array]) -> None:
    several = zip(*(schedules.adanasa(4, steps) for steps in (10, 30, 100)), strict=True)
    made = [schedules.side_by_side(each, arrays((1,))) for each in several]
    rule, shape = rules.adanasa(*made, layout=(("x", (3,)),)), (3, 2, 4, 3)
    gradients = [1 + arrays(shape) for _ in range(20)]
    assert_steps_agree(backend, rule, ring(4), arrays(shape), gradients)


@needs_compiler
def test_runs_of_adanasa_beside_other_rules_are_the_runs_of_the_plain_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str | Rule] = ["adanasa", "dnasa", adanasa((5, 30), averaged=True)]

    def run() -> Array:
        return solve(problems.LeastSquares(dim=30), topology.ring(5), made, seed=[0, 1, 2], steps=60).x

    fast = run()
    monkeypatch.setattr(side_by_side, "supports", lambda *args: False)
    np.testing.assert_allclose(fast, run(), rtol=1e-9, atol=1e-11)


@backends_of_adanasa
def test_a_coordinate_without_gradients_stays_where_it_is(backend: str, arrays: Callable[..., Array]) -> None:
    start, g = arrays((4, 5)), arrays((4, 5))
    g[..., 2] = 0
    run = started(adanasa((4, 5)), ring(4), 0 * start + 1)
    for t in range(10):
        run.step((g,), t)
    assert_close(run.x[..., 2], 0 * start[..., 2] + 1)
    assert bool((abs(run.x[..., 1] - 1) > 1e-6).all())


@backends
def test_adanasa_has_a_fast_path_in_c_and_on_a_gpu(backend: str, arrays: Callable[..., Array]) -> None:
    x = arrays((4, 5))
    assert supports(adanasa((4, 5)), ring(4), adanasa((4, 5)).init(x)) == (BACKENDS[backend][0] is not TorchBackend)


# ---------------------------------------------------------------- gradients as problems return them


@backends
@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_a_gradient_buffer_that_is_reused_at_every_step_gives_the_same_iterates(
    scale: float, backend: str, arrays: Callable[..., Array]
) -> None:
    rule, network, start = RULES["dnasa"](4), ring(4), 0 * arrays((4, 50))
    reused, fresh, buffer = started(rule, network, start), started(rule, network, start), arrays((4, 50))
    for t in range(10):
        buffer[...] = arrays((4, 50), scale)
        reused.step((buffer,), t)
        fresh.step((buffer + 0,), t)
    buffer[...] = 0
    for a, b in zip(reused.state, fresh.state, strict=True):
        assert_close(a, b, rtol=0, atol=0)


@backends
def test_gradients_of_another_dtype_library_and_memory_order_are_converted(
    backend: str, arrays: Callable[..., Array]
) -> None:
    rule, network, start = RULES["dnasa"](6), ring(6), 0 * arrays((6, 40))
    converted, plain = started(rule, network, start), started(rule, network, start)
    for t in range(0, 15, 3):
        transposed = arrays((40, 6)).T
        integers = (10 * arrays((6, 40))).round()
        other = torch.as_tensor(integers).cpu().double() if isinstance(start, np.ndarray) else integers.cpu().numpy()
        for k, (g, same) in enumerate([(transposed, transposed + 0 * start), (other, integers)]):
            converted.step((g,), t + k)
            plain.step((same,), t + k)
    assert_close(converted.x, plain.x)


@backends
@pytest.mark.parametrize("shape", [(3, 2, 6, 5), (1, 1, 6, 5), (6, 5), (1, 2, 1, 5), (1, 2, 6, 1), (1, 2, 5, 6), ()])
def test_a_gradient_of_another_shape_is_refused_with_both_shapes(
    shape: tuple[int, ...], backend: str, arrays: Callable[..., Array]
) -> None:
    run = started(RULES["dnasa"](6), ring(6), arrays((1, 2, 6, 5)))
    with pytest.raises(InputError) as refused:
        run.step((arrays(shape),), 0)
    assert str(shape) in str(refused.value)
    assert "(1, 2, 6, 5)" in str(refused.value)


@backends
def test_a_gradient_that_is_x_itself_is_read_before_the_step_changes_it(
    backend: str, arrays: Callable[..., Array]
) -> None:
    """f = |x|^2/2 has the gradient x: a problem may return its argument."""
    rule, network = RULES["dnasa"](4), ring(4)
    own, copied = (started(rule, network, 0 * arrays((4, 5)) + 1) for _ in range(2))
    for t in range(20):
        own.step((own.x,), t)
        copied.step((copied.x + 0,), t)
    assert_close(own.x, copied.x)


@backends
def test_a_gradient_that_is_a_transposed_view_of_x_is_copied_first(backend: str, arrays: Callable[..., Array]) -> None:
    rule, start = RULES["dnasa"](4), arrays((4, 4))
    run = started(rule, ring(4), start)
    run.step((run.x.T,), 1)
    assert_close(run.state.v, start.T)


@needs_compiler
def test_a_gradient_that_shares_memory_with_x_in_the_other_library_is_copied_first() -> None:
    rule, start = RULES["dnasa"](4), torch.randn(4, 4)
    run = started(rule, ring(4), start)
    run.step((run.x.numpy().T,), 1)
    assert_close(run.state.v, start.T)


def test_gradients_of_torch_may_require_gradients_themselves() -> None:
    run, weight = started(RULES["dnasa"](4), ring(4), torch.ones(4, 3)), torch.ones(3, requires_grad=True)
    for t in range(5):
        run.step((run.x * weight,), t)
    assert torch.isfinite(run.x).all()
    assert not run.x.requires_grad


@compiled_numpy
def test_a_diverged_run_does_not_change_the_others(backend: str, arrays: Callable[..., Array]) -> None:
    rule, network = RULES["dnasa"](4), ring(4)
    both, alone = (started(rule, network, arrays(shape) * 0) for shape in ((2, 4, 5), (1, 4, 5)))
    for t in range(20):
        g = arrays((2, 4, 5))
        alone.step((g[:1],), t)
        if t > 5:
            g[1] = np.nan
        both.step((g,), t)
    assert np.isnan(both.x[1]).all()
    np.testing.assert_array_equal(both.x[0], alone.x[0])


# ---------------------------------------------------------------- states


@needs_compiler
@pytest.mark.parametrize("rule", [RULES["dnasa"](6), adanasa((6, 5000)), adanasa((6, 5000), averaged=True)])
def test_a_step_from_a_saved_state_is_the_same_step(rule: Rule) -> None:
    """|z| of a saved state is computed exactly as a step computes it: a resumed run is exact."""
    network, generator = ring(6), np.random.default_rng(0)
    run = started(rule, network, np.zeros((6, 5000), np.float32))
    gradients = generator.standard_normal((20, 6, 5000)).astype(np.float32)
    for t in range(20):
        if t == 10:
            resumed = Fused(rule, network, run.snapshots[0], timeline=None)
        run.step((gradients[t],), t)
        if t >= 10:
            resumed.step((gradients[t],), t)
    for a, b in zip(run.state, resumed.state, strict=True):
        np.testing.assert_array_equal(a, b)


@backends
def test_the_starting_state_is_not_changed(backend: str, arrays: Callable[..., Array]) -> None:
    rule, start = RULES["dasagt"](4), arrays((4, 5))
    state, before = rule.init(start), start + 0
    run = Fused(rule, ring(4), Snapshot(state, {}, Sent()), timeline=None)
    run.step((arrays((4, 5)),), 0)
    assert_close(start, before, rtol=0, atol=0)
    assert not bool((state.v != 0).any())


@backends
def test_a_state_of_another_number_of_nodes_is_refused(backend: str, arrays: Callable[..., Array]) -> None:
    rule = RULES["dnasa"](8)
    with pytest.raises(InputError, match=r"\(4, 5\) for 8 nodes"):
        started(rule, ring(8), arrays((4, 5)))


@backends
def test_a_state_whose_arrays_differ_in_shape_is_refused(backend: str, arrays: Callable[..., Array]) -> None:
    rule = RULES["dnasa"](4)
    state = rule.init(arrays((4, 5)))._replace(v=arrays((4, 3)))
    with pytest.raises(InputError, match=r"\(4, 3\), \(4, 5\)"):
        Fused(rule, ring(4), Snapshot(state, {}, Sent()), timeline=None)


@backends
def test_submitted_work_is_done_at_once_and_gradients_are_wanted_at_x(
    backend: str, arrays: Callable[..., Array]
) -> None:
    run = started(RULES["dnasa"](4), ring(4), arrays((4, 5)))
    assert run.submit(max, 2, 3).result(timeout=0) == 3
    assert [point is run.x for point in run.points(0)] == [True]
    assert run.snapshots[0].memory == {}


# ---------------------------------------------------------------- where it applies


class Counted(NamedTuple):
    """D-NASA's state with one array more."""

    x: Array
    u: Array
    v: Array
    z: Array
    count: Array


def forms(dim: int) -> dict[str, Rule]:
    made: dict[str, Callable[[int], Rule]] = RULES
    layout = (("x", (dim,)),)
    adanasa = rules.adanasa(*schedules.adanasa(4, 20), layout=layout)
    return {name: make(4) for name, make in made.items()} | {"adanasa": adanasa}


CHANGES: dict[str, Callable[[Rule], Rule]] = {
    "early": lambda r: r._replace(early=lambda s, t: tuple(2 * m for m in r.early_messages(s, t))),
    "send": lambda r: r._replace(send=lambda s, g, t: r.send(s, tuple(each + 1 for each in g), t)),
    "receive": lambda r: r._replace(receive=lambda s, m: r.receive(s, tuple(0.9 * each for each in m))),
    "init": lambda r: r._replace(init=lambda x: Counted(x, 0 * x, 0 * x, 0 * x, 0 * x)),
    "points": lambda r: r._replace(points=lambda s, t: (1.1 * s.x,)),
    "then": lambda r: r._replace(then=(Exchange(lambda s, t: ((s.x,), s), lambda s, m: s._replace(x=m[0])),)),
    "form=None": lambda r: r._replace(form=None),
    "another Rule": lambda r: Rule(**{**r._asdict(), "send": lambda s, g, t: r.send(s, (g[0] - 1,), t)}),
}


@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name in forms(1) for change in CHANGES if (name, change) != ("adanasa", "init")],
)
def test_a_rule_whose_functions_were_replaced_runs_as_its_functions_say(name: str, change: str) -> None:
    problem, graph = problems.LeastSquares(dim=3), topology.ring(4)
    rule = CHANGES[change](forms(3)[name])
    plain = solve(problem, graph, rule._replace(form=None), steps=20).x
    assert (solve(problem, graph, rule, steps=20).x == plain).all()
    if change not in ("form=None", "init") and (name, change) != ("adanasa", "early"):
        assert not np.allclose(plain, solve(problem, graph, forms(3)[name], steps=20).x)


def test_what_a_rule_shows_may_be_replaced_without_losing_the_fast_path() -> None:
    rule = RULES["dnasa"](4)
    shown = rule._replace(answer=lambda s: 2 * s.x, estimate=lambda s: s.u, restart=None)
    assert supports(shown, ring(4), shown.init(torch.zeros(4, 3)))


def test_it_is_supported_for_known_matrices_plain_channels_and_rules_of_the_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule, network = RULES["dnasa"](8), ring(8)
    single, double = rule.init(torch.zeros(8, 3)), rule.init(np.zeros((8, 3)))
    channel = Channel(init=lambda message: (), exchange=lambda memory, messages, multiply, t, first: (messages, memory))
    assert supports(rule, network, single)
    assert supports(rule, network, double) == (compiled is not None)
    assert not supports(rules.dsgd(lambda t: 0.1), network, single)
    assert not supports(rule._replace(form=None), network, single)
    assert not supports(rule, network, rule.init(torch.zeros(8, 3).half()))
    assert not supports(rule, replace(network, channel=channel), single)
    assert not supports(rule, replace(network, step_weights=()), single)
    monkeypatch.setattr(fused, "compiled", None)
    assert supports(rule, network, single)
    assert not supports(rule, network, double)
    many = Network(3000, network.multiply, network.mean, step_weights=[topology.ring(3000).weights])
    assert not supports(rule, many, rule.init(torch.zeros(3000, 3)))


# ---------------------------------------------------------------- processes and devices

IN_A_FORKED_PROCESS = """
import os
import numpy as np
from dnasa import rules, topology
from dnasa.core import Network, Sent, Snapshot
from dnasa.engine.fused import Fused
from dnasa.rules import schedules

network = Network(8, None, None, step_weights=[topology.ring(8).weights])

def total():
    rule = rules.dasagt(schedules.root_decay(0.1, 8), schedules.averaging(8))
    run = Fused(rule, network, Snapshot(rule.init(np.ones((8, 10_000))), {}, Sent()), timeline=None)
    for t in range(5):
        run.step((run.x,), t)
    return run.x.sum()

before, child = total(), os.fork()
if child == 0:
    os._exit(0 if total() == before else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_continues_with_one_thread() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", IN_A_FORKED_PROCESS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.strip() == "0", done.stderr[-2000:]


@needs_gpu
@pytest.mark.parametrize("rule", [*RULES, "adanasa"])
def test_steps_of_a_cuda_graph_are_the_launched_steps(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, start = ring(8), torch.randn(2, 8, 300, device="cuda")
    made = RULES[rule](8) if rule in RULES else adanasa((8, 300))
    captured: Any = started(made, network, start)
    monkeypatch.setattr(fused, "SMALL", 0)
    launched: Any = started(made, network, start)
    assert captured.backend.graphs is not None
    assert launched.backend.graphs is None
    for t in range(20):
        g = torch.randn_like(start)
        captured.step((g,), t)
        launched.step((g,), t)
    for a, b in zip(captured.state, launched.state, strict=True):
        assert_close(a, b, rtol=0, atol=0)


@needs_gpu
@pytest.mark.parametrize("activation", [torch.nn.Tanh, torch.nn.ReLU])
def test_runs_with_cuda_graphs_are_the_runs_without(activation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((400, 1, 12, 12)).astype(np.float32), np.arange(400) % 3
    layers = (
        torch.nn.Conv2d(1, 4, 3),
        activation(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(100, 3),
    )
    shards = np.array_split(np.arange(400), 4)

    def run() -> Array:
        problem = problems.Classification(torch.nn.Sequential(*layers), x, y, shards, x, y, device="cuda")
        return solve(problem, topology.ring(4), ["dnasa", "dsgt"], eta=[0.01, 0.1], seed=[0, 1], steps=40).x

    with_graphs = run()
    monkeypatch.setattr(classification, "SMALL", 0)
    monkeypatch.setattr(fused, "SMALL", 0)
    torch.testing.assert_close(with_graphs, run(), rtol=1e-3, atol=1e-4)


@needs_compiler
def test_rules_side_by_side_each_take_their_fast_path() -> None:
    x = np.zeros((1, 1, 4, 5))
    made = groups([*variants("dnasa"), *variants("dsgd", [0.1, 0.2])], 4, 50, x, ())
    snapshots = [Snapshot(group.rule.init(np.repeat(x, group.size, 0)), {}, Sent()) for group in made]
    stepper = make_stepper(
        [g.rule for g in made], [g.size for g in made], connect(topology.ring(4)), snapshots, Timeline()
    )
    assert isinstance(stepper, SideBySide)
    assert [type(each) for each in stepper.steppers] == [Fused, Sequential]  # type: ignore[comparison-overlap]


def test_it_is_used_where_it_applies_and_nowhere_else() -> None:
    made = groups(variants("dnasa"), 4, 50, np.zeros((1, 1, 4, 5)), ())[0].rule
    snapshot = Snapshot(made.init(torch.zeros(1, 1, 4, 5)), {}, Sent())
    plain = make_stepper([made], [1], connect(topology.ring(4)), [snapshot], Timeline())
    assert isinstance(plain, Fused)
    for network in (connect(topology.exact(4)), connect(topology.ring(4), rounds=2)):
        assert isinstance(make_stepper([made], [1], network, [snapshot], Timeline()), Fused)
    dense = connect(topology.random(30), rounds=2)  # one product would take longer than two
    assert not supports(made, dense, made.init(torch.zeros(1, 1, 30, 5)))
    elsewhere = made._replace(points=lambda state, t: (state.x + 1,))
    assert isinstance(make_stepper([elsewhere], [1], connect(topology.ring(4)), [snapshot], Timeline()), Sequential)


@pytest.mark.parametrize("backend", [pytest.param(b, marks=needs_compiler) for b in BACKENDS if "compiled" in b])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adanasas_messages_in_one_pass_are_the_rules_and_leave_the_state_as_it_was(
    backend: str, decay: float, arrays: Callable[..., Array]
) -> None:
    x = arrays((2, 3, 700))
    rule = rules.adanasa(*schedules.adanasa(3, 20), layout=(("a", (700,)),))
    rule = with_weight_decay(rule, lambda t: decay) if decay else rule
    fast = with_fused_messages(rule, rule.init(x))
    assert fast.send is not rule.send
    plain = state = rule.init(x)
    for t in range(6):
        g, before = arrays((2, 3, 700)), [np.asarray(a).copy() for a in state]
        messages, after = rule.send(plain, (g,), t)
        fast_messages, fast_after = fast.send(state, (g,), t)
        for a, b in zip((*messages, after.z), (*fast_messages, fast_after.z), strict=True):
            assert_close(a, b, rtol=1e-5, atol=1e-6)
        for a, b in zip(before, state, strict=True):
            np.testing.assert_array_equal(a, b)
        plain, state = rule.receive(after, messages), fast.receive(fast_after, fast_messages)
