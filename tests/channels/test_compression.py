"""Compressed messages: what travels, what arrives, how many bytes it takes, and that rules still learn."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from conftest import needs_mpi
from launching import JOBS, launch_script
from numpy.typing import DTypeLike
from thread_network import run_threads

import dnasa
from dnasa import Result, channels, cli, topology
from dnasa.arrays import compiled
from dnasa.channels import Codec, codecs, compressed, compression, quantised, random_k, sign, top_k
from dnasa.core import Array, InputError
from dnasa.networks import simulated
from dnasa.problems import Custom

NUMBERS = {"topk": (0.1,), "randk": (0.1,)}  # of codecs that need one
KNOWN = ", ".join(compressed.COMPRESSIONS)
MADE = {name: known.make(*NUMBERS.get(name, ())) for name, known in compressed.COMPRESSIONS.items()}
CODECS = {name: made for name, made in MADE.items() if isinstance(made, Codec)}
NAMES = [":".join(map(str, (name, *NUMBERS.get(name, ())))) for name in CODECS]
EVERY = [*NAMES, "moniqua", "moniqua:4"]
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


# ---------------------------------------------------------------- codecs


@every_codec
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 5, 256, 257, 600])
def test_a_payload_has_the_bytes_it_says_and_is_closer_than_nothing(
    codec: Codec, width: int, dtype: type[np.floating[Any]]
) -> None:
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


def extreme(width: int) -> Array:
    """Rows of halves of a scale, zeros, tiny and huge numbers, infinities and NaN, in float64."""
    halves = np.resize(np.arange(-255, 256) / 2, width)
    mixed, some, broken = np.random.default_rng(0).standard_normal(width), halves.copy(), halves.copy()
    mixed *= np.exp(5 * np.random.default_rng(1).standard_normal(width))
    some[::7], broken[3::300], broken[-1] = 0, np.nan, -np.inf
    steps = [127 * factor * (1 + np.resize(np.arange(128) / 128, width)) for factor in (1, 0.5, -1e-3)]
    sizes = [scale * mixed for scale in (0, 1, 1e-42, 3e-40, 1e-38, 1e-33, 1e30, 1e36)]
    return np.stack(
        [*sizes, halves, some, broken, *steps, *(halves * factor for factor in (7 / 127.5, 3e-41, 1e-30, 1.5))]
    )


@pytest.mark.skipif(compiled is None, reason="needs a C compiler when it is installed")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 2, 5, 255, 256, 257, 511, 3000, 40_001])
def test_compiled_kernels_give_the_same_bits(
    width: int, dtype: type[np.floating[Any]], bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = quantised(bits)
    with np.errstate(over="ignore"):
        a = extreme(2 * width).astype(dtype)[:, ::2]
    bytes_of_any_kind = np.random.default_rng(0).integers(0, 256, (3, int(codec.row_bytes(a))), np.uint8)

    def both() -> list[Array]:
        payload = codec.encode(a, 0)
        tensor = codec.encode(torch.from_numpy(a), 0).numpy()
        return [payload, tensor, *(codec.decode(p, a, 0) for p in (payload, bytes_of_any_kind))]

    quick = both()
    monkeypatch.setattr(codecs, "compiled", None)
    for ours, plain in zip(quick, both(), strict=True):
        np.testing.assert_array_equal(ours, plain, strict=True)


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


def test_random_k_sends_values_at_positions_that_depend_on_seed_and_step_alone() -> None:
    a = rows(200)

    def positions(codec: Codec, t: int) -> list[int]:
        return np.flatnonzero(codec.decode(codec.encode(a, t), a, t)[0, 0]).tolist()

    assert len(positions(random_k(0.1), 0)) == 20
    assert positions(random_k(0.1), 7) == positions(random_k(0.1), 7)
    assert positions(random_k(0.1), 7) != positions(random_k(0.1), 8)
    assert positions(random_k(0.1), 7) != positions(random_k(0.1, seed=1), 7)


@pytest.mark.parametrize(("bits", "largest"), [(8, 127), (4, 7)])
def test_quantised_numbers_are_off_by_half_a_level_at_most(bits: int, largest: int) -> None:
    a = rows(256)
    error = np.abs(quantised(bits).decode(quantised(bits).encode(a, 0), a, 0) - a)
    assert (error <= np.abs(a).max(-1, keepdims=True) / largest * 0.51).all()


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


# ---------------------------------------------------------------- runs


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


@pytest.mark.parametrize("engine", [pytest.param("mpi", marks=(needs_mpi, pytest.mark.long)), "torch"])
@pytest.mark.xdist_group("processes")
def test_real_processes_send_the_bytes_in_the_history(engine: str) -> None:
    """The job counts the bytes given to MPI's or torch.distributed's send calls."""
    done = launch_script(engine, 4, JOB, "compressed", engine)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [line for line in done.stdout.splitlines() if line in EVERY] == EVERY


# ---------------------------------------------------------------- codecs of the user's own, by name


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codecs registered by a test are forgotten."""
    monkeypatch.setattr(compressed, "REGISTERED", {})


def halves(digits: int = 2) -> Codec:
    """In NumPy alone."""

    def decode(payload: Array, like: Array, t: int) -> Array:
        return payload.astype(like.dtype)

    return Codec(lambda a, t: a.round(digits).astype(np.float16), decode, lambda a: 2 * a.shape[-1], "halves", 1.0)


