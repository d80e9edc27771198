"""The torch optimizer: the iterates of `solve`, in anybody's training loop."""

import copy
import io
import math
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import kernel_twin
import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import eta_of, pairwise
from thread_network import ThreadTransport, run_threads
from torch import nn

import dnasa
from dnasa import rules, solve, topology
from dnasa.channels import compression, exchange
from dnasa.communication import Network
from dnasa.core import Array, InputError, Messages, Rule
from dnasa.engine import side_by_side
from dnasa.engine.fused_gpu import FusedOnGpu
from dnasa.engine.steppers import Overlapped
from dnasa.networks import with_timing
from dnasa.optim import Decentralized
from dnasa.optim.node import make_rule
from dnasa.problems import Classification, LeastSquares
from dnasa.rules import schedules
from dnasa.runs.snapshots import Sent, Snapshot
from dnasa.runs.timing import Timeline

RING = topology.ring(4, weights="lazy")
LOCK = threading.Lock()  # torch has one generator for all threads


def model(seed: int = 0, norm: bool = False) -> Any:
    with LOCK:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 6), *([nn.BatchNorm1d(6)] if norm else []), nn.Tanh(), nn.Linear(6, 3))


def batch(node: int, t: int, rows: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * node + t)
    x = torch.randn(rows, 5, generator=generator) + 0.3 * node
    return x, x[:, :3].argmax(1)


