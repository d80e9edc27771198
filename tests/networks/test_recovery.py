"""Training that sites leave and join: here each site is a thread with its own connections."""

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from launching import PATIENCE, wait_until
from local_sites import local_sites, write_sites
from test_optim import flat, model, step
from typer.testing import CliRunner

import dnasa
from dnasa import cli
from dnasa.channels.secure_sum import secure_sum
from dnasa.communication import Membership, Network, Processes
from dnasa.core import Array, InputError, ProcessLost, Rule, RunError
from dnasa.engine.recovery import Position, positions_of, received_state, reconnect, surviving, warn_of_changes
from dnasa.networks import sites as site_engine
from dnasa.networks.members import Members, SiteState
from dnasa.networks.processes import Sending
from dnasa.networks.sites import SiteNetworks, described
from dnasa.optim import Decentralized
from dnasa.optim.recovery import Recovery
from dnasa.sites.connecting import dials
from dnasa.sites.file import Site, Sites, read_sites
from dnasa.sites.inbox import Key
from dnasa.sites.keys import make_authority, make_site
from dnasa.sites.mesh import GRACE


class Process:
    """What `sites.connect` makes, with the means to end it: its connections and its port are closed."""

    made: ClassVar[list["Process"]] = []
    joined_with: tuple[torch.Tensor, int]  # its parameters and its step when it had joined

    def __init__(
        self, sites: Sites, timeout: float = 20.0, graph: Any = None, wait_for: int | None = None, channel: Any = None
    ):
        graph = graph or dnasa.topology.ring(len(sites.sites))
        self.sites = sites
        self.members = Members(sites, described(sites, graph, 1, channel), timeout, wait_for=wait_for)
        self.connection = SiteNetworks(self.members, graph, 1, channel)
        self.opt: Any = None
        self.made.append(self)

    def connect(self) -> Network:
        return self.connection.first_network()

    def end(self) -> None:
        if self.opt is not None:
            self.opt.node.halt()
        self.members.mesh.close()


@pytest.fixture(autouse=True)
def all_end() -> Iterator[None]:
    yield
    while Process.made:
        Process.made.pop().end()


def processes_of(folder: Path, count: int, **options: Any) -> list[Process]:
    return [Process(sites, **options) for sites in local_sites(folder, count)]


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
        return len(opt.nodes) == len(process.sites.sites) or came() or not members.counts_still()

    while opt.t < 60:
        if opt.t == leaves_at:
            return process.end()
        if opt.t == 30:
            wait_until(complete_or_disturbed)
        step(net, opt, network.rank, opt.t)
    opt.snapshot_at_end = opt.node.stepper.snapshots[0].state
    return opt


def train_with_one_lost(
    folder: Path, rule: str, late: Callable[[Process], Any], extra: Callable[[], Iterable[torch.nn.Parameter]] = tuple
) -> tuple[list[Process], list[Any]]:
    """Three processes of which one leaves after step 10, and `late()` once the others wait: the optimizers at the end."""
    processes = processes_of(folder, 3)
    lost, refused = processes[1], threading.Event()

    def last() -> Any:
        wait_until(lambda: all(p.opt and p.opt.t >= 30 for p in processes if p is not lost))
        processes.append(Process(lost.sites))
        opt = late(processes[-1])
        if opt is None:
            refused.set()
        return opt

    works = [lambda p=p: train(p, rule, 10 if p is lost else None, extra(), refused.is_set) for p in processes]
    return processes, [opt for opt in in_threads(*works, last) if opt]


