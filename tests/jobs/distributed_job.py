"""What the processes of the distributed tests do: a function below, such as `same`, then the engine. Not a test."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dnasa import rules, solve, topology
from dnasa.core import Array, InputError
from dnasa.networks import connect, with_timing
from dnasa.problems import Custom, LeastSquares
from dnasa.rules.registry import example
from dnasa.topology import Topology
from dnasa.topology.rounds import count_rounds

GRAPHS: dict[str, tuple[Callable[[], Topology], int | str, int]] = {  # rounds, and steps between them
    "ring": (lambda: topology.ring(8, weights="lazy"), 1, 1),
    "random": (lambda: topology.random(8, p=0.5, seed=3), 1, 3),
    "star": (lambda: topology.star(8), "exact", 1),
    "sparse": (lambda: topology.Topology("sparse", topology.path(8).sparse), 3, 1),
    "exact": (lambda: topology.exact(11), 2, 1),
    "complete": (lambda: topology.complete(8), 1, 1),
}


def samples(problem: LeastSquares) -> dict[str, float]:
    """Record what this process' nodes draw."""
    drawn = {}
    original = problem.samples.at

    def at(seeds: Sequence[int], nodes: range, t: int, **more: Any) -> Array:
        out = original(seeds, nodes, t, **more)
        if t in (0, 70):
            for k, node in enumerate(nodes):
                drawn[f"{node} {t}"] = float(np.asarray(out)[0, k].sum())
        return out

    problem.samples.at = at  # type: ignore[assignment, method-assign]
    return drawn


def suits(rule: str, graph: Topology, rounds: int, every: int) -> bool:
    try:
        topology.matrices.check_weights(example(rule), graph, rounds, every=every)
    except InputError:
        return False
    return True


def same(engine: str) -> None:
    """All rules on all graphs, least squares in float64, against the simulator."""
    for name, (make, rounds, every) in GRAPHS.items():
        graph = make()
        names = [rule for rule in rules.RULES if suits(rule, graph, count_rounds(graph, rounds), every)]
        options: Any = {"steps": 150 if name == "ring" else 80, "eta": [1e-3], "evaluate": 80}
        network, problem = connect(graph, engine, rounds, every=every), LeastSquares(dim=12)
        drawn = samples(problem)
        real = solve(problem, network, names, **options)
        whole = {
            key: value
            for text in network.processes.allgather_text(json.dumps(drawn))
            for key, value in json.loads(text).items()
        }
        if network.rank == 0:
            alone = LeastSquares(dim=12)
            expected = samples(alone)
            simulated = solve(alone, connect(graph, "simulated", rounds=rounds, every=every), names, **options)
            np.testing.assert_allclose(real.x, simulated.x, rtol=0, atol=1e-10)
            assert whole == expected
            columns = ["train_loss", "test_loss", "grad_norm", "consensus"]
            np.testing.assert_allclose(real.history[columns], simulated.history[columns], rtol=1e-8, atol=1e-12)
            print("same", name)


