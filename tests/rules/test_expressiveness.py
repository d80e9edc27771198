"""Every capability of the interface in every setting for a rule."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import needs_mpi
from expressive_rules import CASES, DIM, NODES, gradient, problem, run
from faults import in_child
from launching import JOBS, launch_script, stdout_of
from thread_network import run_threads

import dnasa
from dnasa import core, rules
from dnasa.core import Array, Messages
from dnasa.problems import Custom
from dnasa.rules import schedules
from dnasa.runs.history import Record

JOB = str(JOBS / "distributed_job.py")
cases = pytest.mark.parametrize("name", CASES)


@cases
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_give_the_simulators_iterates(name: str, processes: int) -> None:
    case = CASES[name]
    expected = run(name, evaluate=10)
    for real in run_threads(case.graph(NODES), lambda n: run(name, n, evaluate=10), processes, case.channel):
        np.testing.assert_allclose(real.x, expected.x, rtol=0, atol=1e-10)
        columns = ["step", "consensus", "messages", "bytes"]
        np.testing.assert_allclose(real.history[columns], expected.history[columns], rtol=1e-8, atol=1e-12)


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("engine", [pytest.param("mpi", marks=(needs_mpi, pytest.mark.long)), "torch"])
def test_real_processes_give_the_simulators_iterates(engine: str) -> None:
    out = stdout_of(launch_script(engine, 2, JOB, "expressive", engine))
    assert [line for line in out.splitlines() if line in CASES] == list(CASES)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.rule().can_overlap])
@pytest.mark.parametrize("processes", [None, 2])
def test_hidden_exchanges_change_no_bit(name: str, processes: int | None) -> None:
    case = CASES[name]
    if processes is None:
        hidden, plain = run(name, overlap=True, evaluate=10), run(name, evaluate=10)
    else:
        hidden, plain = (
            run_threads(case.graph(NODES), lambda n, o=o: run(name, n, overlap=o, evaluate=10), processes, case.channel)[0]
            for o in (True, False)
        )
    np.testing.assert_array_equal(hidden.x, plain.x)
    assert hidden.history.drop(columns="seconds").equals(plain.history.drop(columns="seconds"))


@cases
@pytest.mark.parametrize("overlap", [False, True])
def test_a_killed_run_is_resumed_to_the_same_bits(name: str, overlap: bool, tmp_path: Path) -> None:
    if overlap and not CASES[name].rule().can_overlap:
        pytest.skip("cannot be hidden")
    options: dict[str, Any] = {
        "folder": tmp_path / "run",
        "record": Record(checkpoint_every=7),
        "overlap": overlap,
        "evaluate": 10,
    }
    expected = run(name, overlap=overlap, evaluate=10)

    def killed() -> None:
        def fatal(x: Array, node: int, rng: np.random.Generator, calls: list[int] = [0]) -> Array:  # noqa: B006
            calls[0] += 1
            if calls[0] == 26 * NODES * len(CASES[name].rule().gradient_points(CASES[name].rule().init(np.zeros((1, 1))), 1)):
                os.kill(os.getpid(), signal.SIGKILL)
            return gradient(x, node, rng)

        run(name, task=Custom(fatal, start=np.zeros(DIM), fingerprint="quadratic"), **options)

    assert in_child(killed) == -signal.SIGKILL
    resumed = run(name, resume=True, **options)
    assert "Resumed from the checkpoint of step" in (tmp_path / "run" / "log.txt").read_text()
    np.testing.assert_array_equal(resumed.x, expected.x)
    columns = ["step", "consensus", "messages", "bytes"]
    np.testing.assert_array_equal(resumed.history[columns], expected.history[columns])


class Bare(NamedTuple):
    x: core.Array


def one(mixed: Messages) -> Bare:
    (x,) = mixed
    return Bare(x)


def sending(messages: Callable[..., Messages]) -> core.Rule:
    return core.Rule(Bare, lambda s, g, t: (messages(s, g), s), lambda s, mixed: s._replace(x=mixed[0]))


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (sending(lambda s, g: (s.x[..., :1, :],)), "Message 0 of this rule is ndarray of shape"),
        (sending(lambda s, g: (s.x.astype(np.float32),)), "float32; it must be like x"),
        (sending(lambda s, g: s.x), "must return two things: a tuple of messages"),
        (
            core.Rule(Bare, lambda s, g, t: ((s.x, s.x), s), lambda s, m: one(m)),
            "receive, with the 2 messages sent, raised ValueError",
        ),
        (
            core.Rule(Bare, lambda s, g, t: ((s.x,), s), lambda s, mixed: Bare(mixed[0][..., :1])),
            "After a step x of this rule is",
        ),
        (
            core.Rule(Bare, lambda s, g, t: ((s.x,), s), lambda s, m: Bare(*m), answer=lambda s: s.x[..., 0]),
            "answer must have the shape of x",
        ),
        (core.Rule(lambda x: x, lambda s, g, t: ((s,), s), lambda s, m: m[0]), "init must return a NamedTuple"),
        (
            core.Rule(Bare, lambda s, g, t: ((s.x,), s), lambda s, m: None),
            "^.+: A rule's receive must return its Bare, not NoneType",
        ),
        (core.Rule(Bare, lambda s, g, t: ((s.x,), s), lambda s, m: Bare(m)), r"must return an array as x, not a tuple"),
        (sending(lambda s, g: (s.x,))._replace(points=lambda s, t: (s.x[..., :1],)), "points must return a tuple"),
        (rules.dsgd, "A function that makes rules is no rule"),
    ],
)
def test_a_wrong_rule_gets_a_clear_line(rule: Any, words: str) -> None:
    with pytest.raises(core.InputError, match=words) as caught:
        dnasa.solve(problem(), CASES["tracking"].graph(NODES), rule, steps=3)
    assert "\n" not in str(caught.value)


def test_what_is_no_topology_codec_or_rule_is_named() -> None:
    with pytest.raises(core.InputError, match=r"such as topology\.ring\(8\)"):
        dnasa.solve(problem(), "ring", steps=3)
    with pytest.raises(core.InputError, match="CHOCO needs a Codec"):
        dnasa.channels.choco("sign", 0.3)  # type: ignore[arg-type]
    with pytest.raises(core.InputError, match="push_sum wraps a Rule"):
        rules.push_sum("dsgd")  # type: ignore[arg-type]
    radius = rules.adanasa(*schedules.adanasa(4, 10), layout=(("x", (3,)),))
    with pytest.raises(core.InputError, match="cannot be used with push-sum"):
        rules.push_sum(radius)


def test_a_rule_that_never_exchanges_says_so() -> None:
    alone = core.Rule(Bare, lambda s, g, t: ((), Bare(s.x - 0.1 * g[0])), lambda s, mixed: s)
    with pytest.warns(UserWarning, match="sent no message in 20 steps: the nodes trained alone"):
        dnasa.solve(problem(), CASES["tracking"].graph(NODES), alone, steps=20)