def test_a_process_that_joins_has_the_others_model_and_frozen_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidden exchanges."""

    def frozen() -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(torch.arange(3.0), requires_grad=False)]

    sent = {}
    received = received_state

    def noted(network: Network, positions: Any, rule: Rule, state: Any) -> Any:
        sent[network.rank] = state.x.clone()
        return received(network, positions, rule, state)

    monkeypatch.setattr("dnasa.optim.recovery.received_state", noted)
    own = torch.nn.Parameter(torch.zeros(3), requires_grad=False)
    with pytest.warns(UserWarning, match="the run continues with"):
        processes, opts = train_with_one_lost(tmp_path, "dnasa", lambda late: train(late, "dnasa", extra=[own]), frozen)
    assert [(opt.t, opt.nodes) for opt in opts] == [(60, [0, 1, 2])] * 3
    assert all(opt.lost_steps <= 4 for opt in opts)
    states = [opt.snapshot_at_end for opt in opts]
    u, v = (torch.stack([getattr(state, name) for state in states]).mean(0) for name in "uv")
    torch.testing.assert_close(u, v, rtol=1e-4, atol=1e-6)  # tracking holds
    late = processes[-1]
    assert torch.equal(own, torch.arange(3.0))
    assert late.joined_with[1] >= 30
    assert torch.equal(late.joined_with[0], sent[0].view(-1))
    copied = {sending.peer: size for sending, (_, size) in processes[0].members.traffic.sent.items() if sending.kind == "copy"}
    assert copied[1] >= sent[0].nbytes
    assert not any(sending.kind == "copy" for sending in processes[2].members.traffic.sent)


@pytest.mark.filterwarnings("ignore:After step")
def test_a_run_begins_with_a_majority_and_the_last_site_joins(tmp_path: Path) -> None:
    files = local_sites(tmp_path, 3)
    processes = [Process(file, wait_for=2) for file in files[:2]]

    def last() -> Any:
        wait_until(lambda: all(process.opt and process.opt.t >= 30 for process in processes))
        processes.append(Process(files[2], wait_for=2))
        return train(processes[2], "dnasa")

    opts = in_threads(*[lambda p=p: train(p, "dnasa") for p in processes], last)
    assert [opt.nodes for opt in opts] == [[0, 1, 2]] * 3
    assert processes[2].joined_with[1] >= 30
    assert all((file.keys / "voted.txt").exists() for file in files)
    in_threads(*[process.members.end for process in processes])
    assert not any((file.keys / "voted.txt").exists() for file in files)


def test_a_process_that_may_have_voted_before_needs_all_sites(tmp_path: Path) -> None:
    files = local_sites(tmp_path, 3)
    Process(files[0], wait_for=2).end()
    again, second = Process(files[0], wait_for=2), Process(files[1], wait_for=2)
    wait_until(lambda: 1 in again.members._heard() and 0 in second.members._heard())
    deadline = time.monotonic() + 2
    assert not again.members._wait_for_view(lambda: time.monotonic() < deadline, "start")
    assert "voted.txt says that this site's last run may go on elsewhere" in again.members._missing()


def test_a_process_with_another_rule_is_refused_and_the_others_continue(tmp_path: Path) -> None:
    def join(late: Process) -> None:
        with pytest.raises(InputError, match=r"rule is .*dnasa.* at the others and .*adanasa.* at this process"):
            Decentralized(model(), late.connect(), "adanasa")
        late.end()

    _, opts = train_with_one_lost(tmp_path, "dnasa", join)
    assert [opt.t for opt in opts] == [60, 60]


def test_solve_continues_without_a_site_that_catches_its_error(tmp_path: Path) -> None:
    processes = processes_of(tmp_path, 3)

    def solve(process: Process) -> Any:
        def gradient(x: Array, node: int, rng: np.random.Generator, calls: list[int] = [0]) -> Array:  # noqa: B006
            calls[0] += 1
            if process is processes[1] and calls[0] == 30:
                raise InterruptedError
            return x - node

        problem = dnasa.problems.Custom(gradient, start=np.zeros(2), fingerprint="quadratic")
        try:
            return dnasa.solve(problem, process.connect(), "dsgt", eta=0.1, steps=60, evaluate=[20, 60])
        except InputError:
            return None

    with pytest.warns(UserWarning, match=r"^After step \d+ the run continues without paris: 2 sites\.$"):
        results = [result for result in in_threads(*(lambda p=p: solve(p) for p in processes)) if result]
    with pytest.raises(RunError, match="paris has left the run: Rank 1 stopped at step 29: "):
        processes[1].members.note("a network", "a call")
    assert len(results) == 2
    assert [result.settings["site"] for result in results] == ["berlin", "lyon"]
    assert results[0].history.nodes.tolist() == [3, 2]


@pytest.mark.filterwarnings("ignore:After step")
def test_a_private_round_without_a_lost_site_is_done_again_with_new_keys_by_three_and_refused_by_two(tmp_path: Path) -> None:
    processes = processes_of(tmp_path, 4, graph=dnasa.topology.complete(4), channel=secure_sum())
    keys: list[Any] = []

    def solve(process: Process) -> Any:
        own = process.members.node

        def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
            if (own, len(process.members.nodes)) in ((3, 4), (2, 3)) and abs(x - 2.0).min() < 0.5 * (own - 1):
                raise InterruptedError
            return x - 2.0 - 0.1 * node

        problem = dnasa.problems.Custom(gradient, start=np.zeros(2), fingerprint="quadratic")
        network = process.connect()
        keys.append(process.connection.masks)
        with pytest.raises((InputError, RunError)) as stopped:
            dnasa.solve(problem, network, "dsgd:constant", eta=0.1, steps=500, progress=False)
        keys.append(process.connection.masks)
        return str(stopped.value)

    lines = in_threads(*(lambda p=p: solve(p) for p in processes))
    assert all("A private run needs 3 nodes or more" in line for line in lines[:2])
    assert len({key for masks in keys for key in masks.keys.values()}) == 6 + 3  # one of each pair, then of three


def test_a_site_lost_before_the_first_step_of_solve_ends_the_run_with_one_line(tmp_path: Path) -> None:
    processes = processes_of(tmp_path, 3)
    networks = in_threads(*(process.connect for process in processes))
    problem = dnasa.problems.Custom(lambda x, node, rng: x, start=np.zeros(2), fingerprint="quadratic")
    processes[1].end()

    def solve(network: Network) -> None:
        with pytest.raises(RunError, match=r"^[^\n]*paris[^\n]* before the first step: start all sites again\.$"):
            dnasa.solve(problem, network, "dsgt", eta=0.1, steps=60)

    in_threads(*(lambda n=n: solve(n) for n in (networks[0], networks[2])))


@pytest.mark.filterwarnings("ignore:After step")
def test_another_process_of_a_lost_site_joins_solve(tmp_path: Path) -> None:
    processes = processes_of(tmp_path, 3)
    lost, lost_at = processes[2], threading.Event()

    def solve(process: Process) -> Any:
        calls = 0

        def gradient(x: Array, node: int, rng: np.random.Generator) -> Array:
            nonlocal calls
            calls += 1
            if process is lost and calls == 30:
                raise InterruptedError
            if process in processes and calls >= 50 and process.members.view.number == 2:  # without the lost one
                wait_until(lambda: lost_at.is_set() and not process.members.counts_still())
            return x - node

        problem = dnasa.problems.Custom(gradient, start=np.zeros(2), fingerprint="quadratic")
        options: Any = {"eta": 0.1, "steps": 90, "evaluate": [20, 40, 90]}
        try:
            return dnasa.solve(problem, process.connect(), "dsgt", **options)
        except InputError:
            return process.end()

    def come_back() -> Any:
        wait_until(lambda: all(p.members.view.number > 1 for p in processes if p is not lost))
        wait_until(lambda: lost.members.mesh.door.listener.fileno() < 0)  # type: ignore[union-attr]
        others.append(Process(lost.sites))
        lost_at.set()
        return solve(others[0])

    others: list[Process] = []
    results = [result for result in in_threads(*(lambda p=p: solve(p) for p in processes), come_back) if result]
    assert [result.history.nodes.iloc[-1] for result in results] == [3, 3, 3]
    assert results[0].history.nodes.tolist() == [3, 2, 3]
    assert results[2].history.step.tolist() == [90]
    np.testing.assert_allclose(results[0].mean, [1, 1], atol=0.2)  # of the other two it would be 0.5


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="needs the counters of Linux")
def test_the_kernel_has_sent_what_is_audited_and_few_bytes_more(tmp_path: Path) -> None:
    one, two = processes_of(tmp_path, 2)
    networks = in_threads(one.connect, two.connect)
    in_threads(*(lambda n=n: n.multiply((np.ones((1, 100_000)),), 0) for n in networks))
    link = one.members.links[1]
    assert link.wire is not None

    def acknowledged() -> int:
        plain = link.wire.writer.get_extra_info("socket")  # type: ignore[union-attr]
        info = plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
        return int(struct.unpack_from("=Q", info, 120)[0]) - dials(one.sites, 1)  # without the SYN

    def audited() -> int:
        return sum(size for _, size in list(one.members.traffic.sent.values()))

    wait_until(lambda: acknowledged() > 800_000)
    assert 800_000 < audited() < acknowledged() < audited() + 20_000  # headers and TLS


def test_a_site_that_joins_with_other_data_is_refused(tmp_path: Path) -> None:
    processes = processes_of(tmp_path, 2)
    networks = in_threads(*(process.connect for process in processes))
    in_threads(*(lambda n=n: n.processes.allgather_text(f"data of {n.rank}") for n in networks))
    for process in processes:
        process.connection.admit()
    processes[1].end()
    late = Process(processes[1].sites)
    network = late.connect()
    with pytest.raises(InputError, match="paris has other settings or data than those it began this run with"):
        network.processes.allgather_text("other data")
    sent = networks[0].processes.traffic.sent
    assert sent[Sending("text", None, (), "data of 0")] == (1, len("data of 0"))
    assert sent[Sending("opening", 1, ())][1] > len("data of 0, data of 1")
    assert network.processes.traffic.sent[Sending("state", 0, ())][0] > 0  # also before it has joined


@pytest.mark.parametrize(
    ("here", "lost", "joined", "line"),
    [
        ([0, 2], [1], [], "without paris: 2 sites."),
        ([0, 1, 2], [], [1], "with paris: 3 sites."),
        ([0], [1, 2], [], "without paris, lyon: 1 site."),
    ],
)
def test_a_change_is_said_in_one_line(here: list[int], lost: list[int], joined: list[int], line: str) -> None:
    processes = Processes(names=["berlin", "paris", "lyon"], node_ids=here)
    network: Any = SimpleNamespace(processes=processes, nodes=len(here))
    with pytest.warns(UserWarning, match=f"^After step 7 the run continues {re.escape(line)}$"):
        warn_of_changes(network, lost, joined, 7)


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
    networks = iter([replace(first, processes=Processes(range(1), membership=Membership(survivors=lambda: second)))])

    def agree(network: Network) -> int:
        if network is not second:
            raise ProcessLost("lost")
        return 7

    network, agreed = reconnect(lambda: next(networks), agree)
    assert network is second
    assert agreed == 7


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
            processes=Processes(
                range(1), allgather_text=positions, membership=Membership(self.notes.append, survivors=self.network)
            ),
        )


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_calls_that_the_others_have_done_are_left_out_and_the_next_one_is_done_again(ahead: int) -> None:
    other = Scripted(ahead)
    node: Any = SimpleNamespace(network=other.network(), t=0)
    recovery: Any = Recovery(node, 0)
    recovery._continue = lambda: setattr(
        recovery, "resume_at", max(p.calls for p in positions_of(other.network(), Position(recovery.calls, 0, False, 0)))
    )
    losses = iter([False, True, *[False] * 10])  # in the second call

    def work() -> str:
        if next(losses):
            raise ProcessLost("lost")
        return "done"

    results = [recovery.step(work, lambda: "missed") for _ in range(6)]
    assert results == ["done", *["missed"] * ahead, *["done"] * (5 - ahead)]


@pytest.mark.parametrize("text", ["[", "[1]", "[1, 2, false, 0, 5]", '["a", 1, false, 0]', "[1000000, 5, false, 0]", "{}"])
def test_a_process_whose_position_none_can_have_is_named(text: str) -> None:
    others = Processes(allgather_text=lambda own: [own, text])
    network = Network(2, lambda messages, t: messages, lambda a: a, processes=others)
    with pytest.raises(RunError, match=r"^rank 1 is at fault"):
        positions_of(network, Position(0, 3, False, 0))


@contextmanager
def cut(one: Process, two: Process) -> Iterator[None]:
    """There is no connection between these two meanwhile."""

    def fail(*_: Any, **__: Any) -> None:
        raise TimeoutError

    ends = [one.members.links[two.sites.own], two.members.links[one.sites.own]]
    for link in ends:
        link.use = fail  # type: ignore[assignment, method-assign]
        link.break_off()
    wait_until(lambda: not any(link.connected for link in ends))
    yield
    for link in ends:
        del link.use


def views(processes: Iterable[Process]) -> list[list[int]]:
    return [process.members.nodes for process in processes]


def test_a_site_that_lost_its_connections_stays_a_member_and_no_message_is_lost(tmp_path: Path) -> None:
    processes = processes_of(tmp_path, 3)
    networks = in_threads(*(process.connect for process in processes))
    before = [process.members.view for process in processes]
    ended = threading.Event()

    def disturb() -> None:
        while not ended.wait(0.2):
            for link in processes[0].members.links.values():
                link.break_off()

    def exchange(network: Network) -> float:
        x = np.full((1, 50_000), float(network.rank))
        for k in range(25):
            (x,) = network.multiply((x,), k)
            time.sleep(0.03)  # so that it lasts for a few disturbances
        return float(x.mean())

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        assert in_threads(*(lambda n=n: exchange(n) for n in networks)) == pytest.approx([1, 1, 1])
    finally:
        ended.set()
        thread.join()
    assert [process.members.view for process in processes] == before


@pytest.mark.filterwarnings("ignore:After step", "ignore:.* has waited")
def test_a_site_that_comes_back_goes_on_at_the_step_of_the_others_with_its_next_call(tmp_path: Path) -> None:
    processes = one, two, three = processes_of(tmp_path, 3, timeout=1.0)
    away, back = threading.Event(), threading.Event()

    def work(process: Process) -> list[int]:
        network, net = process.connect(), model()
        process.opt = opt = Decentralized(net.parameters(), network, "dsgd", eta=0.1)
        steps = [0]
        while opt.t < 100:
            if opt.t == 10 and process is three:
                away.set()
            if opt.t == 80 and process is not three:
                back.set()
                wait_until(lambda: opt.nodes == [0, 1, 2] or not process.members.counts_still())
            step(net, opt, network.rank, opt.t)
            steps.append(opt.t)
        return steps

    def disturb() -> None:
        wait_until(away.is_set)
        with cut(three, one), cut(three, two):
            wait_until(back.is_set)

    *_, steps, _ = in_threads(*(lambda p=p: work(p) for p in processes), disturb)
    jumps = [after - before for before, after in pairwise(steps)]
    assert max(jumps) >= 50
    assert sum(jump > 1 for jump in jumps) <= 2
    assert three.opt.lost_steps >= 50


def test_a_site_that_does_nothing_while_others_wait_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnasa.networks.members.PATIENCE", 2)
    processes = one, two, three = processes_of(tmp_path, 3, timeout=1.5)
    networks = in_threads(*(process.connect for process in processes))
    for process in processes:
        process.connection.admit()

    def exchange(network: Network) -> None:
        with pytest.raises(ProcessLost, match="without lyon"):
            network.multiply((np.ones((1, 3)),), 0)

    with pytest.warns(UserWarning, match="has waited 1.5 s in exchange"):
        in_threads(*(lambda n=n: exchange(n) for n in networks[:2]))
    in_threads(one.members.meet, two.members.meet)
    assert views((one, two)) == [[0, 1]] * 2
    assert three.members.links[0].connected  # its threads are alive


@pytest.mark.filterwarnings("ignore:.* has waited")
def test_the_operator_lets_one_of_two_sites_go_on_alone(tmp_path: Path) -> None:
    file, *_ = write_sites(tmp_path, 2)
    one, two = (Process(read_sites(path), timeout=1.0) for path in (file, tmp_path / "paris.toml"))
    in_threads(one.connect, two.connect)
    one.connection.admit()
    two.end()
    meeting = threading.Thread(target=one.members.meet)
    meeting.start()
    meeting.join(4)
    assert meeting.is_alive()  # two sites need both
    assert CliRunner().invoke(cli.app, ["sites", "drop", "berlin", str(file)]).exit_code  # it is this site
    assert CliRunner().invoke(cli.app, ["sites", "drop", "paris", str(file)]).exit_code == 0
    meeting.join(PATIENCE)
    assert one.members.nodes == [0]


def test_a_site_that_is_started_twice_is_refused_while_the_first_process_is_connected(tmp_path: Path) -> None:
    files = local_sites(tmp_path, 3, hidden=("paris",))
    processes = [Process(sites) for sites in files]
    in_threads(*(process.connect for process in processes))
    second = Process(files[1])
    wait_until(lambda: "another process of paris is connected" in second.members.links[0].problem)
    assert all(process.members.counts_still() for process in processes)


def test_messages_for_a_process_do_not_reach_the_one_that_takes_its_place(tmp_path: Path) -> None:
    one, two = processes_of(tmp_path, 2)
    in_threads(one.connect, two.connect)
    two.end()
    again, link = Process(two.sites), one.members.links[1]
    wait_until(lambda: link.instance == again.members.mesh.instance)
    for instance, count in ((two.members.mesh.instance, 0), (link.instance, 1)):
        link.send(instance, Key(0, 1, 0, 1), b"numbers", lambda: None)
        assert link.sent + len(link.outbox) >= count
        assert count or not link.outbox


def test_a_hidden_site_is_gone_if_it_closed_its_connection_and_not_if_this_site_did(tmp_path: Path) -> None:
    one, two = [Process(sites) for sites in local_sites(tmp_path, 2, hidden=("paris",))]
    in_threads(one.connect, two.connect)
    link = one.members.links[1]
    with cut(one, two):
        link.ours = "there is a newer one"
        link.broken -= 2 * GRACE
        assert not one.members.mesh.seems_gone(1)
        link.ours = ""  # as if the other side had closed it
        assert one.members.mesh.seems_gone(1)


def test_those_cut_off_from_most_of_the_others_wait_and_come_back(tmp_path: Path) -> None:
    processes = processes_of(tmp_path, 3, timeout=1.0)
    in_threads(*(process.connect for process in processes))
    for process in processes:
        process.connection.admit()
    alone, others = processes[0], processes[1:]
    with cut(alone, others[0]), cut(alone, others[1]):
        for link in alone.members.links.values():
            link.refused = True  # as where a firewall refuses connections
        in_threads(*(process.members.meet for process in others))
        assert views(others) == [[1, 2]] * 2
        assert alone.members.vote.view.number == 1
        assert not alone.members.mesh.hears(1, 1.0)
    meeting = threading.Thread(target=alone.members.meet)
    meeting.start()
    in_threads(*(process.members.meet for process in others))
    meeting.join(PATIENCE)
    assert views(processes) == [[0, 1, 2]] * 3
    assert [process.members.returned for process in processes] == [True, False, False]


def test_an_exit_waits_for_those_that_end_too(tmp_path: Path) -> None:
    one, two = processes_of(tmp_path, 2)
    networks = in_threads(one.connect, two.connect)
    for network in networks:
        network.processes.membership.note("step 1")
    first = threading.Thread(target=one.members.end)
    first.start()
    time.sleep(0.5)
    assert first.is_alive()
    two.members.end()
    first.join(PATIENCE)


@pytest.mark.filterwarnings("ignore:After step")
@pytest.mark.parametrize(("rule", "steps"), [("dnasa", 5), ("adanasa", 0)])
def test_the_others_go_on_without_a_site_whose_script_has_ended(tmp_path: Path, rule: str, steps: int) -> None:
    """After some steps, or before it made an optimizer."""
    processes = processes_of(tmp_path, 3)

    def work(process: Process) -> Any:
        network, net = process.connect(), model()
        if process is processes[1] and not steps:
            return process.members.end()
        process.opt = Decentralized(net.parameters(), network, rule)
        while process.opt.t < (steps if process is processes[1] else 20):
            step(net, process.opt, network.rank, process.opt.t)
        process.members.end()
        return process.opt.nodes

    assert in_threads(*(lambda p=p: work(p) for p in processes)) == [[0, 2], [0, 1, 2] if steps else None, [0, 2]]


def test_all_sites_must_have_the_same_graph(tmp_path: Path) -> None:
    files = local_sites(tmp_path, 3)
    graphs = [dnasa.topology.ring(3), dnasa.topology.ring(3), dnasa.topology.path(3)]
    processes = [Process(sites, graph=graph) for sites, graph in zip(files, graphs, strict=True)]
    with pytest.raises(InputError, match=r"\w+ runs with --topology ring, lyon with --topology path: give every site the same"):
        processes[2].connect()


@pytest.mark.parametrize("last", [1, 2])  # with either, another of the two dials
def test_all_sites_must_list_the_sites_in_the_same_order(tmp_path: Path, last: int) -> None:
    files = local_sites(tmp_path, 3)[:2]
    order = [0, 2, 1] if last == 1 else [1, 0, 2]
    other = replace(files[1], sites=[files[1].sites[number] for number in order], own=order.index(1))
    processes = [Process(files[0], timeout=0.5), Process(other)]
    names = "berlin, lyon, paris" if last == 1 else "paris, berlin, lyon"
    with pytest.raises(InputError, match=f"paris runs with --sites {names} in .*, berlin with --sites berlin, paris, lyon"):
        processes[0].connect()


def test_a_site_that_waits_says_who_is_missing_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dnasa.networks.members.SOON", 1.0)
    berlin, paris, *_ = local_sites(tmp_path, 4, hidden=("lyon",))
    make_authority(tmp_path / "others")
    make_site(tmp_path / "others", "paris")
    processes = [Process(berlin), Process(replace(paris, keys=tmp_path / "others" / "paris"))]
    deadline = time.monotonic() + 2
    with pytest.warns(UserWarning, match="berlin has waited 1 s to start") as warned:
        assert not processes[0].members._wait_for_view(lambda: time.monotonic() < deadline, "start")
    (text,) = (str(warning.message) for warning in warned)
    addresses = [site.address for site in berlin.sites]
    assert f"paris ({addresses[1]}: its certificate is refused: " in text
    assert "lyon (it has not dialed this site)" in text
    assert f"oslo ({addresses[3]}: nothing listens there)" in text


def test_a_port_that_is_in_use_is_named(tmp_path: Path) -> None:
    one, *_ = local_sites(tmp_path, 2)
    Process(one)
    with pytest.raises(InputError, match=r"Cannot listen on .* Stop what listens there"):
        Process(one)


def test_sites_and_nodes_are_equally_many(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There are 2 sites, and the graph has 3 nodes"):
        site_engine.connect(dnasa.topology.ring(3), local_sites(tmp_path, 2)[0], 1, 20.0, None)
    with pytest.raises(InputError, match="wait_for must be a majority of the 2 sites, 2 to 2, not 1"):
        site_engine.connect(dnasa.topology.ring(2), local_sites(tmp_path, 2)[0], 1, 20.0, None, wait_for=1)
    many = replace(local_sites(tmp_path, 2)[0], sites=[Site(f"site-{k}") for k in range(21)])
    with pytest.raises(InputError, match="at most 20 agree"):
        site_engine.connect(dnasa.topology.ring(21), many, 1, 20.0, None)


def test_sites_that_call_different_things_are_told_so(tmp_path: Path) -> None:
    one, two = processes_of(tmp_path, 2)
    in_threads(one.connect, two.connect)
    one.members.note("a network", "step 7")
    two.members.note("a network", "averaged()")
    with pytest.raises(InputError, match=r"berlin is in step 7, paris in averaged\(\)\. .*equally often.*optim\.Join"):
        wait_until(one.members.check)


MEMBER, BALLOT = [2, "b"], [1, 0]
STATE: dict[str, Any] = {
    "vote": [MEMBER, [3, [[0, "a"], MEMBER]], BALLOT, [BALLOT, [MEMBER]], None, False, []],
    "admits": True,
    "hears": [0, 2],
    "exchanges": 7,
}


def test_what_a_site_says_of_itself_is_read_as_it_was_written() -> None:
    state = SiteState.model_validate_json(json.dumps(STATE))
    assert state.vote.view.members == ((0, "a"), (2, "b"))
    assert state.vote.accepted == ((1, 0), ((2, "b"),))
    assert (state.joining, state.admits, state.hears, state.exchanges) == (False, True, frozenset((0, 2)), 7)
    assert SiteState.model_validate_json(state.model_dump_json()) == state


@pytest.mark.parametrize(
    "wrong",
    [
        {"vote": None},
        {"vote": [MEMBER, [3, [0, 1]]]},
        {"vote": [MEMBER, [3, []], "first"]},
        {"hears": ["a"]},
        {"calls": {"1": 1}},
        {"calls": {"1": "x" * 201}},
        {"exchanges": -1},
    ],
)
def test_a_damaged_state_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="SiteState"):
        SiteState.model_validate_json(json.dumps(STATE | wrong))