def flat(net: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def backward(net: nn.Module, node: int, t: int, scale: float = 1.0) -> float:
    x, y = batch(node, t)
    loss = nn.functional.cross_entropy(net(x), y)
    (scale * loss).backward()
    return loss.item()


def step(net: nn.Module, opt: Decentralized, node: int, t: int) -> None:
    opt.zero_grad()
    backward(net, node, t)
    opt.step()


def train(network: Network, count: int = 30, net: nn.Module | None = None, **options: Any) -> tuple[Any, Decentralized]:
    """So many steps."""
    net = net or model(seed=network.rank)  # every node begins elsewhere: node 0's start is everyone's
    opt = Decentralized(net.parameters(), network, **options)
    for t in range(count):
        step(net, opt, network.rank, t)
    return net, opt


def closure_of(net: nn.Module, opt: Decentralized, node: int, t: int) -> Callable[[], float]:
    def closure() -> float:
        opt.zero_grad()
        return backward(net, node, t)

    return closure


def alone() -> Network:
    return dnasa.connect()


COMPRESSED = [("dasagt", "topk:0.4"), ("dnasa", "moniqua:8"), ("gt_nsgdm", "moniqua:8,4/2")]


@pytest.mark.parametrize(("rule", "compress"), [*((rule, None) for rule in (*rules.RULES, "clip:0.5+adam+dsgt")), *COMPRESSED])
def test_iterates_equal_those_of_solve(rule: str, compress: str | None) -> None:
    """The same network, data and samples, once as a problem of `solve` and once as a user's own loop."""
    x = np.random.default_rng(0).standard_normal((200, 5))
    y = x[:, :3].argmax(1)
    shards = [np.arange(node, 200, 4) for node in range(4)]
    problem = Classification(lambda: model(1), x, y, shards, x, y, batch=8, dtype="float64")
    drawn = [problem.samples.at([0], range(4), t, ready=torch.as_tensor)[0] for t in range(20)]
    options: Any = {"eta": eta_of(rule)}
    channel = compression(compress) if compress else None
    network = dnasa.networks.simulated.connect(RING, channel=channel)
    expected = solve(problem, network, rule, steps=20, start=flat(model(1)), **options).x

    def work(network: Network) -> torch.Tensor:
        net = model(1).double()
        opt = Decentralized(net.parameters(), network, rule, steps=20, **options)
        for rows in drawn:
            mine = rows[network.rank]

            def closure(mine: Any = mine) -> torch.Tensor:
                opt.zero_grad()
                loss = nn.functional.cross_entropy(net(problem.inputs[mine]), problem.labels[mine])
                loss.backward()
                return loss

            if rule == "gt_hsgd":  # two gradients on one sample
                opt.step(closure)
            else:
                closure()
                opt.step()
        return flat(net)

    np.testing.assert_allclose(torch.stack(run_threads(RING, work, channel=channel)), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("graph", "rule", "processes"), pairwise(["ring", "exact", "star", "complete"], ["dnasa", "dasagt"], [2, 4])
)
def test_solve_gives_the_same_bits_with_hidden_exchanges(graph: str, rule: str, processes: int) -> None:
    made = topology.make(graph, 6 if graph == "exact" else 4)
    options: Any = {"eta": eta_of(rule)}

    def run(overlap: bool) -> tuple[Array, pd.DataFrame]:
        def work(network: Network) -> tuple[Array, pd.DataFrame]:
            problem = LeastSquares(dim=7)
            done = solve(problem, with_timing(network, overlap=overlap), rule, steps=20, evaluate=10, **options)
            return done.x, done.history.drop(columns="seconds")

        return run_threads(made, work, processes)[0]

    (x, history), (plain, expected) = run(True), run(False)
    np.testing.assert_array_equal(x, plain)
    assert history.equals(expected)


def test_a_hidden_exchange_that_fails_is_reported_by_the_next_step() -> None:
    def multiply(messages: Messages, t: int) -> Messages:
        if t == 3:
            raise dnasa.core.RunError("No answer from rank 1 (node 1): gone.")
        return messages

    network = dnasa.Network(2, multiply, mean=lambda a: a.mean(-2), processes=dnasa.communication.Processes(range(1)))
    rule = rules.dnasa(*dnasa.schedules.diminishing(2))
    run = Overlapped(rule, network, Snapshot(rule.init(np.ones((1, 3))), {}, Sent()), Timeline(), 0)
    for t in range(3):
        run.step((np.ones((1, 3)),), t)
    with pytest.raises(dnasa.core.RunError, match="rank 1"):
        run.step((np.ones((1, 3)),), 3)
    run.close()


def test_everyone_starts_from_node_0() -> None:
    starts = run_threads(RING, lambda network: flat(train(network, 0)[0]))
    for start in starts:
        assert torch.equal(start, flat(model(seed=0)))


def test_different_options_and_steps_are_noticed_at_the_start() -> None:
    def freeze(network: Network) -> None:
        net = model()
        net[0].weight.requires_grad_(network.rank != 1)
        Decentralized(net.parameters(), network)

    def restart(network: Network) -> None:
        opt = train(network, 4)[1]
        state = opt.state_dict()
        state["decentralized"]["step"] += network.rank
        opt.load_state_dict(state)
        opt.step()

    with pytest.raises(InputError, match="step is 4 at rank 0 and 5 at rank 1"):
        run_threads(RING, restart)
    with pytest.raises(InputError, match="shape_of_parameters is"):
        run_threads(RING, freeze)
    with pytest.raises(InputError, match="overlap is False at rank 0 and True at rank 1"):
        run_threads(RING, lambda network: Decentralized(model().parameters(), network, overlap=network.rank > 0))
    with pytest.raises(InputError, match="weight_decay is"):
        run_threads(RING, lambda network: Decentralized(model().parameters(), network, weight_decay=0.1 * (network.rank + 1)))


def test_the_default_is_adanasa_whose_answer_is_the_last_iterate_where_the_number_of_steps_is_known() -> None:
    net, opt = train(alone(), 0, steps=300)
    last = []
    for t in range(300):
        step(net, opt, 0, t)
        last.append(flat(net))
    x, y = batch(0, 999, rows=500)
    with opt.averaged():
        assert torch.equal(flat(net), last[-1])
        assert float((net(x).argmax(1) == y).float().mean()) > 0.9
    assert (last[-1] - last[-2]).norm() < 0.01 * (last[-200] - last[-201]).norm()


def test_after_the_announced_steps_the_warning_says_what_still_happens() -> None:
    def work(network: Network) -> tuple[torch.Tensor, torch.Tensor]:
        net, opt = train(network, 3, rule="dsgd", eta=0.5, schedule="cosine", steps=3)
        before = flat(net)
        opt.step()
        return before, flat(net)

    with pytest.warns(UserWarning, match="the stepsize is 0 now, so the nodes only exchange their models"):
        results = run_threads(RING, work)
    before, after = (torch.stack(each) for each in zip(*results, strict=True))
    assert not torch.equal(before, after)  # exchanges go on
    torch.testing.assert_close(before.mean(0), after.mean(0))  # and nothing else


def test_the_stepsize_can_be_read_and_not_set() -> None:
    def eta(t: int) -> float:
        return [0.3, 0.2, 0.1][t]  # there is no fourth step

    _, opt = train(alone(), 3, rule="dsgd", eta=eta)
    assert opt.param_groups[0]["lr"] == opt.state_dict()["param_groups"][0]["lr"] == 0.1
    assert copy.deepcopy(opt.param_groups)[0]["lr"] == pickle.loads(pickle.dumps(opt.param_groups))[0]["lr"] == 0.1
    schedulers = torch.optim.lr_scheduler
    for write in (
        lambda: Decentralized(model().parameters(), alone(), lr=1e-3),  # type: ignore[arg-type]
        lambda: opt.param_groups[0].__setitem__("lr", 1.0),
        lambda: schedulers.CosineAnnealingLR(opt, 10),
    ):
        with pytest.raises(InputError, match="has no learning rate to set"):
            write()
    plateau = schedulers.ReduceLROnPlateau(opt, patience=0)
    plateau.step(1.0)
    with pytest.raises(InputError, match="has no learning rate to set"):
        plateau.step(2.0)
    assert math.isnan(Decentralized(model().parameters(), alone(), looking_ahead()).param_groups[0]["lr"])


def polynomial(n: int, T: int, eta: float) -> tuple[Any, ...]:
    return (lambda t: eta * (1 - min(t, T) / T) ** 2,)


OF_STEPS: dict[str, Callable[..., Any]] = {
    "used when called": polynomial,
    "used when made": lambda n, T, eta: (schedules.constant(eta / T**0.5),),
    "as a size": lambda n, T, eta: (np.linspace(eta, 0, T).__getitem__,),
}


@pytest.fixture
def own_schedule(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setitem(rules.RULES, "mine", rules.RULES["dsgd"])
    return lambda made: rules.rule("mine", schedules={"own": made})(rules.dsgd)


@pytest.mark.parametrize("how", OF_STEPS)
def test_a_registered_schedule_that_uses_the_number_of_steps_asks_for_it(how: str, own_schedule: Callable[..., None]) -> None:
    own_schedule(OF_STEPS[how])
    with pytest.raises(InputError, match="'own' depends on the number of steps: give steps="):
        Decentralized(model().parameters(), alone(), "mine", eta=0.1)
    (eta,) = make_rule("mine", 0.1, None, 20, 4, ()).schedules
    assert eta(3) == OF_STEPS[how](4, 20, 0.1)[0](3)


def test_the_nodes_learn_together_and_the_mean_is_put_in_and_taken_out() -> None:
    def work(network: Network) -> tuple[torch.Tensor, torch.Tensor, float]:
        net, opt = train(network, 40, rule="dnasa")
        own = flat(net)
        with opt.averaged():
            mean = flat(net)
            loss = nn.functional.cross_entropy(net(batch(0, 999)[0]), batch(0, 999)[1])
            assert loss.requires_grad
        assert torch.equal(flat(net), own)
        return own, mean, opt.consensus()

    done = run_threads(RING, work)
    x = torch.stack([own for own, _, _ in done])
    for _, mean, consensus in done:
        torch.testing.assert_close(mean, x.mean(0))
        assert consensus == pytest.approx(float(((x - x.mean(0)) ** 2).sum(1).mean()), rel=1e-4)


@pytest.mark.parametrize(
    ("case", "overlap", "optimizer_first"),
    [
        (("d2", RING, 12, None), False, True),
        *((("gt_nsgdm", RING, 12, compress), False, True) for compress in ("topk:0.4", "moniqua:8,4/2")),
        *pairwise(
            [("dnasa", RING, 12, None), *(("dnasa", topology.exact(3), at, None) for at in (12, 13, 14))],  # in all phases
            [True, False],
            [True, False],
        ),
    ],
)
def test_a_restart_continues_exactly(case: tuple[Any, ...], overlap: bool, optimizer_first: bool) -> None:
    rule, graph, at, compress = case
    channel = compression(compress) if compress else None
    options: dict[str, Any] = {"rule": rule, "eta": eta_of(rule), "overlap": overlap}
    options["steps"] = 20 if rule == "gt_nsgdm" else None  # its schedule needs them

    def straight(network: Network) -> torch.Tensor:
        return flat(train(network, 20, **options)[0])

    def interrupted(network: Network) -> torch.Tensor:
        net, opt = train(network, at, **options)
        saved = io.BytesIO()
        torch.save({"model": net.state_dict(), "opt": opt.state_dict()}, saved)
        saved.seek(0)
        loaded = torch.load(saved, weights_only=True)
        net = model(seed=5)
        opt = Decentralized(net.parameters(), network, **options)
        loads = [(net, "model"), (opt, "opt")]
        for thing, name in reversed(loads) if optimizer_first else loads:
            thing.load_state_dict(loaded[name])
        for t in range(at, 20):
            step(net, opt, network.rank, t)
        return flat(net)

    assert torch.equal(*(torch.stack(run_threads(graph, work, channel=channel)) for work in (straight, interrupted)))


def test_going_back_to_an_earlier_state_forgets_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = ThreadTransport.finish

    def slow_finish(self: ThreadTransport, pending: Any) -> None:
        time.sleep(0.01 * self.rank)
        finish(self, pending)

    monkeypatch.setattr(ThreadTransport, "finish", slow_finish)

    def run(network: Network, detour: bool) -> torch.Tensor:
        net = model(norm=True)
        opt = Decentralized(net.parameters(), network, buffers=net.buffers(), weight_decay=0.1)
        for t in range(16):
            if t == 8 and detour:
                saved = copy.deepcopy({"model": net.state_dict(), "opt": opt.state_dict()})
                for again in range(3):
                    step(net, opt, network.rank, 100 + again)
                opt.param_groups[0]["weight_decay"] = 0.7
                net.load_state_dict(saved["model"])
                opt.load_state_dict(saved["opt"])
            elif t == 8:
                opt.state_dict()
            step(net, opt, network.rank, t)
        opt.state_dict()
        return torch.cat([flat(net), net[1].running_mean, net[1].running_var])

    straight, detour = (torch.stack(run_threads(RING, lambda n, d=d: run(n, d))) for d in (False, True))
    assert torch.equal(straight, detour)


def test_a_state_of_another_node_model_or_rule_is_refused() -> None:
    def work(network: Network) -> None:
        opt = train(network, 3)[1]
        state = opt.state_dict()
        other = copy.deepcopy(state)
        other["decentralized"]["node"] = (network.rank + 1) % 4
        with pytest.raises(InputError, match="every node saves and loads a file of its own"):
            opt.load_state_dict(other)
        with pytest.raises(InputError, match="another model or another rule"):
            Decentralized(model().parameters(), network, "d2", eta=0.1).load_state_dict(state)
        with pytest.raises(InputError, match="every node saves"):
            opt.load_state_dict(torch.optim.SGD(model().parameters(), lr=1).state_dict())

    run_threads(RING, work)


def test_two_optimizers_on_one_network_do_not_read_each_others_messages() -> None:
    def work(network: Network) -> torch.Tensor:
        nets = [model(seed) for seed in (1, 2)]
        opts = [Decentralized(net.parameters(), network) for net in nets]
        for t in range(15):
            for net, opt in zip(nets, opts, strict=True):
                opt.zero_grad()
                backward(net, network.rank, t)
            for opt in opts:
                opt.step()
        return torch.stack([flat(net) for net in nets])

    both = torch.stack(run_threads(RING, work))
    for i, seed in enumerate((1, 2)):
        alone = torch.stack(run_threads(RING, lambda network, s=seed: flat(train(network, 15, net=model(s))[0])))
        assert torch.equal(both[:, i], alone)


@pytest.mark.parametrize("how", ["closure", "accumulated", "model.zero_grad", "own tensors"])
def test_steps_are_the_same_however_gradients_come(how: str) -> None:
    net, twin = model(), model()
    opt, expected = (Decentralized(m.parameters(), alone()) for m in (net, twin))
    for t in range(5):
        step(twin, expected, 0, t)
        if how == "closure":
            assert opt.step(closure_of(net, opt, 0, t))
            continue
        net.zero_grad(set_to_none=True)
        for _ in range(4 if how == "accumulated" else 1):
            backward(net, 0, t, scale=0.25 if how == "accumulated" else 1.0)
        for p in net.parameters() if how == "own tensors" else ():
            p.grad = p.grad.clone()
        opt.step()
    same = torch.testing.assert_close if how == "accumulated" else np.testing.assert_array_equal
    same(flat(net), flat(twin))


def test_a_parameter_without_a_gradient_has_gradient_zero_and_a_frozen_one_stays() -> None:
    net = model()
    net[0].weight.requires_grad_(False)
    unused = nn.Parameter(torch.ones(3))
    frozen = net[0].weight.clone()
    opt = Decentralized([*net.parameters(), unused], alone())
    for t in range(5):
        net.zero_grad(set_to_none=True)
        backward(net, 0, t)
        opt.step()
    assert torch.equal(net[0].weight, frozen)
    assert torch.equal(unused, torch.ones(3))
    assert not torch.equal(flat(net), flat(model()))
    net[0].weight.requires_grad_(True)
    backward(net, 0, 6)
    with pytest.raises(InputError, match="frozen has a gradient now"):
        opt.step()


def decayed_groups(net: Any) -> list[dict[str, Any]]:
    return [{"params": net[0].parameters(), "weight_decay": 0.3}, {"params": net[2].parameters()}]


def test_weight_decay_of_a_group_is_that_of_adamw() -> None:
    net, twin = model().double(), model().double()
    ours: Any = Decentralized(decayed_groups(net), alone(), "dadam", eta=0.01, schedule="constant")
    theirs: Any = torch.optim.AdamW(decayed_groups(twin), lr=0.01, weight_decay=0)
    for t in range(20):
        for each, opt in ((net, ours), (twin, theirs)):
            opt.zero_grad()
            x, y = batch(0, t)
            nn.functional.cross_entropy(each(x.double()), y).backward()
            if t == 10:
                opt.param_groups[1]["weight_decay"] = 0.9
            opt.step()
    torch.testing.assert_close(flat(net), flat(twin), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", ["dnasa", "adanasa"])
def test_weight_decay_survives_a_checkpoint_and_hidden_exchanges(rule: str) -> None:
    def work(network: Network, overlap: bool, stop: bool) -> torch.Tensor:
        net = model()
        opt = Decentralized(decayed_groups(net), network, rule, overlap=overlap)
        for t in range(12):
            if stop and t == 6:
                saved, before, net = opt.state_dict(), net.state_dict(), model()
                plain = [{"params": net[0].parameters()}, {"params": net[2].parameters()}]
                opt = Decentralized(plain, network, rule, overlap=overlap)
                net.load_state_dict(before)
                opt.load_state_dict(saved)
            step(net, opt, network.rank, t)
        opt.state_dict()
        return flat(net)

    hides = rule == "dnasa"
    runs = [run_threads(RING, lambda n, o=o, s=s: work(n, o, s)) for o, s in ((False, False), (hides, False), (hides, True))]
    for run in runs[1:]:
        assert all(map(torch.equal, run, runs[0]))


def test_a_weight_decay_that_cannot_be_is_refused_when_it_is_set() -> None:
    opt = train(alone(), 1, rule="d2", eta=0.1)[1]
    opt.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(InputError, match="This rule has no weight decay"):
        opt.step()
    opt = train(alone(), 1)[1]
    opt.param_groups[0]["weight_decay"] = float("nan")
    with pytest.raises(InputError, match="weight_decay must be a positive number, not nan"):
        opt.step()


def test_no_step_is_taken_inside_the_mean() -> None:
    opt = train(alone(), 2, net=model())[1]
    with opt.averaged(), pytest.raises(InputError, match="Inside averaged"):
        opt.step()
    opt.step()


def test_a_step_that_fails_leaves_no_scale_behind() -> None:
    net, opt = train(alone(), 2, net=model())
    opt.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.scale(net(batch(0, 3)[0]).square().mean()).backward()
    with torch.no_grad():
        net[0].weight.mul_(0.5)
    with pytest.raises(InputError, match="by hand"):
        scaler.step(opt)
    assert not hasattr(opt, "grad_scale")


def test_batch_norm_statistics_are_mixed_where_the_model_is_given() -> None:
    """Also if it is moved after the optimizer was made. Constant buffers are left as they are."""

    def work(network: Network, given: bool) -> tuple[torch.Tensor, torch.Tensor]:
        net = model(norm=True)
        net.register_buffer("mask", torch.tensor([float("-inf"), 0.1]))
        opt = Decentralized(net if given else net.parameters(), network)
        net.double()
        for t in range(25):
            opt.zero_grad()
            x, y = batch(network.rank, t)
            nn.functional.cross_entropy(net(x.double()), y).backward()
            opt.step()
        assert torch.equal(net.mask, torch.tensor([float("-inf"), 0.1]).double())
        with opt.averaged():
            return opt.node.buffers.tensors[0].clone() if given else torch.empty(0), net[1].running_mean.clone()

    mixed = run_threads(RING, lambda network: work(network, given=True))
    apart = run_threads(RING, lambda network: work(network, given=False))
    for found, mean in mixed:
        assert torch.equal(found, mean)
        torch.testing.assert_close(mean, mixed[0][1], rtol=0, atol=1e-12)
    assert torch.stack([mean for _, mean in apart]).std(0).mean() > 0.1


@pytest.mark.parametrize("rule", ["dnasa", "adanasa"])
def test_a_run_continues_after_an_evaluation_and_a_checkpoint_in_inference_mode(rule: str) -> None:
    """Where Lightning calls them. A state saved with the mean continues at the node's own point."""

    def work(network: Network) -> None:
        net, opt = train(network, 3, rule=rule)
        with torch.inference_mode(), opt.averaged():
            opt.consensus()
            saved = copy.deepcopy([net.state_dict(), opt.state_dict()])
        later = []
        for restarted in (False, True):
            if restarted:
                net, opt = train(network, 1, rule=rule)
                net.load_state_dict(saved[0])
                opt.load_state_dict(saved[1])
            for t in range(3, 6):
                step(net, opt, network.rank, t)
            later.append(flat(net))
        assert torch.equal(*later)

    run_threads(RING, work)


def test_a_step_skipped_by_one_nodes_scaler_is_skipped_by_all() -> None:
    def work(network: Network) -> tuple[list[bool], int, torch.Tensor]:
        net = model()
        opt = Decentralized(net.parameters(), network)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        moved = []
        for t in range(6):
            opt.zero_grad()
            x, y = batch(network.rank, t)
            loss = nn.functional.cross_entropy(net(x), y)
            scaler.scale(loss * (np.inf if (t, network.rank) == (3, 2) else 1)).backward()
            if t == 4:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(net.parameters(), 1e9)
            before = flat(net)
            scaler.step(opt)
            scaler.update()
            moved.append(not torch.equal(before, flat(net)))
        return moved, opt.t, flat(net)

    for moved, t, x in run_threads(RING, work):
        assert moved[3] is False
        assert all(moved[4:])
        assert t == 5
        assert x.isfinite().all()


def mix(network: Network, *arrays: Any) -> Messages:
    return exchange(network, (), arrays, 0)[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_messages_in_16_bits_halve_the_bytes_and_preserve_the_mean(dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 4, 50)).astype(np.float32)

    def work(network: Network, as_torch: bool = False) -> tuple[np.ndarray, int]:
        own = x[:, network.local_nodes.start : network.local_nodes.stop]
        (mixed,) = mix(network, torch.as_tensor(own) if as_torch else own)
        return np.asarray(mixed), network.processes.traffic.bytes

    for processes in (4, 2):
        full = run_threads(RING, work, processes)
        half = run_threads(RING, work, processes, compression(dtype))
        tensors = run_threads(RING, lambda network: work(network, True), processes, compression(dtype))
        rows, exact = (np.concatenate([r for r, _ in some], axis=1) for some in (half, full))
        (simulated,) = mix(dnasa.networks.simulated.connect(RING, channel=compression(dtype)), x)
        np.testing.assert_allclose(rows, simulated, rtol=0, atol=1e-6)
        np.testing.assert_allclose(rows, np.concatenate([r for r, _ in tensors], axis=1), atol=1e-7)
        np.testing.assert_allclose(rows.mean(1), x.mean(1), rtol=0, atol=1e-6)
        assert 0 < np.abs(rows - exact).max() < 0.05
        assert [b for _, b in half] == [b // 2 for _, b in full]


def test_numbers_too_large_for_16_bits_preserve_the_mean() -> None:
    x = torch.tensor([[[1e6], [2.0], [3.0], [4.0]]])
    for processes in (4, 2):

        def local(n: Network) -> torch.Tensor:
            return mix(n, x[:, list(n.local_nodes)])[0].clone()

        rows = run_threads(RING, local, processes, compression("float16"))
        assert torch.cat(rows, 1).mean() == pytest.approx(float(x.mean()))


FUSED: Any = [
    {"rule": "dnasa", "weight_decay": 0.1},
    {"rule": "dasagt", "eta": 0.1},
    {"rule": "adanasa"},
    {"rule": "adanasa", "steps": 20, "weight_decay": 0.1},
]


@contextmanager
def as_on_a_gpu() -> Iterator[list[Any]]:
    """Whatever torch would compile on a GPU, listed and left as it is."""
    compiled: list[Any] = []

    def compile(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
        compiled.append(function)
        return function

    with pytest.MonkeyPatch.context() as patch:
        kernel_twin.use_twin(patch, compile)
        patch.setattr(side_by_side, "find_spec", lambda name: True)
        patch.setattr(side_by_side, "torch_compiles", lambda rule, state: rule.form is not None)
        patch.setattr(side_by_side, "supports", lambda *args: False)
        yield compiled


@pytest.mark.parametrize("options", FUSED)
def test_the_update_of_a_node_alone_on_a_gpu_is_the_rule(options: dict[str, Any]) -> None:
    _, plain = train(alone(), 10, **options)
    with as_on_a_gpu():
        _, fast = train(alone(), 10, **options)
    assert isinstance(fast.node.stepper, FusedOnGpu)
    torch.testing.assert_close(fast.flat, plain.flat)
    torch.testing.assert_close(fast.node.stepper.state, plain.node.snapshot().state)


@pytest.mark.parametrize("overlap", [None, False])
@pytest.mark.parametrize("options", FUSED)
def test_nodes_with_neighbours_compile_what_they_send(options: dict[str, Any], overlap: bool | None) -> None:
    def work() -> list[torch.Tensor]:
        return run_threads(RING, lambda network: train(network, 10, overlap=overlap, **options)[1].flat.clone())

    plain = work()
    with as_on_a_gpu() as compiled:
        torch.testing.assert_close(work(), plain)
    assert len(compiled) == 4 * (1 if options["rule"] == "adanasa" else 2)  # `send`, and `early` where there is one


@pytest.mark.parametrize(("steps", "arrays"), [(20, 4), (None, 5)])
def test_adanasa_holds_four_numbers_per_parameter_and_one_more_for_an_average(steps: int | None, arrays: int) -> None:
    """And a sample of the coordinates; the gradient is held by all optimizers."""
    with as_on_a_gpu():
        opt = Decentralized([nn.Parameter(torch.randn(1_000_000))], alone(), "adanasa", steps=steps)
        opt.step()
    sizes = [a.untyped_storage().nbytes() // 4 for a in opt.node.snapshot().state]
    assert sorted(sizes) == [0] * (5 - arrays) + [1, 1, 10_000, 10_000] + [1_000_000] * arrays
    assert all(a.is_meta for a in opt.node.loaded.state)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rule": "adam"}, "Unknown rule 'adam'"),
        ({"rule": "dsgd"}, "needs a stepsize"),
        ({"eta": 0.1}, "takes no stepsize"),
        ({"schedule": "diminishing"}, "Unknown schedule 'diminishing' for adanasa. Choose from: linear, averaged"),
        ({"rule": "dsgd:constant", "eta": 0.1, "schedule": "fixed"}, "No rule uses the schedule fixed"),
        ({"rule": "dnasa", "schedule": "fixed"}, "depends on the number of steps: give steps="),
        ({"rule": "dmsgd", "eta": 0.1}, "'cosine' depends on the number of steps: give steps="),
        ({"weight_decay": -1.0}, "weight_decay must be a positive number"),
        ({"steps": -1}, "steps must be a positive whole number, not -1"),
        ({"rule": "d2", "eta": 0.1, "weight_decay": 0.1}, "This rule has no weight decay: leave"),
        ({"rule": "dsgd", "eta": 0.1, "overlap": True}, "cannot be hidden"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        train(alone(), 1, **options)


def test_what_cannot_be_trained_is_named() -> None:
    linear, p = nn.Linear(2, 2), nn.Parameter(torch.zeros(2))
    refused: dict[str, Any] = {
        "no learning rate": [{"params": linear.parameters(), "lr": 0.1}],
        "not in 'momentum'": [{"params": linear.parameters(), "momentum": 0.1}],
        "one dtype and one device": [*linear.parameters(), nn.Parameter(torch.ones(2).double())],
        r"use torch\.autocast": nn.Linear(2, 2).half().parameters(),
        "no parameter to train": nn.Linear(2, 2).requires_grad_(False).parameters(),
        "one parameter in both places": [p, nn.Parameter(p.data)],
    }
    for words, parameters in refused.items():
        with pytest.raises(InputError, match=words):
            Decentralized(parameters, alone())
    with pytest.raises(InputError, match="holds 4 nodes"):
        Decentralized(linear.parameters(), dnasa.connect(RING))
    opt = Decentralized(linear.parameters(), alone())
    with pytest.raises(InputError, match="give all groups when"):
        opt.add_param_group({"params": nn.Linear(2, 2).parameters()})
    with pytest.raises(InputError, match="leave 'lr' and schedulers out"):
        torch.optim.lr_scheduler.StepLR(opt, 3)


def test_parameters_changed_or_replaced_behind_its_back_are_noticed() -> None:
    net, opt = train(alone(), 2, net=model())
    with torch.no_grad():
        net[0].weight.clamp_(-0.1, 0.1)
    opt.zero_grad()
    with pytest.raises(InputError, match="changed by hand"):
        opt.step()
    opt.load_state_dict(opt.state_dict())
    opt.step()
    assert float(net[0].weight.detach().abs().max()) < 2
    net[0].weight.data = net[0].weight.data.clone()  # the same numbers elsewhere in memory
    opt.step()
    net[0].weight.data = net[0].weight.data.double()
    with pytest.raises(InputError, match="moved or replaced"):
        opt.step()


@pytest.mark.parametrize("when", ["before the gradient", "after the gradient"])
def test_a_model_moved_before_the_first_step_trains_as_if_it_had_stayed(when: str) -> None:
    """As `model.to(device)` moves it."""

    def move(net: nn.Module) -> None:
        for p in net.parameters():
            p.data = p.data.clone()
            p.grad = None if p.grad is None else p.grad.clone()

    expected, _ = train(alone(), 3, net=model(), rule="dnasa")
    net = model()
    opt = Decentralized(net.parameters(), alone(), "dnasa")
    for t in range(3):
        if t == 0 and when == "before the gradient":
            move(net)
        opt.zero_grad()
        backward(net, 0, t)
        if t == 0 and when == "after the gradient":
            move(net)
        opt.step()
    for a, b in zip(net.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b)
    with opt.averaged():
        assert torch.equal(net[0].weight, expected[0].weight)


class Plain(NamedTuple):
    x: Any


def constant(t: int) -> float:
    return 0.1


def looking_ahead() -> Rule:
    """Gradients at x + 1, the first of them too."""
    return Rule(
        Plain,
        lambda s, gradients, t: ((s.x - 0.1 * gradients[0],), s),
        lambda s, mixed: Plain(*mixed),
        points=lambda s, t: (s.x + 1,),
    )


def test_the_first_gradient_is_taken_where_the_rule_wants_it() -> None:
    net = model()
    x = flat(net)
    opt = Decentralized(net.parameters(), alone(), looking_ahead())
    for t in range(3):
        opt.step(closure_of(net, opt, 0, t))
    other = model()
    for t in range(3):
        torch.nn.utils.vector_to_parameters(x + 1, other.parameters())
        other.zero_grad()
        backward(other, 0, t)
        x = x - 0.1 * torch.cat([p.grad.reshape(-1) for p in other.parameters() if p.grad is not None])
    torch.testing.assert_close(flat(net), x + 1)


def test_rules_with_gradients_elsewhere_ask_for_a_closure() -> None:
    for rule, words in ((looking_ahead(), "first gradient at another point"), (rules.gt_hsgd(constant, constant), "")):
        net = model()
        opt = Decentralized(net.parameters(), alone(), rule)
        backward(net, 0, 0)
        with pytest.raises(InputError, match=rf"{words}.*step\(closure\)"):
            opt.step()


def test_buffers_stay_averages_on_a_directed_graph() -> None:
    graph = topology.from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (0, 3)]))

    def work(network: Network) -> torch.Tensor:
        ones = torch.ones(3)
        _, opt = train(network, 5, rule=rules.push_sum(rules.dsgd(lambda t: 0.1)), buffers=[ones])
        opt.consensus()
        return ones

    for ones in run_threads(graph, work):
        torch.testing.assert_close(ones, torch.ones(3))


@pytest.mark.parametrize("missing", ["step", "per_node", "memory", "sent"])
def test_a_damaged_state_is_refused(missing: str) -> None:
    _, opt = train(alone(), 3)
    state = opt.state_dict()
    del state["decentralized"][missing]
    with pytest.raises(InputError, match=f"it has no '{missing}'"):
        opt.load_state_dict(state)
    with pytest.raises(InputError, match="of node None of None"):
        opt.load_state_dict(opt.state_dict() | {"decentralized": 3})
