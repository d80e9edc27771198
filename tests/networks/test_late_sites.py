"""Sites that do not wait for each other: held to the simulator, with slow, killed and disturbed ones."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replaying import Log, OwnThread, Recorded, replay
from test_site_iterates import connected, in_threads

import dnasa
from dnasa import problems, topology
from dnasa.channels.pairs import Offer
from dnasa.clock import with_clock
from dnasa.communication import Network
from dnasa.core import InputError, RunError
from dnasa.engine import late as engine
from dnasa.networks import with_timing
from dnasa.networks.simulated import connect
from dnasa.networks.sites import OFFER
from dnasa.rules import registry
from dnasa.runs.snapshots import Sent, Snapshot

RING = topology.ring(4)
TARGETS = np.random.default_rng(0).normal(size=(4, 3)) * 3
FAST, SLOW = 0.002, 0.01


def pull(x: np.ndarray, node: int, rng: np.random.Generator) -> np.ndarray:
    return x - TARGETS[node] + 0.1 * rng.normal(size=3)


def paced(seconds: Any) -> Any:
    """Nodes whose gradients take these seconds."""

    def gradient(x: np.ndarray, node: int, rng: np.random.Generator) -> np.ndarray:
        time.sleep(seconds[node])
        return pull(x, node, rng)

    return problems.Custom(gradient, start=np.zeros(3), fingerprint="pull")


def solve(network: Network, seconds: Any = (FAST, SLOW, FAST, FAST), rule: str = "dnasa", late: int = 2, **options: Any) -> Any:
    given: Any = {"steps": 60, "progress": False} | options
    return dnasa.solve(paced(seconds), with_timing(network, late=late), rule, **given)


def simulated(rule: str, steps: int, late: int) -> engine.Late:
    network = with_clock(connect(RING), {"compute": 1, "bandwidth": 1, "latency": 1})
    x, quiet = np.zeros((1, 1, 4, 3)), paced([0] * 4)
    made = registry.groups(registry.variants(rule), 4, steps, x, (("x", (3,)),))[0].rule
    snapshot = Snapshot(made.init(x), {}, Sent())
    return engine.Late(made, network, snapshot, late, steps, lambda x, i, step: quiet.gradient(x, range(i, i + 1), [0], step))


def recorded(monkeypatch: pytest.MonkeyPatch, log: Log) -> OwnThread:
    own = OwnThread()
    monkeypatch.setattr(engine, "Pairs", lambda weights, late: Recorded(weights, late, own.node, log))
    return own


def solve_all(made: list[Network], own: OwnThread, **options: Any) -> list[Any]:
    def work(network: Network) -> Any:
        own.node = network.rank
        return solve(network, **options)

    return in_threads(work, made)


def members_of(network: Network) -> Any:
    return network.processes.membership.survivors.__self__.members  # type: ignore[union-attr]


@pytest.mark.parametrize("rule", ["dnasa", "adanasa"])
def test_a_real_run_is_the_simulated_one_with_the_same_order_of_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    twin, log = simulated(rule, 60, 2), Log()
    with connected(tmp_path, RING) as made:
        results = solve_all(made, recorded(monkeypatch, log), rule=rule)
    replay(twin, log)
    counts = [node.pairs.own_steps for node in twin.nodes]
    assert max(counts) > min(counts)
    for result in results:
        assert (result.x == twin.x[0, 0]).all()
        assert result.history.step.tolist() == [0, 60]
        assert result.history.messages.tolist() == [0, twin.sent.messages]
        assert result.history.bytes.tolist() == [0, twin.sent.bytes]


@pytest.mark.long
def test_connections_that_break_again_and_again_change_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin, log = simulated("dnasa", 60, 2), Log()
    with connected(tmp_path, RING) as made:
        links = [link for network in made for link in members_of(network).links.values()]
        ended, breaks = threading.Event(), 0

        def disturb() -> None:
            nonlocal breaks
            while not ended.wait(0.2):
                link = random.choice(links)
                breaks += link.connected
                link.break_off()

        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            results = solve_all(made, recorded(monkeypatch, log))
        finally:
            ended.set()
            thread.join()
        assert {members_of(network).view.number for network in made} == {1}
    assert breaks
    replay(twin, log)
    assert all((result.x == twin.x[0, 0]).all() for result in results)


def test_a_slow_site_does_not_slow_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    with connected(tmp_path, RING) as made:
        solve_all(made, recorded(monkeypatch, log), seconds=[0.02, 0.1, 0.02, 0.02], late=8)
    counts = np.bincount([i for i, what, *_ in log if what == "computed"])
    assert min(counts[[0, 2, 3]]) > 2.5 * counts[1]


def test_a_site_that_is_killed_does_not_stop_the_others(tmp_path: Path) -> None:
    with connected(tmp_path, RING) as made:

        def work(network: Network) -> Any:
            steps = 0

            def dying(x: np.ndarray, node: int, rng: np.random.Generator) -> np.ndarray:
                nonlocal steps
                steps += 1
                if node == 2 and steps == 20:
                    members_of(network).mesh.close()
                    raise KeyboardInterrupt
                time.sleep(FAST)
                return pull(x, node, rng)

            try:
                problem = problems.Custom(dying, start=np.zeros(3), fingerprint="pull")
                return dnasa.solve(problem, with_timing(network, late=2), "dsgt", eta=0.1, steps=400, progress=False)
            except KeyboardInterrupt:
                return None

        results = in_threads(work, made)
    assert results.pop(2) is None
    for result in results:
        assert result.settings["lost"][0]["nodes"] == [2]
        assert result.history.nodes.tolist() == [4, 3]
        assert result.x == pytest.approx(results[0].x, abs=0)
        assert result.x.mean(0) == pytest.approx(TARGETS[[0, 1, 3]].mean(0), abs=0.3)


@pytest.mark.parametrize(
    ("number", "steps", "values", "reason"),
    [
        (1, 0, [0] * 3, "it sent offer 1 of step 0 after 0 offers"),
        (0, np.nan, [0] * 3, "it sent offer 0 of step nan after 0 offers"),
        (0, 0, [np.nan] * 3, "it sent numbers that are not finite"),
        (0, 0, [1e20] * 3, "it sent numbers of size"),
        (0, 0, [0] * 4, "it sent 49 bytes where 41 were expected"),
    ],
)
def test_an_offer_that_makes_no_sense_names_its_sender(
    tmp_path: Path, number: int, steps: float, values: list[float], reason: str
) -> None:
    with connected(tmp_path, RING) as made:
        boxes: Any = [network.processes.mailbox() for network in made[:2]]  # type: ignore[misc]
        boxes[0].post(1, Offer(0, 0.0, (np.zeros((1, 1, 1, 3)),)))
        boxes[1].carrier.send_mail(0, OFFER.pack(False, number, steps) + np.array(values, float).tobytes())
        with pytest.raises(RunError, match=f"^paris is at fault: {reason}"):
            boxes[0].take(60)


def test_a_second_run_has_mail_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(tmp_path, RING) as made:
        for _ in range(2):
            twin, log = simulated("dnasa", 60, 2), Log()
            with monkeypatch.context() as patch:
                results = solve_all(made, recorded(patch, log))
            replay(twin, log)
            assert all((result.x == twin.x[0, 0]).all() for result in results)


def test_what_needs_waiting_is_refused(tmp_path: Path) -> None:
    words = "for sites without early stopping"
    with connected(tmp_path, RING) as made, pytest.raises(InputError, match=words):
        solve(made[0], record=dnasa.Record(patience=3))
