"""The fast paths are the rule: the same numbers to rounding, for all shapes, graphs and scales."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import pairwise
from kernel_twin import step, use_twin

from dnasa import problems, rules, solve, topology
from dnasa.arrays import compiled
from dnasa.communication import Channel, MessageSettings, Network
from dnasa.core import Array, Rule
from dnasa.engine import fused, side_by_side, torch_compile
from dnasa.engine.fused import Fused, supports, with_fused_messages
from dnasa.engine.fused_gpu import FusedOnGpu
from dnasa.engine.side_by_side import SideBySide, make_stepper
from dnasa.engine.steppers import Sequential, Stepper
from dnasa.networks.simulated import connect
from dnasa.problems import executors
from dnasa.rules import schedules
from dnasa.rules.registry import groups, variants
from dnasa.rules.weight_decay import with_weight_decay
from dnasa.runs.snapshots import Sent, Snapshot
from dnasa.runs.timing import Timeline

needs_compiler = pytest.mark.skipif(compiled is None, reason="needs a C compiler when it is installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
# the stepper, the dtype and the library
FAST: dict[str, tuple[Any, str, str]] = {
    "C, numpy": (Fused, "float64", "numpy"),
    "C, numpy, float32": (Fused, "float32", "numpy"),
    "C, torch": (Fused, "float32", "torch"),
    "GPU": (FusedOnGpu, "float32", "torch"),
}
GRAPHS: dict[str, Callable[[], Network]] = {
    "ring": lambda: connect(topology.ring(6)),
    "star": lambda: connect(topology.star(9)),
    "one": lambda: connect(topology.ring(1)),
    "exact, 5": lambda: connect(topology.exact(5)),  # a graph that changes
    "exact, 8": lambda: connect(topology.exact(8)),
    "rounds": lambda: connect(topology.ladder(16), rounds=2),
}
SHAPES = [((), 25), ((2, 3), 300), ((), 7), ((3,), 12_000)]  # runs, and numbers of each node


def adanasa(nodes: int, dim: int, averaged: bool = False) -> Rule:
    made = schedules.adanasa_averaged(nodes) if averaged else schedules.adanasa(nodes, 30)
    return rules.adanasa(*made, layout=(("x", (dim,)),))


RULES: dict[str, Callable[[int, int], Rule]] = {
    "dnasa": lambda n, d: rules.dnasa(*schedules.diminishing(n)),
    "dasagt": lambda n, d: rules.dasagt(schedules.root_decay(0.1, n), schedules.averaging(n)),
    "adanasa": adanasa,
    "adanasa, averaged": lambda n, d: adanasa(n, d, averaged=True),
}


def marked(cases: Iterable[Any]) -> list[Any]:
    """Cases that need the C extension are skipped without it."""
    each = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=needs_compiler if FAST[case[0]][0] is Fused else ()) for case in each]


fast = pytest.mark.parametrize("name", marked(FAST))
in_c = pytest.mark.parametrize("name", marked(name for name in FAST if FAST[name][0] is Fused))


@pytest.fixture
def arrays(name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Array]:
    """Makes random arrays for the fast path of that name."""
    use_twin(monkeypatch)
    _, dtype, library = FAST[name]
    generator = np.random.default_rng(0)

    def make(shape: tuple[int, ...], scale: float = 1.0) -> Array:
        drawn = (scale * generator.standard_normal(shape)).astype(dtype)
        return drawn if library == "numpy" else torch.as_tensor(drawn)

    return make


def ring(nodes: int) -> Network:
    return connect(topology.ring(nodes))


def snapshot(rule: Rule, x: Array) -> Snapshot:
    return Snapshot(rule.init(x), {}, Sent())


def started(name: str, rule: Rule, network: Network, x: Array) -> Any:
    return FAST[name][0](rule, network, snapshot(rule, x))


def assert_close(a: Array, b: Array, **tolerance: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), **tolerance)


def assert_steps_agree(name: str, rule: Rule, network: Network, start: Array, gradients: Iterable[Array]) -> None:
    quick = started(name, rule, network, start)
    plain = Sequential(rule, network, snapshot(rule, start), Timeline())
    for t, g in enumerate(gradients):
        plain.step((g,), t)
        quick.step((g,), t)
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if "64" in str(start.dtype) else {"rtol": 1e-4, "atol": 1e-5}
    for expected, actual in zip(plain.state, quick.state, strict=True):
        assert_close(actual, expected, **tolerance)
    assert quick.sent == plain.sent


@pytest.mark.parametrize(
    ("name", "rule", "graph", "shape", "decays"), marked(pairwise([*FAST], [*RULES], [*GRAPHS], SHAPES, [False, True]))
)
def test_fast_steps_are_the_rules_steps(
    rule: str, graph: str, shape: Any, decays: bool, name: str, arrays: Callable[..., Array]
) -> None:
    network, (runs, dim) = GRAPHS[graph](), shape
    made, whole = RULES[rule](network.nodes, dim), (*runs, network.nodes, dim)
    if decays:
        made = with_weight_decay(made, schedules.constant(arrays((dim,)) ** 2))
    assert_steps_agree(name, made, network, arrays(whole), [1 + arrays(whole) for _ in range(20)])


@fast
def test_second_moments_are_not_negative_where_rounds_have_negative_weights(name: str, arrays: Callable[..., Array]) -> None:
    network, shape = connect(topology.ladder(16), rounds=2), (16, 40)
    assert network.step_weights[0].min() < -0.01
    gradients = [arrays(shape) for _ in range(5)]
    for g in gradients:
        g[1:] = 0  # all of m is at one node, and negative weights would take it from others
    assert_steps_agree(name, adanasa(*shape), network, arrays(shape), gradients)


@in_c
def test_steps_agree_with_a_sparse_matrix_of_many_nodes(name: str, arrays: Callable[..., Array]) -> None:
    shape, network = (2, 1000, 3), connect(topology.exponential(1000))
    assert not isinstance(network.step_weights[0], np.ndarray)
    assert_steps_agree(name, RULES["dnasa"](1000, 3), network, arrays(shape), [arrays(shape) for _ in range(9)])


@in_c
@pytest.mark.parametrize("scale", [1e-30, 1e-14, 1.0, 1e14, 1e30])
def test_iterates_do_not_depend_on_the_scale_of_the_loss(scale: float, name: str, arrays: Callable[..., Array]) -> None:
    scaled, unscaled = (started(name, RULES["dnasa"](4, 5), ring(4), 0 * arrays((4, 5))) for _ in range(2))
    for t in range(10):
        g = arrays((4, 5))
        scaled.step((scale * g,), t)
        unscaled.step((g,), t)
    assert_close(scaled.x, unscaled.x, rtol=1e-4, atol=1e-5)


VIEWS: dict[str, Callable[[Array], Array]] = {  # f = |x|^2/2 has the gradient x: a problem may return its argument
    "itself": lambda x: x,
    "transposed": lambda x: x.T,
}


@in_c
@pytest.mark.parametrize("view", VIEWS)
def test_a_gradient_that_is_a_view_of_x_is_read_before_x_changes(view: str, name: str, arrays: Callable[..., Array]) -> None:
    start = arrays((4, 4))
    run, copied = (started(name, RULES["dnasa"](4, 4), ring(4), start) for _ in range(2))
    for t in range(5):
        run.step((VIEWS[view](run.x),), t)
        copied.step((VIEWS[view](copied.x + 0),), t)
    assert_close(run.x, copied.x)
    assert_close(run.state.v, copied.state.v)


def test_gradients_of_torch_may_require_gradients_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    use_twin(monkeypatch)
    for name in [name for name in FAST if compiled or FAST[name][0] is FusedOnGpu]:
        run = started(name, RULES["dnasa"](4, 3), ring(4), torch.ones(4, 3))
        weight = torch.ones(3, requires_grad=True)
        for t in range(5):
            run.step((run.x * weight,), t)
        assert torch.isfinite(run.x).all()
        assert not run.x.requires_grad


@fast
def test_a_diverged_run_does_not_change_the_others(name: str, arrays: Callable[..., Array]) -> None:
    rule = RULES["dnasa"](4, 5)
    both, alone = (started(name, rule, ring(4), arrays(shape) * 0) for shape in ((2, 4, 5), (1, 4, 5)))
    for t in range(20):
        g = arrays((2, 4, 5))
        alone.step((g[:1],), t)
        if t > 5:
            g[1] = np.nan
        both.step((g,), t)
    assert np.isnan(np.asarray(both.x[1])).all()
    np.testing.assert_array_equal(both.x[0], alone.x[0])


@fast
@pytest.mark.parametrize("rule", RULES)
def test_a_step_from_a_saved_state_is_the_same_step(rule: str, name: str, arrays: Callable[..., Array]) -> None:
    """|z| of a saved state is computed exactly as a step computes it: a resumed run is exact."""
    made, network = RULES[rule](6, 5000), ring(6)
    run = resumed = started(name, made, network, arrays((6, 5000)))
    for t in range(20):
        g = arrays((6, 5000))
        if t == 10:
            resumed = FAST[name][0](made, network, run.snapshots[0]._replace(sent=Sent()))
        run.step((g,), t)
        if t >= 10:
            resumed.step((g,), t)
    for a, b in zip(run.state, resumed.state, strict=True):
        np.testing.assert_array_equal(a, b)


def kind(rule: Rule, network: Network, x: Array) -> type[Stepper]:
    return type(make_stepper([rule], [1], network, [snapshot(rule, x)], Timeline()))


def test_the_fast_path_is_chosen_outside_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, network, x = RULES["dnasa"](8, 3), ring(8), np.zeros((8, 3))
    channel = Channel(init=lambda message: (), exchange=lambda memory, messages, multiply, t, first: (messages, memory))
    quick: Any = Fused if compiled else Sequential
    for where in (network, connect(topology.exact(8)), connect(topology.ring(8), rounds=2)):
        assert kind(rule, where, x) is kind(rule, where, torch.zeros(8, 3)) is quick
    plain = [
        (rules.dsgd(lambda t: 0.1), network, x),
        (rule._replace(form=None), network, x),
        (rule, network, torch.zeros(8, 3).half()),
        (rule, replace(network, settings=MessageSettings(channel=channel)), x),
        (rule, replace(network, step_weights=()), x),
    ]
    for case in plain:
        assert kind(*case) is Sequential
    assert not supports(rule, connect(topology.random(30), rounds=2), rule.init(np.zeros((30, 5))))  # two products are faster
    monkeypatch.setattr(fused, "compiled", None)
    assert kind(rule, network, x) is Sequential


def test_on_a_gpu_large_steps_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_twin(monkeypatch)
    monkeypatch.setattr(side_by_side, "find_spec", lambda name: True)
    for module in (fused, side_by_side):
        monkeypatch.setattr(module, "on_gpu", lambda a: True)
    rule, large, small = RULES["dnasa"](4, 1 << 18), torch.zeros(4, 1 << 18), torch.zeros(4, 100)
    assert kind(rule, ring(4), large) is FusedOnGpu
    assert kind(rule, ring(4), large.double()) is kind(rule, ring(17), large.repeat(5, 1)[:17]) is Sequential
    assert kind(rule, ring(4), small) is Sequential
    assert kind(rule._replace(form=None), ring(4), large) is Sequential
    messages = side_by_side.with_fast_messages(rule, rule.init(large))  # where W is not at hand
    assert messages.form is None
    assert messages.send is not rule.send


@needs_compiler
def test_rules_side_by_side_each_take_their_fast_path_and_are_the_plain_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((1, 1, 4, 5))
    made = groups([*variants("dnasa"), *variants("dsgd", [0.1, 0.2])], 4, 50, x, ())
    snapshots = [snapshot(group.rule, np.repeat(x, group.size, 0)) for group in made]
    stepper = make_stepper([g.rule for g in made], [g.size for g in made], ring(4), snapshots, Timeline())
    assert isinstance(stepper, SideBySide)
    assert [type(each) for each in stepper.steppers] == [Fused, Sequential]
    several: list[str | Rule] = ["adanasa", "dnasa", adanasa(5, 30, averaged=True)]

    def run() -> Array:
        return solve(problems.LeastSquares(dim=30), topology.ring(5), several, seed=[0, 1, 2], steps=60).x

    quick = run()
    monkeypatch.setattr(side_by_side, "supports", lambda *args: False)
    np.testing.assert_allclose(quick, run(), rtol=1e-9, atol=1e-11)


@in_c
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adanasas_fused_messages_are_the_rules_and_keep_states(name: str, decay: float, arrays: Callable[..., Array]) -> None:
    x, rule = arrays((2, 3, 700)), adanasa(3, 700)
    rule = with_weight_decay(rule, lambda t: decay) if decay else rule
    quick = with_fused_messages(rule, rule.init(x))
    assert quick.send is not rule.send
    plain = state = rule.init(x)
    for t in range(6):
        g, before = arrays((2, 3, 700)), [np.asarray(a).copy() for a in state]
        messages, after = rule.send(plain, (g,), t)
        quick_messages, quick_after = quick.send(state, (g,), t)
        for a, b in zip((*messages, after.z), (*quick_messages, quick_after.z), strict=True):
            assert_close(a, b, rtol=1e-5, atol=1e-6)
        for a, b in zip(before, state, strict=True):
            np.testing.assert_array_equal(a, b)
        plain, state = rule.receive(after, messages), quick.receive(quick_after, quick_messages)


IN_A_FORKED_PROCESS = """
import os
import numpy as np
from dnasa import rules, topology
from dnasa.runs.snapshots import Sent, Snapshot
from dnasa.engine.fused import Fused
from dnasa.networks.simulated import connect
from dnasa.rules import schedules