@pytest.mark.usefixtures("registry")
def test_a_registered_codec_is_used_by_name_with_its_number_and_gamma() -> None:
    channels.register("halves", halves)
    for text, codec in {"halves": halves(), "halves:3": halves(3), "halves:3,gamma=0.5": halves(3)}.items():
        gamma = 0.5 if "," in text else 1.0
        channel = compression(text)
        assert channel.settings == [text.partition(",")[0], gamma]
        named = solve(compress=text)
        given = solve(network=dnasa.connect(GRAPH, channel=channels.choco(codec, gamma)))
        np.testing.assert_array_equal(named.x, given.x)
    assert named.final().bytes.tolist() == [60 * GRAPH.messages * 2 * 600]


def test_the_names_of_the_built_in_codecs_cannot_be_taken() -> None:
    for name in compressed.COMPRESSIONS:
        with pytest.raises(InputError, match=f"'{name}' is a built-in codec: choose another name"):
            channels.register(name, sign)


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("make", "text", "words"),
    [
        (sign(), "mine", "The maker of codec 'mine' must be a function that returns a Codec"),
        (lambda: 3, "mine", "The maker of codec 'mine' must return a Codec, not int"),
        (lambda: halves(), "mine:3", "mine takes no number: leave ':3' out"),
        (lambda rank: halves(rank), "mine", "mine needs its rank, such as mine:4"),
        (halves, "mine:x", "The digits of mine must be a number, not 'x'"),
        (halves, "yours", f"Unknown compression 'yours'. Choose from: {KNOWN}, mine"),
    ],
)
def test_a_codec_that_cannot_be_made_by_name_is_refused(make: Any, text: str, words: str) -> None:
    def use() -> None:
        channels.register("mine", make)
        compression(text)

    with pytest.raises(InputError, match=words):
        use()


@pytest.mark.parametrize(
    ("decode", "words"),
    [
        (
            lambda p, like, t: p[..., :-1],
            r"decodes a ndarray of shape \(2, 300\) and float64 to a .*\(2, 299\) and float64",
        ),
        (lambda p, like, t: p.astype(np.float32), r"to a ndarray of shape \(2, 300\) and float32"),
        (lambda p, like, t: torch.from_numpy(p), "to a Tensor of shape"),
        (lambda p, like, t: None, "to a NoneType: decode must return what encode was given"),
        (lambda p, like, t: -p, "farther from the message than zeros"),
        (lambda p, like, t: p * np.nan, "farther from the message than zeros"),
    ],
)
def test_a_codec_that_does_not_decode_what_it_encoded_is_refused(decode: Any, words: str) -> None:
    wrong = Codec(lambda a, t: a, decode, lambda a: 8 * a.shape[-1], "wrong", None)
    with pytest.raises(InputError, match=rf"Codec 'wrong' .*{words}"):
        solve(compress=wrong)


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ({"encode": lambda a: a}, r"^At step 0: encode\(a, t\) of codec 'wrong' raised TypeError"),
        ({"decode": lambda p, t: p}, r"decode\(payload, like, t\) of codec 'wrong' raised TypeError"),
        ({"row_bytes": lambda a, t: 8}, r"row_bytes\(a\) of codec 'wrong' raised TypeError"),
        (
            {"row_bytes": lambda a: 300},
            r"row_bytes of codec 'wrong' is 300 for a .* return the bytes of one of its rows",
        ),
        ({"encode": lambda a, t: a.tolist(), "decode": lambda p, like, t: np.array(p)}, "encode returns a list"),
    ],
)
def test_a_function_of_a_codec_that_does_not_fit_is_named(functions: Any, words: str) -> None:
    right = Codec(lambda a, t: a, lambda p, like, t: p, lambda a: 8 * a.shape[-1], "wrong", 0.3)
    solve(compress=right, steps=1, evaluate=[1])
    with pytest.raises(InputError, match=words):
        solve(compress=right._replace(**functions))


def test_a_codec_and_its_channel_are_printed_as_one_line() -> None:
    assert str(top_k(0.1)) == "Codec topk:0.1, gamma = 0.22"
    assert str(random_k(0.1)) == "Codec randk:0.1, no memory"
    assert str(compression("sign")) == "Channel ['sign', 0.32]"
    network = dnasa.connect(GRAPH, compress="sign", rounds=2)
    assert str(network) == f"Network {GRAPH}, 2 rounds, Channel ['sign', 0.32]"


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topk:2", "The share of numbers sent must be above 0 and at most 1, not 2"),
        ("topk:nan", "The share of numbers sent must be above 0"),
        ("topk:x", "The share of topk must be a number, not 'x'"),
        ("randk", "randk needs the share of numbers to send, such as randk:0.01"),
        ("zip", f"Unknown compression 'zip'. Choose from: {KNOWN}"),
        ("moniqua,gamma=1", "moniqua has no gamma: leave ',gamma=1' out"),
        ("moniqua:8,4,", "such as moniqua:8,4,8/8; not '8,4,'"),
        ("8bit:3", "8bit takes no number: leave ':3' out"),
        ("sign,gamma=2", "gamma must be a number above 0 and at most 1, not 2"),
        ("sign,gamma=x", "gamma must be a number, not 'x'"),
        ("sign,beta=1", "such as topk:0.01,gamma=0.3; not 'sign,beta=1'"),
    ],
)
def test_wrong_compression_gets_one_clear_line_and_exit_code_2(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["dnasa", "train", "--problem", "least_squares", "--nodes", "4", "--steps", "3", "--compress", text]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_compression_is_given_once_and_alone() -> None:
    with pytest.raises(InputError, match="cannot be combined: give one of them"):
        dnasa.connect(GRAPH, message_dtype="float16", compress="sign")
    with pytest.raises(InputError, match=r"randk:0\.1 has no default gamma for CHOCO: give one"):
        channels.choco(random_k(0.1))
    with pytest.raises(InputError, match="quantized to 8 or 4 bits, not 3"):
        quantised(3)
    with pytest.raises(InputError, match="CHOCO needs a Codec"):
        solve(compress=8)
