"""Training that processes leave and join: here each process is a thread with its own members, store and process groups."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from launching import ENVIRONMENT, JOBS, PATIENCE, free_port, wait_until
from test_optim import backward, flat, model
from torch.distributed import PrefixStore, TCPStore

import dnasa
from dnasa.core import Array, InputError, Membership, Network, ProcessLost, RunError
from dnasa.engine.recovery import reconnect, surviving
from dnasa.networks import elastic
from dnasa.networks.elastic import Connection, leave
from dnasa.networks.members import Member, Members
from dnasa.networks.monitor import Monitor, StoreBoard
from dnasa.networks.rendezvous import open_store, serve
from dnasa.optim import Decentralized
from dnasa.optim.recovery import Recovery


@pytest.fixture
def port() -> Iterator[int]:
    store = serve(free_port())
    yield store.port
    del store


class Process:
    """What `elastic.connect` makes, with the means to end it: its socket is closed, and a neighbour calls for a meeting."""

    joined_with: tuple[torch.Tensor, int]  # its parameters and its step when it had joined

    def __init__(self, port: int, nodes: int = 4, timeout: float = 20.0, node: int | None = None):
        store = open_store("127.0.0.1", port, PATIENCE)
        self.members = Members(store, nodes, timeout, node)
        self.connection = Connection(self.members, store, dnasa.topology.ring(nodes), 1, None)
        self.opt: Any = None

    def connect(self) -> Network:
        return self.connection.first_network()

    def end(self) -> None:
        if self.opt is not None:
            self.opt.node.halt()
        self.members.listener.close()
        if self.members.epoch:
            self.members.monitor.close()
        self.connection.close_group()
        self.members.store.set(f"{self.members.epoch + 1} called", "")


def in_threads(*works: Callable[..., Any]) -> list[Any]:
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(timeout=PATIENCE) for future in [pool.submit(work) for work in works]]


def train(
    process: Process,
    rule: str,
    leaves_at: int | None = None,
    extra: Iterable[torch.nn.Parameter] = (),
    came: Callable[[], bool] = lambda: False,
) -> Any:
    """To step 60, or until this process leaves. At step 30, those who are left wait until the one that joins has come."""
    network, net = process.connect(), model()
    opt: Any = Decentralized([*net.parameters(), *extra], network, rule)
    process.opt = opt
    process.joined_with = flat(net).clone(), opt.t
    members: Any = process.members

    def complete_or_disturbed() -> bool:
        return len(opt.nodes) == members.nodes or came() or members.monitor.problem is not None

    while opt.t < 60:
        if opt.t == leaves_at:
            return process.end()
        if opt.t == 30:
            wait_until(complete_or_disturbed)
        opt.zero_grad()
        backward(net, network.rank, opt.t)
        opt.step()
    opt.snapshot_at_end = opt.node.stepper.snapshots[0].state
    return opt


def train_with_one_lost(
    port: int, rule: str, late: Callable[[Process], Any], extra: Callable[[], Iterable[torch.nn.Parameter]] = tuple
) -> tuple[list[Process], list[Any]]:
    """Three processes of which one leaves after step 10, and `late()` once the others wait: the optimizers at the end."""
    processes = [Process(port, nodes=3) for _ in range(3)]
    lost, refused = processes[1], threading.Event()

    def last() -> Any:
        wait_until(lambda: all(p.opt and p.opt.t >= 30 for p in processes if p is not lost))
        processes.append(Process(port, nodes=3))
        opt = late(processes[-1])
        if opt is None:
            refused.set()
        return opt

    try:
        works = [lambda p=p: train(p, rule, 10 if p is lost else None, extra(), refused.is_set) for p in processes]
        return processes, [opt for opt in in_threads(*works, last) if opt]
    finally:
        for process in processes:
            process.end()


@pytest.mark.filterwarnings("ignore:After step")
@pytest.mark.parametrize("rule", ["dnasa", "adanasa"])  # hidden exchanges, and not
def test_the_others_continue_and_another_process_takes_the_place(port: int, rule: str) -> None:
    processes, opts = train_with_one_lost(port, rule, lambda late: train(late, rule))
    assert [opt.t for opt in opts] == [60, 60, 60]
    assert all(opt.nodes == [0, 1, 2] for opt in opts)
    assert processes[3].members.me.node == processes[1].members.me.node
    assert all(opt.lost_steps <= 4 for opt in opts)
    if rule == "dnasa":
        states = [opt.snapshot_at_end for opt in opts]
        u, v = (torch.stack([getattr(state, name) for state in states]).mean(0) for name in "uv")
        torch.testing.assert_close(u, v, rtol=1e-4, atol=1e-6)  # tracking holds


def test_a_process_that_joins_has_the_mean_of_the_others_and_their_frozen_parameters(port: int) -> None:
    def frozen() -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(torch.arange(3.0), requires_grad=False)]

    own = torch.nn.Parameter(torch.zeros(3), requires_grad=False)
    with pytest.warns(UserWarning, match="the run continues with"):
        processes, opts = train_with_one_lost(port, "dnasa", lambda late: train(late, "dnasa", extra=[own]), frozen)
    late = processes[-1]
    assert torch.equal(own, torch.arange(3.0))
    assert late.joined_with[1] >= 30
    assert all(torch.equal(late.joined_with[0], opt.recovery.means[0].view(-1)) for opt in opts)


@pytest.mark.filterwarnings("ignore:After step")
def test_a_process_with_another_rule_is_refused_and_the_others_continue(port: int) -> None:
    def join(late: Process) -> None:
        with pytest.raises(InputError, match="another setting of the rule than this process"):
            Decentralized(model(), late.connect(), "adanasa")
        late.end()

    _, opts = train_with_one_lost(port, "dnasa", join)
    assert [opt.t for opt in opts] == [60, 60]


def test_solve_continues_without_a_lost_process(port: int) -> None:
    processes, graph = [Process(port, nodes=3) for _ in range(3)], dnasa.topology.ring(3)

    def solve(process: Process) -> Any:
        def gradient(x: Array, node: int, rng: np.random.Generator, calls: list[int] = [0]) -> Array:  # noqa: B006
            calls[0] += 1
            if process is processes[1] and calls[0] == 30:
                raise InterruptedError
            return x - node

        problem = dnasa.problems.Custom(gradient, start=np.zeros(2), fingerprint="quadratic")
        try:
            return dnasa.solve(problem, graph, "dsgt", eta=0.1, steps=60, network=process.connect(), evaluate=[20, 60])
        except InputError:
            return process.end()

    results = [result for result in in_threads(*(lambda p=p: solve(p) for p in processes)) if result]
    assert len(results) == 2
    assert results[0].history.nodes.tolist() == [3, 2]
    for process in processes:
        process.end()


def test_work_is_repeated_after_a_loss_that_the_network_survives_and_after_no_other() -> None:
    losses, recovered = iter([True, True, False]), []

    def work() -> str:
        if next(losses):
            raise ProcessLost("lost")
        return "done"

    member = SimpleNamespace(network=Scripted(0).network())
    assert surviving(member, work, lambda: recovered.append(1)) == "done"
    assert recovered == [1, 1]
    losses, fragile = iter([True]), SimpleNamespace(network=Network(1, lambda m, t: m, lambda a: a))
    with pytest.raises(ProcessLost, match="lost"):
        surviving(fragile, work, lambda: recovered.append(2))
    assert recovered == [1, 1]


def test_processes_that_reconnect_begin_again_when_another_is_lost_meanwhile() -> None:
    first, second = Scripted(0).network(), Scripted(0).network()
    networks = iter([replace(first, membership=Membership(survivors=lambda: second))])

    def agree(network: Network) -> int:
        if network is not second:
            raise ProcessLost("lost")
        return 7

    network, agreed = reconnect(lambda: next(networks), agree)
    assert network is second
    assert agreed == 7


# ---------------------------------------------------------------- which calls are done again


class Scripted:
    """A network of two whose other process has got further when this one loses it."""

    def __init__(self, ahead: int):
        self.ahead = ahead
        self.notes: list[str] = []

    def network(self) -> Network:
        def positions(text: str) -> list[str]:
            own = eval(text.replace("false", "False"))
            return [text, str([own[0] + self.ahead, own[1] + self.ahead, *own[2:]]).replace("False", "false")]

        return Network(
            2,
            lambda messages, t: messages,
            lambda a: a.mean(-2),
            range(1),
            allgather_text=positions,
            membership=Membership(self.notes.append, survivors=self.network),
        )


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_calls_that_the_others_have_done_are_left_out_and_the_next_one_is_done_again(ahead: int) -> None:
    other = Scripted(ahead)
    node: Any = SimpleNamespace(network=other.network(), t=0)
    recovery: Any = Recovery(node, 0)
    recovery._continue = lambda: setattr(
        recovery, "resume_at", max(p.calls for p in recovery._positions(other.network(), False))
    )
    losses = iter([False, True, *[False] * 10])  # in the second call

    def work() -> str:
        if next(losses):
            raise ProcessLost("lost")
        return "done"

    results = [recovery.step(work, lambda: "missed") for _ in range(6)]
    assert results == ["done", *["missed"] * ahead, *["done"] * (5 - ahead)]


# ---------------------------------------------------------------- members


def test_a_silent_process_is_left_behind_and_is_told_so(port: int) -> None:
    one, two = in_threads(*[lambda: Process(port, nodes=2, timeout=1.5)] * 2)
    in_threads(one.connect, two.connect)
    two.members.monitor.stop.set()
    one.members.meet()
    assert one.members.list == [one.members.me]
    with pytest.raises(RunError, match="was left behind"):
        two.members.meet()
    late = Process(port, nodes=2)
    assert late.members.me.node == two.members.me.node
    for process in (one, two, late):
        process.end()


def test_a_process_that_lost_its_connections_stays_a_member(port: int) -> None:
    processes = [Process(port, nodes=3) for _ in range(3)]
    before = in_threads(*(process.connect for process in processes))
    networks = in_threads(*(process.connection.survivors for process in processes))
    assert [network.nodes for network in networks] == [3, 3, 3]
    assert in_threads(*(lambda n=n: n.mean(torch.full((1, 1), float(n.rank))).item() for n in networks)) == [1, 1, 1]
    with pytest.raises(RunError, match=r"the current one is optimizer\.network"):
        before[0].mean(torch.ones(1, 1))
    for process in processes:
        process.end()


def test_without_a_free_node_a_process_cannot_join(port: int) -> None:
    processes = [Process(port, nodes=2) for _ in range(2)]
    in_threads(*(process.connect for process in processes))
    with pytest.raises(InputError, match="All 2 nodes of the graph have a running process"):
        Process(port, nodes=2, timeout=0.4)
    for process in processes:
        process.end()


def test_a_closed_socket_is_a_lost_process_and_one_that_does_not_answer_is_not(port: int) -> None:
    process = Process(port, nodes=2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        there = Member(1, "other", *other.getsockname())
        assert not process.members._gone(there)
    assert process.members._gone(there)
    process.end()


def test_an_exit_waits_for_those_that_end_too_and_not_for_those_that_go_on(port: int) -> None:
    one, two = [Process(port, nodes=2) for _ in range(2)]
    networks = in_threads(one.connect, two.connect)
    in_threads(lambda: leave(one.members), lambda: leave(two.members))
    networks[0].membership.note("step 1")
    networks[1].membership.note("step 1")
    for process in (one, two):
        process.end()


@pytest.mark.long
@pytest.mark.xdist_group("processes")
def test_one_torchrun_for_each_node_starts_a_lost_process_again_and_it_joins(tmp_path: Path) -> None:
    job, where = (
        JOBS / "survive_job.py",
        ["--master-addr", "127.0.0.1", "--master-port", free_port()],
    )
    options = ["--nnodes", 3, "--nproc-per-node", 1, "--max-restarts", 2, *where]
    commands = [
        [sys.executable, "-m", "torch.distributed.run", *options, "--node-rank", node, job, "adanasa", tmp_path, 0.5]
        for node in range(3)
    ]
    agents = [subprocess.Popen([str(word) for word in command], env=ENVIRONMENT) for command in commands]
    assert [agent.wait(PATIENCE) for agent in agents] == [0, 0, 0]
    reports = [json.loads((tmp_path / f"{node}.json").read_text()) for node in range(3)]
    assert [report["nodes"] for report in reports] == [[0, 1, 2]] * 3
    assert reports[1]["first"] >= 20
    assert reports[0]["first"] == reports[2]["first"] == 0


def test_when_all_processes_have_ended_the_next_run_can_use_the_same_store(port: int) -> None:
    first = [Process(port, nodes=2) for _ in range(2)]
    in_threads(*(process.connect for process in first))
    for process in first:
        process.end()
    second = [Process(port, nodes=2) for _ in range(2)]
    assert [process.members.run for process in second] == [1, 1]
    assert [network.nodes for network in in_threads(*(process.connect for process in second))] == [2, 2]
    for process in second:
        process.end()


def test_when_the_store_has_ended_an_error_says_so() -> None:
    store = serve(free_port())
    process = Process(store.port, nodes=2)
    del store
    with pytest.raises(RunError, match=r"The rendezvous at 127\.0\.0\.1:\d+ has ended"):
        process.members.begin()


# ---------------------------------------------------------------- what users give


DAMAGED = [
    b"",
    b"damaged",
    b"\xff",
    b"[" * 20_000,
    b"null",
    b"3",
    b"[]",
    b"{}",
    b'["a"]',
    b'{"beats": 1, "calls": [], "failure": "", "ended": false}',
    b'{"beats": 1, "calls": {"1 1": 3}, "failure": "", "ended": false}',
    b'{"beats": 1, "calls": {}, "failure": "", "ended": false, "more": 1}',
    b'[0, "name", "127.0.0.1", 99999999]',
    b'[0, "name", "...", 1]',
    b'[7, "name", "127.0.0.1", 1]',
    b'[[0, "name", 5, 1]]',
]


def test_a_damaged_report_is_ignored(port: int) -> None:
    stores: list[Any] = [open_store("127.0.0.1", port, PATIENCE) for _ in range(2)]
    monitor = Monitor(StoreBoard(stores[0], "0", ["0", "1"]), 0, 2, interval=1000)
    good = '{"beats": 1, "calls": {"1 4": "step 4"}, "failure": "", "ended": false}'
    stores[1].set("1", good)
    monitor._beat()
    for text in DAMAGED:
        stores[1].set("1", text)
        monitor._beat()
        assert monitor.problem is None
        assert monitor.reports[1] is not None
        assert monitor.reports[1].calls == {"1 4": "step 4"}
    assert monitor.quiet[1] == len(DAMAGED)
    stores[1].set("1", good.replace('""', '"out of memory"'))
    monitor._beat()
    assert isinstance(monitor.problem, RunError)
    monitor.close()


def test_damaged_values_in_the_store_are_replaced(port: int) -> None:
    store = open_store("127.0.0.1", port, PATIENCE)
    for run, text in enumerate(DAMAGED):
        foreign: Any = PrefixStore(f"dnasa run {run}", store)
        for key in ("holder 0", "1 here 0", "1 members"):
            foreign.set(key, text)
        members = Members(store, 1, 20.0, None)
        members.begin()
        assert members.run == run
        assert members.list == [members.me]
        assert members.me.node == 0
        members.monitor.close()
        members.listener.close()


def test_a_store_of_something_else_is_refused(port: int) -> None:
    PrefixStore("dnasa", open_store("127.0.0.1", port, PATIENCE)).set("run", "mine")
    with pytest.raises(InputError, match="is damaged: start a new `dnasa rendezvous`"):
        Members(open_store("127.0.0.1", port, PATIENCE), 1, 20.0, None)


def test_whoever_reaches_the_store_can_read_it_and_write_to_it(port: int) -> None:
    members = Members(open_store("127.0.0.1", port, PATIENCE), 1, 20.0, None)
    foreign = PrefixStore("dnasa run 0", TCPStore("127.0.0.1", port, is_master=False))
    assert members.me.name.encode() in foreign.get("holder 0")
    foreign.set("admits", "")
    assert members.store.get("admits") == b""
    members.listener.close()


def test_all_processes_must_have_the_same_graph(port: int) -> None:
    store = open_store("127.0.0.1", port, 10)
    texts = [elastic.described(graph, 1, None) for graph in (dnasa.topology.ring(3), dnasa.topology.ring(4))]
    first = Members(store, 3, 10, None, texts[0])
    with pytest.raises(InputError, match=r"another network \(ring, 3 nodes, .*\) than this process \(ring, 4 nodes"):
        Members(store, 4, 10, None, texts[1])
    first.listener.close()


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(InputError, match=r"There is no host 'nowhere\.invalid'"):
        dnasa.connect(dnasa.topology.ring(3), join="nowhere.invalid:29500")


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":1", "localhost:0", "localhost:x"])
def test_an_address_has_a_host_and_a_port(address: str) -> None:
    with pytest.raises(InputError, match="HOST:PORT"):
        dnasa.connect(dnasa.topology.ring(3), join=address)


def test_the_remedy_is_named_where_nothing_answers() -> None:
    with pytest.raises(InputError, match="dnasa rendezvous --port"):
        dnasa.connect(dnasa.topology.ring(3), join=f"127.0.0.1:{free_port()}", timeout=0.5)


def test_one_torchrun_for_all_processes_cannot_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="start one torchrun for each node"):
        dnasa.connect("ring", "torch", survive=True)


def test_before_the_optimizer_is_made_a_process_that_joins_cannot_use_the_network() -> None:
    with pytest.raises(InputError, match="make the optimizer first"):
        elastic.refuse(torch.ones(1))


def test_a_graph_to_join_has_its_nodes() -> None:
    with pytest.raises(InputError, match="a graph with its nodes"):
        dnasa.connect("ring", join="localhost:29500")