def optimizer(engine: str) -> None:
    """A user's loop against `solve`, exchanges hidden and not; then `solve` with them hidden, and in 16 bits."""
    import torch
    from torch import nn

    from dnasa.optim import Decentralized
    from dnasa.problems import Classification

    graph = topology.ring(4)
    x = np.random.default_rng(0).standard_normal((200, 5))
    shards = [np.arange(node, 200, 4) for node in range(4)]
    y = x[:, :3].argmax(1)
    problem = Classification(lambda: nn.Linear(5, 3), x, y, shards, x, y, batch=8, dtype="float64")
    net = connect("ring", engine)
    assert net.nodes == 4
    ends = []
    for rule, overlap in (("dnasa", True), ("dnasa", False), ("adanasa", None)):
        torch.manual_seed(net.rank)
        model = nn.Linear(5, 3).double()
        opt = Decentralized(model.parameters(), net, rule, steps=60, overlap=overlap)
        start = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        for t in range(60):
            rows = problem.samples.at([0], net.local_nodes, t, ready=torch.as_tensor)[0, 0]
            opt.zero_grad()
            nn.functional.cross_entropy(model(problem.inputs[rows]), problem.labels[rows]).backward()
            opt.step()
        with opt.averaged():
            assert opt.consensus() >= 0
        ends.append(net.processes.gather(opt.flat.clone()))
        opt.state_dict()
    assert torch.equal(*ends[:2])
    hidden, plain = (
        solve(problem, with_timing(net, overlap=overlap), steps=60, start=start, evaluate=[60]).x for overlap in (True, False)
    )
    assert torch.equal(hidden, plain)
    half = solve(problem, connect(graph, engine, compress="bfloat16", overlap=True), steps=60, start=start)
    if net.rank == 0:
        simulated = solve(problem, graph, steps=60, start=start)
        np.testing.assert_allclose(ends[0], simulated.x, rtol=0, atol=1e-10)
        np.testing.assert_allclose(ends[2], solve(problem, graph, "adanasa", steps=60, start=start).x, rtol=0, atol=1e-10)
        np.testing.assert_allclose(plain, simulated.x, rtol=0, atol=1e-10)
        simulated_half = solve(problem, connect(graph, "simulated", compress="bfloat16"), steps=60, start=start)
        np.testing.assert_allclose(half.x, simulated_half.x, rtol=0, atol=1e-10)
        print("same optimizer")


def expressive(engine: str) -> None:
    """Every small rule against the simulator."""
    from expressive_rules import CASES, NODES, run

    for name, case in CASES.items():
        net = connect(case.graph(NODES), engine, channel=case.channel)
        real, simulated = (run(name, network, evaluate=[30]) for network in (net, None))
        np.testing.assert_allclose(real.x, simulated.x, rtol=0, atol=1e-10)
        if net.rank == 0:
            print(name)


def compressed(engine: str) -> None:
    """The bytes of all buffers given to the send calls, in all processes, against the history's, for every compression."""
    import test_compression as tests

    transport: Any = type(connect(tests.GRAPH, engine).at(0).transport)  # type: ignore[misc, union-attr]
    start = transport.start
    sent: list[int] = []

    def counting_start(self: Any, receives: Any, sends: Any) -> Any:
        sent.extend(buffer.nbytes for _, buffer in sends)
        return start(self, receives, sends)

    transport.start = counting_start
    for name in tests.EVERY:
        sent.clear()
        net = connect(tests.GRAPH, engine, compress=name)
        done = tests.solve(network=net, steps=10, evaluate=[10])
        assert net.processes.traffic.bytes == sum(sent) > 0
        total = sum(int(text) for text in net.processes.allgather_text(str(sum(sent))))
        counted = done.final().bytes.item()
        assert abs(total / counted - 1) < 0.1, (name, total, counted)
        if net.rank == 0:
            print(name)


def settings(engine: str) -> None:
    """One setting after the other differs between the processes, and nothing else does."""

    def attempt(name: str = "ring", data: str = "same", seed: int = 0, **how: Any) -> None:
        try:
            graph = topology.make(name, 4)
            problem = Custom(lambda x, node, rng: x, np.zeros(3), fingerprint=data)
            solve(problem, connect(graph, engine, **how), steps=5, seed=seed)
        except InputError as error:
            if rank == 1:  # rank 0 names the same
                print(error)

    rank = connect("ring", engine).rank
    attempt(seed=rank)
    attempt(data=f"set {rank}")
    attempt(("complete", "star")[rank])
    attempt(rounds=1 + rank)
    attempt(every=1 + rank)
    attempt(compress=(None, "bfloat16")[rank])
    attempt()
    print("done")


def wait(engine: str, what: str) -> None:
    """Rank 2 is killed, hangs, or raises, in the middle of a run."""
    graph = topology.ring(6)
    net = connect(graph, engine, timeout=5 if what == "hang" else 300)

    def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
        if net.rank == 2 and rng.random() < 0.02:
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "hang":
                time.sleep(600)
            if what == "raise":
                return x * np.nan
        return x - node

    from dnasa import cli, core

    cli.running.engine = engine
    try:
        solve(Custom(gradient, start=np.zeros(3)), net, steps=10**7, evaluate=[0])
    except core.InputError as error:
        cli.fail(2, str(error))
    except core.RunError as error:
        cli.fail(1, str(error))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
