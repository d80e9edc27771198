"""The fingerprint of a problem identifies its gradient function and the data that this refers to."""

import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dnasa.arrays import crc32
from dnasa.core import Array, first_line
from dnasa.problems import Custom
from dnasa.problems.checksums import checksum

CURVATURE = np.array([1.0, 2.0, 3.0])


def scaled(factor: float, data: Array, x: Array, node: int, rng: np.random.Generator) -> Array:
    return factor * data[node] * x


def by_closure(data: Array, factor: float) -> Callable[..., Array]:
    return lambda x, node, rng: factor * data[node] * x


class Method:
    def __init__(self, data: Array):
        self.data, self.calls = data, 0

    def gradient(self, x: Array, node: int, rng: np.random.Generator) -> Array:
        self.calls += 1
        return self.data[node] * x

    def __call__(self, x: Array, node: int, rng: np.random.Generator) -> Array:
        return self.gradient(x, node, rng)


DATA, CHANGED = np.arange(4.0), np.arange(4.0) + 1
PAIRS: dict[str, Callable[[Array], Any]] = {
    "closure": lambda data: by_closure(data, 2.0),
    "list in a closure": lambda data: by_closure(data.tolist(), 2.0),
    "arrays in a list": lambda data: by_closure([data, data], 2.0),
    "torch tensor": lambda data: by_closure(torch.from_numpy(data), 2.0),
    "bfloat16 tensor": lambda data: by_closure(torch.from_numpy(data).bfloat16(), 2.0),
    "object": lambda data: by_closure(SimpleNamespace(data=data), 2.0),
    "partial": lambda data: partial(scaled, 2.0, data),
    "default": lambda data: lambda x, node, rng, data=data: data[node] * x,
    "method": lambda data: Method(data).gradient,
    "callable object": lambda data: Method(data),
    "nested function": lambda data: by_closure(by_closure(data, 1.0), 2.0),
    "number": lambda data: by_closure(DATA, float(data.sum())),
}


def prints(problem: Custom) -> tuple[str, str]:
    return problem.fingerprint, problem.node_fingerprint(0)


@pytest.mark.parametrize("name", PAIRS)
def test_a_gradient_function_on_other_data_has_another_fingerprint(name: str) -> None:
    make = PAIRS[name]
    one, same, other = (prints(Custom(make(data), np.zeros(2))) for data in (DATA, DATA.copy(), CHANGED))
    assert one == same
    assert one != other


def test_other_code_another_global_and_another_start_change_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    def quadratic(x: Array, node: int, rng: np.random.Generator) -> Array:
        return CURVATURE * x

    def cubic(x: Array, node: int, rng: np.random.Generator) -> Array:
        return CURVATURE * x * x

    start = np.zeros(3)
    one = prints(Custom(quadratic, start))
    assert one != prints(Custom(cubic, start))
    assert one != prints(Custom(quadratic, start + 1))
    monkeypatch.setitem(quadratic.__globals__, "CURVATURE", CURVATURE + 1)
    assert one != prints(Custom(quadratic, start))


def test_processes_with_different_data_of_their_own_agree_on_the_common_fingerprint() -> None:
    one, other = (Custom(by_closure(data, 2.0), np.zeros(2)) for data in (DATA, CHANGED))
    assert one.fingerprint == other.fingerprint


def test_counters_do_not_change_the_fingerprint() -> None:
    method = Method(DATA)
    before = prints(Custom(method.gradient, np.zeros(2)))
    method.calls = 7
    assert before == prints(Custom(method.gradient, np.zeros(2)))


def test_callables_without_code_and_functions_that_call_themselves_have_fingerprints() -> None:
    def recursive(x: Array, node: int, rng: np.random.Generator) -> Array:
        return recursive(x, node - 1, rng) if node else x

    recursive_list: list[Any] = []
    recursive_list.append(recursive_list)
    assert prints(Custom(np.clip, np.zeros(2))) != prints(Custom(np.where, np.zeros(2)))
    assert prints(Custom(recursive, np.zeros(2)))[1]
    assert checksum(recursive_list) == checksum(recursive_list)


def test_the_users_fingerprint_replaces_the_computed_one() -> None:
    one, other = (Custom(by_closure(data, 2.0), np.zeros(2), fingerprint="set 7") for data in (DATA, CHANGED))
    assert prints(one) == prints(other) == ("set 7", "")


def test_checksums_are_the_same_in_every_process(capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import numpy as np; from dnasa.problems.checksums import checksum\n"
        "def helper(x): return x in {'a', 'b', 'c', 'd'}\n"
        "def gradient(x, node, rng, *, data=np.arange(3)): return helper(x) or [DATA for _ in x if x in ((1, 2), 'e')]\n"
        "DATA = {'w': np.ones(2), 's': {'p', 'q', 'r'}}\n"
        "print(checksum(gradient))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    other = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    ).stdout
    exec(script, {})
    assert capsys.readouterr().out == other


def test_the_checksum_of_arrays_is_that_of_their_bytes() -> None:
    numbers = np.arange(12.0).reshape(3, 4).T
    tensor = torch.arange(5).bfloat16()
    bits = tensor.view(torch.int16).numpy()
    expected = zlib.crc32(numbers.tobytes() + bits.tobytes() + b"end")
    assert crc32(numbers, tensor, b"end") == expected
    assert crc32(tensor, b"end", start=crc32(torch.tensor(numbers))) == expected


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("Wrong.\nDetails"), "Wrong"), (KeyError(), "KeyError"), (RuntimeError("one line"), "one line")],
)
def test_the_first_line_of_an_error_says_something(error: Exception, line: str) -> None:
    assert first_line(error) == line
