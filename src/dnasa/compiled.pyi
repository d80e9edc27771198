from typing import Any

def prepare(
    x: Any,
    u: Any,
    z: Any,
    v: Any,
    eta: Any,
    alpha: Any,
    beta: Any,
    norms: Any,
    starts: Any,
    neighbours: Any,
    weights: Any,
    scratch: Any,
    squares: Any,
    runs: int,
    nodes: int,
    dim: int,
    width: int,
    kind: int,
    is_double: bool,
    /,
) -> Any: ...
def step(prepared: Any, g: Any, /) -> bool: ...
def measure(prepared: Any, /) -> bool: ...
def learn(
    x: Any,
    y: Any,
    m: Any,
    z: Any,
    g: Any,
    start: Any,
    step: Any,
    beta: Any,
    S: Any,
    A: Any,
    r: Any,
    scratch: Any,
    runs: int,
    nodes: int,
    dim: int,
    every: int,
    is_double: bool,
    /,
) -> None: ...
def normals(words: Any, out: Any, streams: int, length: int, is_double: bool, /) -> None: ...
def integers(words: Any, halves: Any, out: Any, streams: int, low: int, range: int, /) -> None: ...
def least_squares(
    pairs: Any, x: Any, g: Any, runs: int, nodes: int, batch: int, dim: int, is_double: bool, /
) -> None: ...
def encode_residues(
    numbers: Any,
    seen: Any,
    payloads: Any,
    rows: int,
    width: int,
    bits: int,
    offset: float,
    factor: float,
    is_double: bool,
    /,
) -> None: ...
def mix_residues(
    numbers: Any,
    own: Any,
    theirs: Any,
    weights: Any,
    out: Any,
    seen: Any,
    runs: int,
    nodes: int,
    width: int,
    bits: int,
    offset: float,
    factor: float,
    is_double: bool,
    /,
) -> None: ...
def threads(numbers: int, /) -> int: ...