def total():
    rule = rules.dasagt(schedules.root_decay(0.1, 8), schedules.averaging(8))
    run = Fused(rule, connect(topology.ring(8)), Snapshot(rule.init(np.ones((8, 10_000))), {}, Sent()))
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
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("graph", ["ring", "star", "exact, 5", "one"])
@pytest.mark.filterwarnings("error:The update could not be compiled")
def test_steps_on_a_gpu_are_the_rules_steps(rule: str, graph: str) -> None:
    torch.manual_seed(0)
    network = GRAPHS[graph]()
    shape = (2, network.nodes, 3001)
    start, gradients = torch.randn(shape, device="cuda"), [torch.randn(shape, device="cuda") for _ in range(10)]
    assert_steps_agree("GPU", RULES[rule](network.nodes, 3001), network, start, gradients)


@needs_gpu
@pytest.mark.parametrize("scaled", [False, True])
def test_the_kernel_for_gpus_is_its_twin(scaled: bool) -> None:
    from dnasa.engine import kernel_gpu

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.rand(shape, device="cuda", dtype=dtype)

    for runs, nodes, dim in [(1, 1, 5), (3, 8, 1000), (2, 11, 129)]:
        arrays = tuple(draw(runs, nodes, dim) for _ in range(4))
        eta, alpha, beta = (draw(runs, rows, 1, dtype=torch.float64) for rows in (nodes, 1, 1))
        arguments = (draw(runs, nodes, dim), draw(nodes, nodes), eta, 1 + draw(runs, nodes, 1), alpha, beta, scaled)
        torch.testing.assert_close(kernel_gpu.step(arrays, *arguments), step(arrays, *arguments))


