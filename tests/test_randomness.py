"""What a node draws is a function of (seed, node, step) alone, and its statistics are those of independent draws."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnasa import randomness
from dnasa.arrays import compiled
from dnasa.core import Array
from dnasa.problems.least_squares import LeastSquares
from dnasa.randomness import Normals, Samples, Streams


def draws(size: int = 3) -> Samples:
    return Samples("test", lambda generator, node, seed, length: generator.standard_normal((length, size)), size)


@given(
    seed=st.integers(0, 2**40),
    node=st.integers(0, 10**6),
    t=st.integers(0, 10**6),
    others=st.lists(st.integers(0, 100), unique=True, max_size=4),
)
@settings(max_examples=40, deadline=None)
def test_a_sample_depends_on_seed_node_and_step_alone(seed: int, node: int, t: int, others: list[int]) -> None:
    alone = draws().at([seed], [node], t)[0, 0]
    nodes = [*others, node]
    shared = draws()
    for earlier in (t + 500, t // 2, t):
        among = shared.at([1, seed], nodes, earlier)
    np.testing.assert_array_equal(among[1, -1], alone)


def test_streams_do_not_repeat_or_correlate() -> None:
    samples = draws(100)
    drawn = np.stack([samples.at(range(5), range(20), t) for t in range(130)])
    assert abs(drawn.mean()) < 0.01
    assert abs(drawn.std() - 1) < 0.01
    flat = drawn.transpose(1, 2, 0, 3).reshape(100, -1)
    correlations = np.corrcoef(flat) - np.eye(100)
    assert np.abs(correlations).max() < 6 / np.sqrt(flat.shape[1])
    assert len(np.unique(drawn)) == drawn.size


def test_the_streams_of_the_package_are_those_of_earlier_versions() -> None:
    source = "".join(path.read_text() for path in Path(randomness.__file__).parent.rglob("*.py"))
    used = set(re.findall(r'(?:Streams|Samples|Normals|Generators)\(\s*"([^"]+)"', source))
    assert {"batch", "dropped", "least", "custom"} <= used
    for purpose in used:
        assert Streams(purpose).purpose == int.from_bytes(purpose.encode()[:8].ljust(8), "little")
    assert Streams("batch").at(3, 1, 2).integers(2**63) == 8144468497534342045


def test_a_problem_samples_the_same_for_a_part_of_the_nodes() -> None:
    problem, other = LeastSquares(dim=5), LeastSquares(dim=5)
    x = np.ones((1, 2, 8, 5))
    whole = problem.gradient(x, range(8), [3, 4], 77)
    part = other.gradient(x[:, :, 2:5], range(2, 5), [3, 4], 77)
    np.testing.assert_array_equal(whole[:, :, 2:5], part)


@pytest.mark.parametrize("rounded", [False, True])
def test_streams_hashed_together_equal_those_hashed_one_by_one(rounded: bool) -> None:
    streams, nodes = Streams("one", rounded), [3, 10**9, 0]
    together = [generator.integers(2**63, size=5).tolist() for generator in streams.each(7, nodes, 2)]
    assert together == [streams.at(7, node, 2).integers(2**63, size=5).tolist() for node in nodes]


@pytest.mark.skipif(compiled is None, reason="needs a C compiler when it is installed")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 7), (1,), (40, 30)])
def test_normals_are_the_same_without_a_compiler(dtype: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> Array:
        return Normals("test", shape, np.dtype(dtype)).at([4, 2**40], range(3, 6), 1000)

    fast = drawn()
    monkeypatch.setattr(randomness, "compiled", None)
    np.testing.assert_array_equal(drawn(), fast)


@pytest.mark.skipif(compiled is None, reason="needs a C compiler when it is installed")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normals_are_the_same_however_many_steps_are_drawn_at_a_time(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(steps: list[int]) -> Array:
        normals = Normals("test", (7,), np.dtype(dtype))
        return np.stack([normals.at([4], range(3), t).copy() for t in steps])

    steps = [0, 1, 2, 63, 64, 62, 5, 69, 65, 200, 201]
    whole = drawn(steps)
    for at_once in (1, 3 * 7 * 2, 3 * 7 * 5):
        monkeypatch.setattr(randomness, "AT_ONCE", at_once)
        np.testing.assert_array_equal(drawn(steps), whole)
