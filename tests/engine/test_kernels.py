"""The extension module reads and writes no memory outside its arguments: wrong ones raise ValueError."""

import functools
import operator
import platform
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike

from dnasa import problems
from dnasa.arrays import compiled
from dnasa.core import Array
from dnasa.problems.least_squares import LeastSquares

pytestmark = pytest.mark.skipif(compiled is None, reason="needs a C compiler when it is installed")
RUNS, NODES, DIM, WIDTH = 2, 4, 50, 16
STATE = ("x", "u", "z", "v")
PLAIN, NORMALIZED, SCALED = range(3)


def step_arguments(threads: int = 1, dtype: DTypeLike = np.float64) -> dict[str, Any]:
    """Valid arguments of `prepare`, in order."""
    generator, index = np.random.default_rng(0), np.arange(NODES)
    neighbours = np.stack([index, (index + 1) % NODES, (index - 1) % NODES], axis=1)
    return {
        **{name: generator.standard_normal((RUNS, NODES, DIM)).astype(dtype) for name in STATE},
        "eta": np.full((RUNS, NODES), 0.1),
        "alpha": np.full(RUNS, 0.5),
        "beta": np.full(RUNS, 0.9),
        "norms": np.empty((RUNS, NODES)),
        "starts": np.arange(0, 3 * NODES + 1, 3, dtype=np.int32),
        "neighbours": neighbours.ravel().astype(np.int32),
        "weights": np.full(3 * NODES, 1 / 3, dtype),
        "scratch": np.empty((threads, 3, NODES, WIDTH), dtype),
        "squares": np.empty((RUNS, -(-DIM // WIDTH), NODES)),
        "runs": RUNS,
        "nodes": NODES,
        "dim": DIM,
        "width": WIDTH,
        "kind": NORMALIZED,
        "is_double": dtype == np.float64,
    }


ARRAYS = [name for name, value in step_arguments().items() if isinstance(value, np.ndarray)]
HUGE = 2**62


def prepare(**changes: Any) -> Any:
    return compiled.prepare(*(step_arguments() | changes).values())


@pytest.mark.parametrize("kind", [PLAIN, NORMALIZED, SCALED])
def test_valid_arguments_are_accepted(kind: int) -> None:
    prepared = prepare(kind=kind)
    assert compiled.measure(prepared)
    assert compiled.step(prepared, np.ones((RUNS, NODES, DIM)))


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("name", ARRAYS)
def test_prepare_refuses_an_array_that_does_not_fit(name: str) -> None:
    array = step_arguments()[name]
    flat, whole = array.ravel(), array.dtype == np.int32
    wrong: list[Any] = [flat[:-1], np.repeat(flat, 2)[::2], None, 3, b"text"]
    wrong += [array.astype(np.int16 if whole else np.float32), array.view(np.float32 if whole else np.int64)]
    wrong += [np.concatenate([flat, flat])] if name != "scratch" else []
    wrong += [read_only(array.copy())] if name in (*STATE, "norms", "scratch", "squares") else []
    for each in wrong:
        with pytest.raises(ValueError, match=name):
            prepare(**{name: each})


ROWS = [[3, 3, 6, 9, 12], [0, 6, 3, 9, 12], [0, 4, 6, 9, 12], [0, 3, 6, 9, 15], [0, 3, 6, 9, -12], [0, -(2**31), 6, 9, 12]]
NEIGHBOURS = [np.where(np.arange(12) == 5, node, 0) for node in (-1, NODES, 2**31 - 1, -(2**31))]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({name: n}, "size|width") for name in ("runs", "nodes", "dim", "width") for n in (0, -1, -HUGE, HUGE, 2**63 - 1)),
        ({"runs": 2**32, "nodes": 2**31, "dim": 2}, "size"),
        ({"runs": -2, "nodes": -4}, "size"),
        *(({"kind": kind}, "kind") for kind in (-1, 3)),
        *(({"neighbours": nodes.astype(np.int32)}, "neighbours") for nodes in NEIGHBOURS),
        *(({"starts": np.array(starts, np.int32)}, "starts|neighbours") for starts in ROWS),
    ],
)
def test_prepare_refuses_sizes_kinds_and_rows_that_do_not_fit(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prepare(**changes)


@pytest.mark.parametrize(
    "g",
    [
        np.ones((RUNS, NODES, DIM - 1)),
        np.ones((RUNS, NODES, DIM), np.float32),
        np.ones((RUNS, NODES, 2 * DIM), np.float32),
        np.ones((RUNS, NODES, 2 * DIM))[:, :, ::2],
        None,
    ],
)
def test_a_step_refuses_a_gradient_of_another_size_or_type(g: Array) -> None:
    arguments = step_arguments()
    prepared, before = compiled.prepare(*arguments.values()), arguments["x"].copy()
    with pytest.raises(ValueError, match="g "):
        compiled.step(prepared, g)
    np.testing.assert_array_equal(arguments["x"], before)


def test_a_step_refuses_what_was_not_prepared() -> None:
    for wrong in (None, np.ones(3), np.ones(3).__array_struct__):
        with pytest.raises(ValueError, match="PyCapsule"):
            compiled.step(wrong, np.ones((RUNS, NODES, DIM)))
        with pytest.raises(ValueError, match="PyCapsule"):
            compiled.measure(wrong)


@pytest.mark.parametrize("kind", [NORMALIZED, SCALED])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_steps_do_not_depend_on_the_number_of_threads(dtype: type[np.floating[Any]], kind: int) -> None:
    one, three = (step_arguments(threads, dtype) | {"kind": kind} for threads in (1, 3))
    for arguments in (one, three):
        arguments["z"] = abs(arguments["z"])  # second moments, where AdaNASA steps
    g = np.random.default_rng(1).standard_normal((6, RUNS, NODES, DIM)).astype(dtype)
    for arguments in (one, three):
        prepared = compiled.prepare(*arguments.values())
        compiled.measure(prepared)
        for t in range(len(g)):
            compiled.step(prepared, g[t])
    for name in STATE:
        assert np.isfinite(one[name]).all()
        np.testing.assert_array_equal(one[name], three[name])


# On x86-64 the kernels are compiled for several instruction sets. Each must have the bits of this literal computation, which
# needs that no product is fused with a sum.
unfused = pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors fuse products with sums")


def ordered_dot(a: np.ndarray, b: np.ndarray) -> Any:
    """One partial sum for each number of a vector of 64 bytes, added in halves, then the rest one by one."""
    lanes, products = 64 // a.itemsize, a * b
    whole = len(a) // lanes * lanes
    sums = np.zeros(lanes, a.dtype)
    for block in products[:whole].reshape(-1, lanes):
        sums = sums + block
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return functools.reduce(operator.add, products[whole:], sums[0])


def literal_step(x: Array, u: Array, z: Array, v: Array, g: Array, eta: Any, alpha: Any, weights: Any) -> list[Array]:
    """D-NASA with three equal weights on the ring; norms are sums over tiles."""
    starts = range(0, DIM, WIDTH)
    squares = [sum(float(ordered_dot(z[i, k : k + WIDTH], z[i, k : k + WIDTH])) for k in starts) for i in range(NODES)]
    scale = (eta / np.sqrt(squares))[:, None].astype(x.dtype)
    tracked = u + g - v
    sent = (x - scale * z, tracked, (1 - alpha) * z + alpha * tracked)
    return [weights * a + weights * np.roll(a, -1, 0) + weights * np.roll(a, 1, 0) for a in sent]


@unfused
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_step_has_the_bits_of_a_literal_one(dtype: type[np.floating[Any]]) -> None:
    arguments = step_arguments(dtype=dtype)
    g = np.random.default_rng(1).standard_normal((RUNS, NODES, DIM)).astype(dtype)
    x, u, z, v = (arguments[name][1].copy() for name in STATE)
    expected = literal_step(x, u, z, v, g[1], 0.1, dtype(0.5), dtype(1 / 3))
    prepared = compiled.prepare(*arguments.values())
    compiled.measure(prepared)
    compiled.step(prepared, g)
    for name, literal in zip(STATE, [*expected, g[1]], strict=True):
        np.testing.assert_array_equal(arguments[name][1], literal)


@unfused
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dim", [1, 7, 8, 16, 100])
def test_a_gradient_of_least_squares_has_the_bits_of_a_literal_one(dim: int, dtype: type[np.floating[Any]]) -> None:
    generator = np.random.default_rng(dim)
    rows, x = generator.standard_normal((3, dim + 1)).astype(dtype), generator.standard_normal(dim).astype(dtype)
    expected = np.zeros(dim, dtype)
    for row in rows:
        expected = expected + 2 * (ordered_dot(row[:-1], x) - row[-1]) / dtype(3) * row[:-1]
    g = np.empty((1, 1, dim), dtype)
    compiled.least_squares(rows[None], x[None, None], g, 1, 1, 3, dim, dtype == np.float64)
    np.testing.assert_array_equal(g[0, 0], expected)


def least_squares_arguments() -> dict[str, Any]:
    return {
        "pairs": np.ones((4, 3, 6)),
        "x": np.ones((2, 4, 5)),
        "g": np.empty((2, 4, 5)),
        "runs": 2,
        "nodes": 4,
        "batch": 3,
        "dim": 5,
        "is_double": True,
    }


@pytest.mark.parametrize("name", ["pairs", "x", "g"])
def test_least_squares_refuses_an_array_of_another_size_or_type(name: str) -> None:
    array = least_squares_arguments()[name]
    wrong = (array.ravel()[:-1], array.astype(np.float32), array.view(np.int64), np.repeat(array, 2, axis=0), None)
    for each in wrong:
        with pytest.raises(ValueError, match=name):
            compiled.least_squares(*(least_squares_arguments() | {name: each}).values())


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("spike", [False, True])
def test_least_squares_is_the_same_without_a_compiler(batch: int, spike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).standard_normal((3, 2, 6, 30))

    def gradients() -> Array:
        problem = LeastSquares(dim=30, batch=batch, spike=spike)
        return np.stack([problem.gradient(x, range(6), [0, 5], t) for t in (0, 1, 150)])

    fast = gradients()
    monkeypatch.setattr(problems.least_squares, "compiled", None)
    np.testing.assert_allclose(gradients(), fast, rtol=1e-9, atol=1e-12)


WORDS = np.arange(12, dtype=np.uint64)


@pytest.mark.parametrize(
    ("words", "out", "streams", "length", "is_double"),
    [
        (WORDS[:-1], np.empty((5, 3, 2)), 3, 5, True),
        (WORDS.astype(np.uint32), np.empty((5, 3, 2)), 3, 5, True),
        (WORDS, np.empty((5, 3, 2), np.float32), 3, 5, True),
        (WORDS, np.empty((5, 3, 2)), 3, 5, False),
        (WORDS, np.empty(29), 3, 5, True),
        (WORDS, bytes(240), 3, 5, True),
        (WORDS, np.empty((5, 3, 2)), 0, 5, True),
        (WORDS, np.empty((5, 3, 2)), -3, -5, True),
        (WORDS, np.empty((5, 3, 2)), 3, HUGE, True),
        (WORDS, np.empty((5, 3, 2)), HUGE, 5, True),
    ],
)
def test_normals_refuses_arrays_that_do_not_fit(words: Array, out: Any, streams: int, length: int, is_double: bool) -> None:
    with pytest.raises(ValueError, match=r"words|out"):
        compiled.normals(words, out, streams, length, is_double)


def residues(kernel: str, **changes: Any) -> None:
    """Two runs of three rows of 33 numbers: 2 exponents and 17 bytes in each."""
    numbers, seen, payload = np.ones((6, 33), np.float32), np.ones((6, 2), np.float32), np.zeros((6, 19), np.uint8)
    arrays: dict[str, Any] = {"numbers": numbers, "seen": seen, "payloads": payload, "rows": 6}
    if kernel == "mix_residues":
        weights = np.ones(3, np.float32)
        arrays = {"numbers": numbers, "own": payload, "theirs": payload, "weights": weights, "out": 0 * numbers}
        arrays |= {"seen": seen, "runs": 2, "nodes": 3}
    arguments = arrays | {"width": 33, "bits": 4, "offset": 0.5, "factor": 1.5, "is_double": False}
    assert changes.keys() <= arguments.keys()
    getattr(compiled, kernel)(*(arguments | changes).values())


@pytest.mark.parametrize(
    ("kernel", "changes", "words"),
    [
        *(
            case
            for kernel in ("encode_residues", "mix_residues")
            for case in (
                (kernel, {"numbers": np.ones(197, np.float32)}, "numbers has 197"),
                (kernel, {"is_double": True}, "numbers is not an array of float64"),
                (kernel, {"seen": np.ones(11, np.float32)}, "seen has 11"),
                (kernel, {"bits": 8}, "has 114"),
                (kernel, {"bits": 3}, "4 or 8 bits"),
                (kernel, {"width": -33}, "not positive"),
                (kernel, {"width": HUGE}, "too large"),
            )
        ),
        ("encode_residues", {"payloads": np.zeros(113, np.uint8)}, "payloads has 113"),
        ("encode_residues", {"payloads": bytes(114)}, "payloads is not a contiguous writable"),
        ("encode_residues", {"rows": -6, "width": -33}, "not positive"),
        ("mix_residues", {"own": np.zeros(113, np.uint8)}, "own has 113"),
        ("mix_residues", {"theirs": np.zeros(115, np.uint8)}, "theirs has 115"),
        ("mix_residues", {"theirs": np.zeros(114, np.int8)}, "theirs is not an array of uint8"),
        ("mix_residues", {"weights": np.ones(2, np.float32)}, "weights has 2"),
        ("mix_residues", {"out": np.ones(197, np.float32)}, "out has 197"),
        ("mix_residues", {"runs": -2, "nodes": -3}, "not positive"),
        ("mix_residues", {"nodes": HUGE}, "too large"),
    ],
)
def test_residues_refuse_arrays_that_do_not_fit(kernel: str, changes: dict[str, Any], words: str) -> None:
    residues(kernel)
    with pytest.raises(ValueError, match=words):
        residues(kernel, **changes)


def radius_arguments() -> dict[str, Any]:
    state = {name: np.ones((2, 3, 10)) for name in "xymzg"}
    sampled: dict[str, Any] = {"start": np.ones((2, 3, 4)), "step": np.ones((2, 3, 1)), "beta": np.ones((2, 1, 1))}
    learned = {"S": np.ones((2, 3, 4)), "A": np.ones((2, 3, 1)), "scratch": np.ones((2, 3, 4))}
    return state | sampled | learned | {"runs": 2, "nodes": 3, "dim": 10, "every": 3, "is_double": True}


def test_arrays_of_the_radius_that_do_not_fit_are_refused() -> None:
    compiled.learn(*radius_arguments().values())
    for name, value in radius_arguments().items():
        wrong = [value[..., :0], value.astype(np.float32), value[0].tolist()] if isinstance(value, np.ndarray) else []
        for each in wrong or [-1, 0] * (name != "is_double"):
            with pytest.raises((ValueError, TypeError)):
                compiled.learn(*(radius_arguments() | {name: each}).values())