@needs_gpu
@pytest.mark.parametrize("activation", [torch.nn.Tanh, torch.nn.ReLU])
def test_runs_with_cuda_graphs_are_the_runs_without(activation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal((400, 1, 12, 12)).astype(np.float32), np.arange(400) % 3
    layers = (torch.nn.Conv2d(1, 4, 3), activation(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(100, 3))
    shards = np.array_split(np.arange(400), 4)

    def run() -> Array:
        problem = problems.Classification(torch.nn.Sequential(*layers), x, y, shards, x, y, device="cuda")
        return solve(problem, topology.ring(4), ["dnasa", "dsgt"], eta=[0.01, 0.1], seed=[0, 1], steps=40).x

    with_graphs = run()
    monkeypatch.setattr(executors, "SMALL", 0)
    torch.testing.assert_close(with_graphs, run(), rtol=1e-3, atol=1e-4)


def test_what_torch_traces_is_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced by torch.compile, though not compiled: torch 2.11 with Python 3.12 loses a state that `_replace` returns."""
    traced = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: traced(function, backend="eager"))
    for make in (RULES["dasagt"], adanasa):
        rule, g = make(4, 9), torch.randn(4, 9)
        state = rule.init(torch.randn(4, 9))
        quick = torch_compile.with_compiled_messages(rule, state)
        torch.testing.assert_close(quick.early_messages(state, 7), rule.early_messages(state, 7))
        torch.testing.assert_close(quick.send(state, (g,), 7), rule.send(state, (g,), 7))


def test_an_update_that_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            raise RuntimeError("no compiler")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    rule, g = RULES["dnasa"](4, 2), torch.ones(4, 2)
    state = rule.init(g)
    quick = torch_compile.with_compiled_messages(rule, state)
    with pytest.warns(UserWarning, match="could not be compiled"):
        messages = quick.send(state, (g,), 1)
    torch.testing.assert_close(messages, rule.send(state, (g,), 1))


def test_a_rule_with_a_replaced_function_does_not_use_the_fast_path_of_the_old_one() -> None:
    problem, graph = problems.LeastSquares(), topology.ring(4)
    made = rules.dnasa(schedules.constant(0.1), schedules.constant(0.5))
    assert (solve(problem, graph, made, steps=5).x != problem.start(0)).all()
    stays = made._replace(early=lambda s, t: (s.x,))
    assert (solve(problem, graph, stays, steps=5).x == problem.start(0)).all()
