"""Channels: what travels, what arrives, how many bytes it takes, what is remembered, and that rules still learn."""

from typing import Any

import numpy as np
import pytest
import torch
from command_line import refused
from conftest import needs_mpi
from launching import JOBS, launch_script, stdout_of
from numpy.typing import DTypeLike
from thread_network import run_threads

import dnasa
from dnasa import Result, channels, topology
from dnasa.channels import Codec, compression, sign, top_k
from dnasa.core import Array, InputError
from dnasa.networks import simulated
from dnasa.problems import Custom

CODECS = {"topk:0.1": top_k(0.1), "sign": sign()}
EVERY = [*CODECS, "moniqua", "moniqua:4"]
JOB = str(JOBS / "distributed_job.py")
every_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
GRAPH = topology.ring(4)
TARGETS = np.random.default_rng(1).standard_normal((4, 300))


def rows(width: int, dtype: DTypeLike = np.float32) -> Array:
    spread = np.exp(np.random.default_rng(1).standard_normal(width))
    return (spread * np.random.default_rng(0).standard_normal((2, 3, width))).astype(dtype)


def problem() -> Custom:
    return Custom(lambda x, node, rng: x - TARGETS[node], start=np.zeros(300), fingerprint="quadratic")


def solve(compress: Any = None, network: Any = None, **options: Any) -> Result:
    network = network or dnasa.connect(GRAPH, compress=compress)
    chosen: Any = {"steps": 60, "evaluate": [60], "progress": False} | options
    return dnasa.solve(problem(), network, "dsgt:constant", eta=0.05, **chosen)


@every_codec
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 5, 256, 257, 600])
def test_a_payload_has_the_bytes_it_says_and_brings_closer(codec: Codec, width: int, dtype: type[np.floating[Any]]) -> None:
    a = rows(width, dtype)
    payload = codec.encode(a, 3)
    arrived = codec.decode(payload, a, 3)
    assert payload.shape[-1] * payload.itemsize == codec.row_bytes(a)
    assert (arrived.shape, arrived.dtype) == (a.shape, a.dtype)
    assert (((a - arrived) ** 2).sum(-1) < (a**2).sum(-1)).all()
    if width == 1:
        np.testing.assert_allclose(arrived, a, rtol=0.005)


@every_codec
def test_numpy_and_torch_give_the_same_bits(codec: Codec) -> None:
    a = rows(600)
    payload, other = codec.encode(a, 3), codec.encode(torch.from_numpy(a), 3)
    np.testing.assert_array_equal(payload, other.numpy())
    np.testing.assert_array_equal(codec.decode(payload, a, 3), codec.decode(other, torch.from_numpy(a), 3).numpy())


@every_codec
def test_zeros_arrive_as_zeros_and_what_is_not_finite_is_noticed(codec: Codec) -> None:
    a = np.zeros((2, 300), np.float32)
    np.testing.assert_array_equal(codec.decode(codec.encode(a, 0), a, 0), a)
    a[:] = np.nan
    assert np.isnan(codec.decode(codec.encode(a, 0), a, 0)).any()


def test_top_k_sends_the_largest_numbers_unchanged() -> None:
    a = rows(50)
    arrived = top_k(0.1).decode(top_k(0.1).encode(a, 0), a, 0)
    sent = arrived != 0
    assert (sent.sum(-1) == 5).all()
    np.testing.assert_array_equal(arrived[sent], a[sent])
    np.testing.assert_array_equal(np.abs(arrived).max(-1), np.abs(a).max(-1))
    assert (np.abs(a)[sent].reshape(2, 3, 5).min(-1) > np.where(sent, 0, np.abs(a)).max(-1)).all()


def test_signs_arrive_with_the_mean_absolute_value_of_their_block() -> None:
    a = rows(300)
    arrived = sign().decode(sign().encode(a, 0), a, 0)
    np.testing.assert_array_equal(np.sign(arrived), np.sign(a))
    for block in (slice(0, 32), slice(288, 300)):
        scale = np.abs(a[..., block]).mean(-1, keepdims=True) + 0 * a[..., block]
        np.testing.assert_allclose(np.abs(arrived[..., block]), scale, rtol=0.005)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 1.0])
def test_the_gamma_of_top_k_is_half_of_what_normal_numbers_keep(share: float) -> None:
    a = np.random.default_rng(0).standard_normal((1, 200_000))
    arrived = top_k(share).decode(top_k(share).encode(a, 0), a, 0)
    assert top_k(share).gamma == pytest.approx((arrived**2).sum() / (a**2).sum() / 2, rel=0.02)


@pytest.mark.parametrize("name", EVERY)
def test_compressed_nodes_agree_on_the_minimiser(name: str) -> None:
    done = solve(compress=name, steps=400, evaluate=[400])
    np.testing.assert_allclose(done.x, TARGETS.mean(0) + 0 * TARGETS, atol=0.02)


