"""The fast ways are the rule: the same numbers to rounding, whatever the arrays, the graph and the machine."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from dnasa import fused, problems, randomness, rules, schedules, topology
from dnasa.core import compiled
from dnasa.fused import Compiled, Fused, OnCPU, OnGPU, suits
from dnasa.networks.simulated import connect
from dnasa.problems import LeastSquares
from dnasa.rules import build, variants
from dnasa.solve import solve
from dnasa.stepping import InTurn, SideBySide, stepping
from dnasa.timing import Timeline

needs_compiler = pytest.mark.skipif(compiled is None, reason="needs a C compiler when it is installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
# way, dtype, library or device
WAYS = {
    "compiled, numpy": (Compiled, "float64", "numpy"),
    "compiled, numpy, float32": (Compiled, "float32", "numpy"),
    "compiled, torch": (Compiled, "float32", "cpu"),
    "compiled, torch, float64": (Compiled, "float64", "cpu"),
    "torch": (OnCPU, "float32", "cpu"),
    "gpu": (OnGPU, "float32", "cuda"),
}
MARKS = {Compiled: needs_compiler, OnGPU: needs_gpu, OnCPU: ()}
RULES = {
    "dnasa": lambda n: rules.dnasa(*schedules.diminishing(n)),
    "dasagt": lambda n: rules.dasagt(schedules.root_decay(0.1, n), schedules.averaging(n)),
}
ways = pytest.mark.parametrize("way", [pytest.param(way, marks=MARKS[WAYS[way][0]]) for way in WAYS])


@pytest.fixture
def arrays(way, monkeypatch):
    """What makes random arrays of that kind; no compiled code where another way is to be taken."""
    kind, dtype, place = WAYS[way]
    if kind is OnCPU:
        monkeypatch.setattr(fused, "compiled", None)
    generator = np.random.default_rng(0)

    def make(shape, scale=1.0):
        drawn = (scale * generator.standard_normal(shape)).astype(dtype)
        return drawn if place == "numpy" else torch.as_tensor(drawn, device=place)

    return make


def agree(way, made, network, start, gradients):
    runs = [kind(made, network, made.init(start), Timeline()) for kind in (InTurn, Fused)]
    assert isinstance(runs[1].way, WAYS[way][0])
    for t, g in enumerate(gradients):
        for run in runs:
            run.step(g, t)
    tolerance = {"rtol": 1e-10, "atol": 1e-12} if "64" in str(start.dtype) else {"rtol": 1e-4, "atol": 1e-5}
    for plain, fast in zip(*(run.state for run in runs), strict=True):
        torch.testing.assert_close(torch.as_tensor(fast), torch.as_tensor(plain), **tolerance)


@ways
@pytest.mark.parametrize("shape", [(8, 25), (5, 1000), (2, 3, 6, 300), (1, 7), (2, 3, 40_000)])
@pytest.mark.parametrize("rule", RULES)
def test_fused_steps_are_the_rules_steps(rule, shape, way, arrays):
    nodes = shape[-2]
    agree(way, RULES[rule](nodes), connect(topology.ring(nodes)), arrays(shape), [arrays(shape) for _ in range(30)])


@ways
@pytest.mark.parametrize("graph", [topology.star(9), topology.paper_random(), topology.complete(7), topology.grid(8)])
def test_any_graph(graph, way, arrays):
    shape = (graph.nodes, 70)
    agree(way, RULES["dnasa"](graph.nodes), connect(graph), arrays(shape), [arrays(shape) for _ in range(20)])


@pytest.mark.parametrize("way", [pytest.param("compiled, numpy", marks=needs_compiler)])
def test_many_nodes(way, arrays):
    shape = (2, 1000, 3)
    agree(
        way, RULES["dnasa"](1000), connect(topology.exponential(1000)), arrays(shape), [arrays(shape) for _ in range(9)]
    )


@ways
def test_every_run_takes_its_own_schedule(way, arrays):
    made = build(variants("dasagt", [0.01, 0.1, 1.0]), 4, 50, arrays((1, 1, 4, 3)))
    shape = (3, 2, 4, 3)
    agree(way, made, connect(topology.ring(4)), arrays(shape), [arrays(shape) for _ in range(20)])


@ways
@pytest.mark.parametrize("scale", [1e-30, 1e-14, 1.0, 1e14, 1e30])
def test_the_scale_of_the_loss_does_not_matter(scale, way, arrays):
    made, network = RULES["dnasa"](4), connect(topology.ring(4))
    run, twin = (Fused(made, network, made.init(0 * arrays((4, 5))), Timeline()) for _ in range(2))
    for t in range(10):
        g = arrays((4, 5))
        run.step(scale * g, t)
        twin.step(g, t)
    torch.testing.assert_close(torch.as_tensor(run.x), torch.as_tensor(twin.x), rtol=1e-4, atol=1e-5)


@ways
def test_gradients_of_another_kind_and_shape_are_taken_as_the_rule_takes_them(way, arrays):
    """Compiled code must never be handed anything but whole arrays of the right kind."""
    made, network = RULES["dnasa"](6), connect(topology.ring(6))
    run, twin = (Fused(made, network, made.init(arrays((6, 40)) * 0), Timeline()) for _ in range(2))
    for t in range(5):
        wide = arrays((40, 6)).T
        run.step(wide, t)
        twin.step(wide + 0 * run.x, t)
        row = arrays((1, 40))
        run.step(row, t)
        twin.step(row + 0 * run.x, t)
    torch.testing.assert_close(torch.as_tensor(run.x), torch.as_tensor(twin.x))


@pytest.mark.parametrize("way", [pytest.param("compiled, numpy", marks=needs_compiler)])
def test_a_run_that_is_lost_leaves_the_others_alone(way, arrays):
    made, network = RULES["dnasa"](4), connect(topology.ring(4))
    both, alone = (Fused(made, network, made.init(arrays(shape) * 0), Timeline()) for shape in ((2, 4, 5), (1, 4, 5)))
    for t in range(20):
        g = arrays((2, 4, 5))
        alone.step(g[:1], t)
        if t > 5:
            g[1] = np.nan
        both.step(g, t)
    assert np.isnan(both.x[1]).all()
    np.testing.assert_array_equal(both.x[0], alone.x[0])


@ways
def test_a_gradient_that_is_x_itself_is_not_overtaken_by_the_step(way, arrays):
    """f = |x|^2/2 has the gradient x: a problem may return what it was given."""
    made, network = RULES["dnasa"](4), connect(topology.ring(4))
    run, twin = (Fused(made, network, made.init(arrays((4, 5)) * 0 + 1), Timeline()) for _ in range(2))
    for t in range(20):
        run.step(run.x, t)
        twin.step(twin.x + 0, t)
    torch.testing.assert_close(torch.as_tensor(run.x), torch.as_tensor(twin.x))
    start = arrays((4, 4))
    square = Fused(made, network, made.init(start), Timeline())
    square.step(square.x.T, 1)
    torch.testing.assert_close(torch.as_tensor(square.v), torch.as_tensor(start.T))


def test_gradients_of_torch_may_remember_where_they_came_from():
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    problem = problems.Custom(lambda x, node, generator: x * weight, torch.ones(3, dtype=torch.float64))
    assert torch.isfinite(torch.as_tensor(solve(problem, topology.ring(4), steps=20).x)).all()


@needs_compiler
def test_a_forked_process_goes_on_without_threads():
    code = """
