"""Data of every format is read correctly and divided so that every row is used exactly once."""

import gzip
import io
import lzma
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archives import ENORMOUS, X, Y, archive, npy, npz
from PIL import Image

from dnasa import data
from dnasa.core import InputError
from dnasa.data import Dataset, datasets

REAL = Path(os.environ.get("DNASA_DATA", "/nowhere"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "cache"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty $DNASA_DATA."""
    monkeypatch.setenv("DNASA_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def write(path: Path, content: bytes | str, zipped: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content if isinstance(content, bytes) else content.encode()
    target = path.with_name(path.name + ".gz") if zipped else path
    target.write_bytes(gzip.compress(content) if zipped else content)


def idx(array: np.ndarray) -> bytes:
    return b"\x00\x00\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_is_read_from_idx_files(home: Path, zipped: bool) -> None:
    images, labels = np.arange(3 * 784).reshape(3, 28, 28) % 256, np.array([7, 0, 9])
    for name, array in zip(datasets.MNIST_FILES, (images, labels, images[:2], labels[:2]), strict=True):
        write(home / "mnist" / name, idx(array), zipped)
    rows = data.load("mnist")
    assert rows.inputs.shape == (3, 1, 28, 28)
    np.testing.assert_allclose(rows.inputs[0, 0], (images[0] / 255 - 0.1307) / 0.3081, rtol=1e-5, atol=1e-6)
    assert rows.labels.tolist() == [7, 0, 9]
    assert rows.test_inputs.shape == (2, 1, 28, 28)


@pytest.mark.parametrize("zipped", [False, True])
def test_a9a_is_read_from_libsvm_text(home: Path, zipped: bool) -> None:
    write(home / "a9a" / "a9a", "+1 1:1 123:1\n-1 2:1\n-1 3:1\n", zipped)
    write(home / "a9a" / "a9a.t", "-1 5:1\n+1 1:1 122:1\n", zipped)
    rows = data.load("a9a")
    assert rows.inputs.shape == (3, 123)
    assert rows.test_inputs.shape == (2, 123)
    assert rows.labels.tolist() == [1, 0, 0]
    assert rows.inputs[0, 122] == 1


def test_covertype_is_class_two_against_the_rest(home: Path) -> None:
    lines = ["a,b,cover"] + [f"{i},{i % 3},{1 + i % 7}" for i in range(70)]
    write(home / "covertype" / "covertype-sample.csv", "\n".join(lines) + "\n", True)
    rows = data.load("covertype")
    assert rows.title == f"covertype (sample, {len(lines) - 1} rows)"
    assert rows.classes == 2
    assert rows.labels.sum() + rows.test_labels.sum() == 10
    np.testing.assert_allclose(rows.inputs.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(rows.inputs.std(0), 1, atol=1e-5)
    write(home / "covertype" / "covertype-sample.csv", "\n".join(lines[1:]) + "\n", True)
    assert data.load("covertype").inputs.shape == rows.inputs.shape


def test_miniboone_has_its_signal_first(home: Path) -> None:
    text = " 30 100\n" + "\n".join(" ".join(str(i + j / 7) for j in range(50)) for i in range(130)) + "\n"
    write(home / "miniboone" / "MiniBooNE_PID.txt", text, False)
    rows = data.load("miniboone")
    assert rows.labels.sum() + rows.test_labels.sum() == 30
    assert (len(rows.labels), len(rows.test_labels)) == (100, 30)
    _, labels = datasets.read_miniboone(home / "miniboone" / "MiniBooNE_PID.txt")
    assert labels.tolist() == [1] * 30 + [0] * 100


def cifar10(labels: Sequence[int]) -> tuple[np.ndarray, bytes]:
    """Images and the same in the binary format."""
    images = np.random.default_rng(0).integers(256, size=(len(labels), 3, 32, 32), dtype=np.uint8)
    rows = np.concatenate([np.array(labels, np.uint8)[:, None], images.reshape(len(labels), -1)], axis=1)
    return images, rows.tobytes()


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("folder", ["cifar10", "cifar10/cifar-10-batches-bin"])
def test_cifar10_is_read_from_its_binary_files(home: Path, folder: str, zipped: bool) -> None:
    images, content = cifar10([3, 0, 9])
    for name in datasets.CIFAR10_FILES:
        write(home / folder / name, content, zipped)
    rows: Any = data.load("cifar10")
    np.testing.assert_array_equal(rows.inputs, np.concatenate(5 * [images]))
    np.testing.assert_array_equal(rows.test_inputs, images)
    assert rows.labels.tolist() == 5 * [3, 0, 9]
    assert rows.test_labels.tolist() == [3, 0, 9]
    assert (rows.inputs.dtype, rows.classes, rows.source) == (np.uint8, 10, str(home / folder))


def as_jpeg(colour: Any, size: tuple[int, int] = (32, 32), mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, "JPEG", quality=95)
    return out.getvalue()


def jpeg_parts(images: Sequence[bytes], labels: Sequence[int]) -> dict[str, np.ndarray]:
    """The arrays of the .npz, with the same images for training and for testing."""
    parts = {
        "jpeg": np.frombuffer(b"".join(images), np.uint8),
        "ends": np.cumsum([len(image) for image in images]),
        "labels": np.array(labels, np.uint8),
    }
    return {f"{kind}_{name}": part for kind in ("train", "test") for name, part in parts.items()}


def test_cifar10_as_jpeg_is_named_as_such(home: Path) -> None:
    colours = [(200, 10, 50), (0, 255, 100)]
    content = npz(**jpeg_parts([as_jpeg(colour) for colour in colours], [7, 2]))
    write(home / "cifar10" / datasets.CIFAR10_JPEG, content, False)
    rows = data.load("cifar10")
    assert rows.source == f"{home / 'cifar10'} (JPEG)"
    assert rows.title.startswith("cifar10 (JPEG, ")
    for image, colour in zip(rows.inputs, colours, strict=True):
        np.testing.assert_allclose(image.mean((1, 2)), colour, atol=3)
    assert (rows.labels.tolist(), rows.test_inputs.shape) == ([7, 2], (2, 3, 32, 32))
    for name in datasets.CIFAR10_FILES:
        write(home / "cifar10" / name, cifar10([1])[1], False)
    assert data.load("cifar10").source == str(home / "cifar10")


JPEGS = jpeg_parts([as_jpeg((9, 9, 9))] * 2, [0, 1])


def decoded(rows: Dataset, tokens: Iterable[int]) -> str:
    return "".join(rows.vocabulary[token] for token in tokens)


def test_a_text_becomes_windows_of_characters(tmp_path: Path) -> None:
    text = "".join(np.random.default_rng(0).choice(list("aé\n😀z"), 500))
    (tmp_path / "my.txt").write_text(text)
    rows = data.load(str(tmp_path / "my.txt"), context=8)
    assert (rows.vocabulary, rows.classes) == ("\naz\xe9😀", 5)
    assert rows.inputs.shape == rows.labels.shape == (450 - 8, 8)
    assert np.shares_memory(rows.inputs, rows.labels)
    for row in (0, 1, 441):
        assert decoded(rows, rows.inputs[row]) == text[row : row + 8]
        assert decoded(rows, rows.labels[row]) == text[row + 1 : row + 9]
    assert rows.test_inputs.shape == (6, 8)
    assert decoded(rows, rows.test_inputs.reshape(-1)) == text[450:498]
    assert decoded(rows, rows.test_labels.reshape(-1)) == text[451:499]


def test_nodes_have_parts_of_the_text_that_do_not_overlap(tmp_path: Path) -> None:
    text = "".join(map(chr, range(1000, 2000)))  # every character once
    (tmp_path / "my.txt").write_text(text)
    rows = data.load(str(tmp_path / "my.txt"), context=10)
    shards = data.partition("contiguous", rows.labels, 4)
    seen = [set(rows.inputs[shard].ravel()) | set(rows.labels[shard].ravel()) for shard in shards]
    assert [min(part) for part in seen] == [0, 223, 446, 668]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 900
    for how in ("by_label", "dirichlet(0.1)"):
        with pytest.raises(InputError, match="use the partition iid or contiguous"):
            data.partition(how, rows.labels, 4)
    with pytest.raises(InputError, match="too short for 100 parts"):
        data.partition("contiguous", rows.labels, 100)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has 0 characters, 0 different ones: a context of 256 needs more"),
        (b"ab" * 1280, "has 2,560 characters, 2 different ones: a context of 256 needs more"),
        (b"a" * 3000, "1 different ones"),
        (b"ab" * 1500 + b"\xff", r"not UTF-8 text \(byte 3,000\)"),
    ],
)
def test_a_text_that_cannot_be_learned_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(InputError, match=words):
        data.load(str(tmp_path / "x.txt"))


def test_texts_are_in_the_folder(home: Path) -> None:
    with pytest.raises(InputError, match=r"no \$DNASA_DATA/text/shakespeare.txt: put it there"):
        data.load("shakespeare")
    write(home / "text" / "shakespeare.txt", "To be or not to be. " * 200, False)
    rows = data.load("shakespeare")
    assert (rows.name, rows.classes, rows.inputs.shape[1]) == ("shakespeare", 9, 256)
    tokens = np.arange(40, dtype=np.uint16).reshape(2, 20)
    write(home / "code" / "tokens.npz.xz", lzma.compress(npz(train=tokens, test=tokens)), False)
    rows = data.load("code", context=8)
    assert (rows.name, rows.classes, rows.sites[1].name, rows.sites[1].rows) == ("code", 40, "node 1", 12)


def test_data_missing_in_the_folder_is_fetched_from_openml_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sklearn.datasets

    fetched = []

    def fetch(data_id: int, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        fetched.append(data_id)
        if data_id != 41150:
            raise OSError("no route")
        return np.random.default_rng(0).random((130_064, 3)), np.array(["b", "a"], dtype=object)[np.arange(130_064) % 2]

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    for _ in range(2):
        rows = data.load("miniboone")
        assert (len(rows.labels), len(rows.test_labels), rows.source) == (100_000, 30_064, "OpenML 41150")
        assert rows.inputs.dtype == np.float32
        assert set(rows.labels) == {0, 1}
    assert fetched == [41150]
    with pytest.raises(InputError, match=r"no route.*a9a.t \(.gz or not\) into \$DNASA_DATA/a9a"):
        data.load("a9a")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.npz", b"PK\x03\x04broken", "not an archive"),
        ("x.npz", None, "it is no file or folder"),
        ("x.csv", b"a,kind\n1,x\n2,y\n", "too few"),
        ("x.npz", npz(inputs=X, labels=np.array([None] * 10)), "not an archive of plain arrays"),
        ("x.npz", archive({"inputs.npy": ENORMOUS, "labels.npy": npy(Y)}), "not an archive of plain arrays"),
        ("x.npz", archive({"inputs": b"text", "labels.npy": npy(Y)}), "must be rows of numbers"),
        ("x.npz", npz(inputs=1.0, labels=Y), r"must be rows of numbers, .* shape \(\)"),
        ("x.npz", npz(inputs=X, labels=1), r"10 rows have labels of shape \(1,\)"),
        ("x.npz", npz(inputs=X, labels=Y, test_labels=Y), "no array 'test_inputs'"),
    ],
)
def test_a_users_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        data.load(str(tmp_path / name), "kind")


MNIST = dict(zip(datasets.MNIST_FILES, map(idx, (np.zeros((3, 28, 28)), np.arange(3)) * 2), strict=True))
IMAGES, LABELS = datasets.MNIST_FILES[:2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mnist", MNIST | {IMAGES: MNIST[IMAGES][:-1]}),
        ("mnist", MNIST | {LABELS: b"\x00\x00\x08\x02\x00\x00"}),
        ("mnist", MNIST | {LABELS: b""}),
        ("mnist", MNIST | {LABELS: gzip.compress(MNIST[LABELS], mtime=0)[:-4]}),
        ("mnist", MNIST | {IMAGES: idx(np.zeros((2, 28, 28)))}),
        ("mnist", MNIST | {LABELS: MNIST[IMAGES]}),
        ("a9a", {"a9a": b"+1 124:1\n", "a9a.t": b"+1 1:1\n"}),
        ("a9a", {"a9a": b"+1 1:nan\n", "a9a.t": b"+1 1:1\n"}),
        ("cifar10", dict.fromkeys(datasets.CIFAR10_FILES, b"")),
        ("cifar10", dict.fromkeys(datasets.CIFAR10_FILES, bytes(3072))),
        ("miniboone", {"MiniBooNE_PID.txt": b"2 2\n1 2\n3 4\n"}),
        ("miniboone", {"MiniBooNE_PID.txt": b"a b\n"}),
        ("cifar10", {datasets.CIFAR10_JPEG: npz(**JPEGS | {"train_ends": JPEGS["train_ends"][::-1]})}),
        ("cifar10", {datasets.CIFAR10_JPEG: npz(**JPEGS | {"test_jpeg": 0 * JPEGS["test_jpeg"]})}),
        ("cifar10", {datasets.CIFAR10_JPEG: npz(**jpeg_parts([as_jpeg((9, 9, 9), (31, 32))], [0]))}),
        ("cifar10", {datasets.CIFAR10_JPEG: npz(**jpeg_parts([as_jpeg((9, 9, 9))[:-200]], [0]))}),
    ],
)
def test_damaged_files_are_refused(home: Path, name: str, content: dict[str, bytes]) -> None:
    for file, written in content.items():
        write(home / name / file, written, False)
    with pytest.raises(InputError, match=rf"Cannot read {name} from .* Put .* into \$DNASA_DATA/{name}"):
        data.load(name)


@pytest.mark.long
@pytest.mark.skipif(not (REAL / "cifar10").is_dir(), reason="needs $DNASA_DATA")
def test_the_real_files_have_their_known_sizes() -> None:
    mnist, a9a, covertype = (data.load(name) for name in ("mnist", "a9a", "covertype"))
    assert mnist.inputs.shape == (60_000, 1, 28, 28)
    assert mnist.test_inputs.shape == (10_000, 1, 28, 28)
    assert abs(float(mnist.inputs.mean())) < 1e-2
    assert (a9a.inputs.shape, a9a.test_inputs.shape) == ((32_561, 123), (16_281, 123))
    assert a9a.labels.mean() == pytest.approx(0.2408, abs=1e-4)
    assert a9a.test_labels.mean() == pytest.approx(0.2362, abs=1e-4)
    assert len(covertype.labels) + len(covertype.test_labels) == 92_962
    share = (covertype.labels.sum() + covertype.test_labels.sum()) / 92_962
    assert share == pytest.approx(0.4876, abs=1e-4)
    cifar10, text, code = data.load("cifar10"), data.load("shakespeare"), data.load("code", context=512)
    assert [(site.name, site.rows) for site in code.sites][:2] == [("c", 4_491_169 - 512), ("docs", 4_491_169 - 512)]
    assert (code.classes, code.inputs.dtype.name, code.test_inputs.shape) == (8192, "uint16", (8 * 64, 512))
    assert (cifar10.inputs.shape, cifar10.test_inputs.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    np.testing.assert_allclose(cifar10.inputs.mean((0, 2, 3)), (125.3, 123.0, 113.9), atol=0.1)
    assert np.bincount(cifar10.labels).tolist() == [5000] * 10
    assert (text.classes, len(text.inputs) + 256) == (65, 1_115_394 * 9 // 10)