@pytest.mark.parametrize("name", EVERY)
def test_the_mean_of_a_message_is_preserved(name: str) -> None:
    channel, y = compression(name), rows(300, np.float64)[0]
    memory, multiply = (channel.init(y),), simulated.connect(topology.ring(3), channel=channel).at
    assert multiply is not None
    for t in range(5):
        (mixed,), memory = channel.exchange(memory, (y + t,), multiply(t), t, 0)
        np.testing.assert_allclose(mixed.mean(0), (y + t).mean(0), atol=1e-12)
        assert np.abs(mixed - y - t).max() > 0


@pytest.mark.parametrize("name", EVERY)
def test_processes_give_the_simulators_iterates(name: str) -> None:
    results = run_threads(GRAPH, lambda net: solve(network=net), channel=compression(name))
    np.testing.assert_allclose(results[0].x, solve(compress=name).x, rtol=0, atol=1e-10)


def test_a_codec_and_its_name_are_the_same() -> None:
    by_name = solve(compress="topk:0.1,gamma=0.2")
    network = dnasa.connect(GRAPH, channel=channels.choco(top_k(0.1), gamma=0.2))
    np.testing.assert_array_equal(by_name.x, solve(network=network).x)
    np.testing.assert_array_equal(solve(compress=sign()).x, solve(network=dnasa.connect(GRAPH, compress="sign")).x)


@pytest.mark.parametrize("name", EVERY)
def test_the_history_counts_the_bytes_of_the_format(name: str) -> None:
    size = compression(name).size
    assert size is not None
    done = solve(compress=name, steps=10, evaluate=[10])
    per_row = size(np.zeros(300), 0, 0)
    assert done.final().bytes.tolist() == [10 * GRAPH.messages * 2 * per_row]  # x and the tracker


@pytest.mark.long
@pytest.mark.parametrize("engine", [pytest.param("mpi", marks=needs_mpi), "torch"])
@pytest.mark.xdist_group("processes")
def test_real_processes_send_the_bytes_in_the_history(engine: str) -> None:
    """The job counts the bytes given to MPI's or torch.distributed's send calls."""
    out = stdout_of(launch_script(engine, 4, JOB, "compressed", engine))
    assert [line for line in out.splitlines() if line in EVERY] == EVERY


RIGHT = Codec(lambda a, t: a, lambda p, like, t: p, lambda a: 8 * a.shape[-1], "mine", 0.3)


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ({"decode": lambda p, like, t: p[..., :-1]}, "does not decode what it encoded"),
        ({"decode": lambda p, like, t: p.astype(np.float32)}, "does not decode what it encoded"),
        ({"decode": lambda p, like, t: -p}, "does not decode"),
        ({"decode": lambda p, like, t: p * np.nan}, "does not decode"),
        ({"encode": lambda a: a}, "^At step 0: Codec 'mine' raised TypeError"),
        ({"row_bytes": lambda a: 300}, "row_bytes is 300, not 2400"),
    ],
)
def test_a_codec_that_does_not_fit_is_refused(functions: Any, words: str) -> None:
    solve(compress=RIGHT, steps=1, evaluate=[1])
    with pytest.raises(InputError, match=words):
        solve(compress=RIGHT._replace(**functions))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topk:2", "The share of numbers sent must be above 0 and at most 1, not 2"),
        ("topk:x", "Compression is such as topk:0.01, sign or sign,gamma=0.2; not 'topk:x'"),
        ("topk", "Compression is such as topk:0.01"),
        ("zip", "Unknown compression 'zip'. Choose from: bfloat16, float16, feedback, moniqua, topk, sign"),
        ("moniqua:8,4,", "moniqua:8 or moniqua:8,4,8/8; not '8,4,'"),
        ("sign:3", "Compression is such as topk:0.01"),
        ("sign,gamma=2", "gamma must be a number above 0 and at most 1, not 2"),
    ],
)
def test_wrong_compression_gets_one_clear_line_and_exit_code_2(text: str, message: str) -> None:
    words = "train --problem least_squares --nodes 4 --steps 3 --compress".split()
    assert message in refused(*words, text)


def test_a_message_dtype_is_a_compression() -> None:
    channels = [dnasa.connect(GRAPH, **{name: "bfloat16"}).settings.channel for name in ("message_dtype", "compress")]  # type: ignore[arg-type]
    assert [channel.settings for channel in channels if channel] == ["bfloat16"] * 2
    with pytest.raises(InputError, match=r"Unknown message dtype 'int8'. Choose from: bfloat16, float16"):
        dnasa.connect(GRAPH, message_dtype="int8")


def test_compression_is_given_once_and_alone() -> None:
    with pytest.raises(InputError, match="cannot be combined: give one of them"):
        dnasa.connect(GRAPH, channel=dnasa.channels.faulty(0.1), compress="sign")
    with pytest.raises(InputError, match="cannot be combined: give one of them"):
        dnasa.connect(GRAPH, message_dtype="bfloat16", compress="sign")
    with pytest.raises(InputError, match="CHOCO needs a Codec"):
        solve(compress=8)