import os
from dnasa import solve, topology
from dnasa.problems import LeastSquares
run = lambda: solve(LeastSquares(), topology.ring(20), seed=range(30), steps=10, evaluate=[10]).x.sum()
before, child = run(), os.fork()
if child == 0:
    os._exit(0 if run() == before else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "0", done.stderr[-2000:]


def test_least_squares_takes_one_point_for_all_nodes():
    problem = LeastSquares(dim=3)
    one = problem.gradient(np.ones((1, 1, 1, 3)), range(4), [0, 1], 0)
    np.testing.assert_array_equal(one, problem.gradient(np.ones((1, 2, 4, 3)), range(4), [0, 1], 0))
    assert one.shape == (1, 2, 4, 3)


@needs_compiler
def test_a_step_continued_is_the_same_step():
    """|z| of a state that was kept is found as the step itself found it: a resumed run is exact."""
    made, network, generator = RULES["dnasa"](6), connect(topology.ring(6)), np.random.default_rng(0)
    run = Fused(made, network, made.init(np.zeros((6, 5000), np.float32)), Timeline())
    gradients = generator.standard_normal((20, 6, 5000)).astype(np.float32)
    for t in range(20):
        if t == 10:
            again = Fused(made, network, run.state, Timeline())
        run.step(gradients[t], t)
        if t >= 10:
            again.step(gradients[t], t)
    np.testing.assert_array_equal(run.x, again.x)


def test_it_is_taken_where_it_fits_and_nowhere_else(monkeypatch):
    made, ring = RULES["dnasa"](8), connect(topology.ring(8))
    single, double = made.init(torch.zeros(8, 3)), made.init(np.zeros((8, 3)))
    assert isinstance(stepping(made, ring, single, Timeline(), overlap=False), Fused)
    assert suits(made, ring, double) == (compiled is not None)
    assert not suits(rules.dsgd(lambda t: 0.1), ring, single)
    assert not suits(made, ring, made.init(torch.zeros(8, 3).half()))
    assert not suits(made, connect(topology.ring(8), rounds=2), single)
    assert not suits(made, connect(topology.ring(8), wire="bfloat16"), single)
    assert not suits(made, connect(topology.one_peer(8)), single)
    monkeypatch.setattr(fused, "compiled", None)
    assert suits(made, ring, single)
    assert not suits(made, ring, double)
    assert not suits(made, connect(topology.ring(3000)), made.init(torch.zeros(3000, 3)))


@needs_compiler
def test_rules_side_by_side_step_each_in_its_own_way():
    x = np.zeros((3, 1, 4, 5))
    made = build([*variants("dnasa"), *variants("dsgd", [0.1, 0.2])], 4, 50, x)
    stepper = stepping(made, connect(topology.ring(4)), made.init(x), Timeline(), overlap=False)
    assert isinstance(stepper, SideBySide)
    assert [type(each) for each in stepper.steppers] == [Fused, InTurn]
    real = connect(topology.ring(4), rounds=2)  # nothing to gain: one step of all, or none when a process is lost
    assert isinstance(stepping(made, real, made.init(x), Timeline(), overlap=False), InTurn)


@needs_gpu
@pytest.mark.parametrize("activation", [torch.nn.Tanh, torch.nn.ReLU])
def test_recorded_gradients_are_the_gradients(activation, monkeypatch):
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

    def run():
        problem = problems.Classification(torch.nn.Sequential(*layers), x, y, shards, x, y, device="cuda")
        return solve(problem, topology.ring(4), ["dnasa", "dsgt"], eta=[0.01, 0.1], seed=[0, 1], steps=40).x

    recorded = run()
    monkeypatch.setattr(problems.classification, "SMALL", 0)
    monkeypatch.setattr(fused, "SMALL", 0)
    torch.testing.assert_close(recorded, run(), rtol=1e-3, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_numbers_are_the_same_without_a_compiler(dtype, monkeypatch):
    normals = randomness.Normals("test", (3, 7), np.dtype(dtype))
    fast = normals._block([4, 2**40], range(3, 6), 17)
    monkeypatch.setattr(randomness, "compiled", None)
    np.testing.assert_array_equal(normals._block([4, 2**40], range(3, 6), 17), fast)


@needs_compiler
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("spike", [False, True])
def test_least_squares_is_the_same_without_a_compiler(batch, spike, monkeypatch):
    def run():
        problem = LeastSquares(dim=30, batch=batch, spike=spike)
        return solve(problem, topology.ring(6), ["dnasa", "dsgd"], eta=[1e-4, 1e-3], seed=[0, 5], steps=150).x

    fast = run()
    for room in (fused, randomness, problems.least_squares):
        monkeypatch.setattr(room, "compiled", None)
    np.testing.assert_allclose(run(), fast, rtol=1e-9, atol=1e-12)
