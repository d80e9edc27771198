"""Labelled data for training: from a local folder, from OpenML, or the user's own.

A dataset NAME is read from `$DNASA_DATA/NAME/` if it is there, otherwise from scikit-learn's OpenML cache, and downloaded
to that cache if necessary. Parsed data is cached as a safetensors file, so that the next start is immediate.
"""

import hashlib
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dnasa.core import InputError, choose
from dnasa.data import files
from dnasa.data.dataset import Dataset

CONTEXT = 256  # characters that a model of a text sees at once
Parts = dict[str, Any]  # arrays: inputs, labels, test_inputs, test_labels


class Known(NamedTuple):
    """Where the files of a dataset are in a folder, how they are parsed, its number on OpenML, and how to get it by hand."""

    local: Callable[[Path], list[Path]]
    parse: Callable[[list[Path]], Parts]
    prepare: Callable[[Parts], Parts]
    openml: int
    remedy: str


def load(name: str, target: str | None = None, context: int = CONTEXT) -> Dataset:
    """A known dataset by its name, or a .npz, .csv or .txt file by its path. The `context` is that of texts."""
    if Path(name).suffix in (".npz", ".csv") or name.endswith(".csv.gz"):
        return from_file(Path(name), target)
    if Path(name).suffix == ".txt":
        return from_text(Path(name), context)
    if Path(name).suffix:
        raise InputError(
            f"Cannot read {name}: data must be a .npz, .csv or .txt file or one of: {', '.join(DATASETS)}."
        )
    choose("data", name, dict.fromkeys(DATASETS))
    if name == "digits":
        return digits()
    if name == "shakespeare":
        return shakespeare(context)
    known, found = KNOWN[name], local_files(name)
    if found:
        parts, source = _cached(name, found, lambda: known.parse(found)), str(found[0].parent)
        source += " (JPEG)" * (found[0].name == CIFAR10_JPEG)
    else:
        parts, source = _from_openml(name, known), f"OpenML {known.openml}"
    return _complete(Dataset(name, **known.prepare(parts), source=source))


def _complete(data: Dataset) -> Dataset:
    """Refuse files that do not belong together."""
    for inputs, labels in ((data.inputs, data.labels), (data.test_inputs, data.test_labels)):
        if labels.ndim != 1 or len(inputs) != len(labels) or not len(labels):
            raise InputError(
                f"The files of {data.name} in {data.source} must have one label per row, and rows for training and testing."
            )
    return data


def local_files(name: str) -> list[Path]:
    """The files of a known dataset under `$DNASA_DATA`, or none if some are missing."""
    home = os.environ.get("DNASA_DATA")
    if not home:
        return []
    folder = Path(home).expanduser()
    return _one_of(folder / "text", "shakespeare.txt") if name == "shakespeare" else KNOWN[name].local(folder / name)


# ---------------------------------------------------------------- the cache


def cache_folder() -> Path:
    """In scikit-learn's data folder, found as documented there, without importing it."""
    return Path(os.environ.get("SCIKIT_LEARN_DATA", "~/scikit_learn_data")).expanduser() / "dnasa"


def _cached(name: str, sources: list[Path], parse: Callable[[], Parts]) -> Parts:
    stamp = "".join(f"{p.resolve()} {p.stat().st_size} {p.stat().st_mtime_ns}\n" for p in sources)
    return _load_or_parse(f"{name}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}", parse)


def _load_or_parse(name: str, parse: Callable[[], Parts]) -> Parts:
    """The cached parts of that name; the first time they are parsed, and cached if the disk allows it."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save_file

    cached = cache_folder() / f"{name}.safetensors"
    try:
        return load_file(cached)
    except (OSError, SafetensorError):
        parts = {key: np.ascontiguousarray(value) for key, value in parse().items()}
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        partial = cached.with_suffix(f".{os.getpid()}")
        save_file(parts, partial)
        partial.replace(cached)
    except (OSError, SafetensorError):
        pass  # on a full or read-only disk the data is parsed again at the next start
    return parts


def _from_openml(name: str, known: Known) -> Parts:
    def fetch() -> Parts:
        print(f"Fetching {name} (OpenML {known.openml}); this happens once ...", file=sys.stderr)
        try:
            return _table(*fetch_openml(known.openml))
        except Exception as error:  # whatever the cause, the remedy is the same
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"Cannot fetch {name} from OpenML ({reason}). {known.remedy}") from error

    return _load_or_parse(f"{name}-openml-{known.openml}", fetch)


def fetch_openml(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels, labels as numbers 0, 1, ... in sorted order."""
    from sklearn.datasets import fetch_openml as fetch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about retries and parsers
        inputs, labels = fetch(data_id=number, as_frame=False, return_X_y=True, parser="liac-arff")
    inputs = inputs.toarray() if hasattr(inputs, "toarray") else inputs
    return np.asarray(inputs, np.float32), files.numbered(labels)


# ---------------------------------------------------------------- known datasets


def digits() -> Dataset:
    """Handwritten digits, 8 x 8 pixels, 1,797 rows, shipped with scikit-learn; every fifth row is for testing."""
    from sklearn.datasets import load_digits

    inputs, labels = load_digits(return_X_y=True)
    return Dataset("digits", **every_fifth(inputs.astype(np.float32) / 16, labels), source="scikit-learn")


def shakespeare(context: int) -> Dataset:
    found = local_files("shakespeare")
    if not found:
        raise InputError(
            "There is no $DNASA_DATA/text/shakespeare.txt: put a text of the plays there, such as "
            "data/tinyshakespeare/input.txt of github.com/karpathy/char-rnn, or give any text file, such as --data my.txt."
        )
    return from_text(found[0], context)._replace(name="shakespeare")


def every_fifth(inputs: np.ndarray, labels: np.ndarray) -> Parts:
    test = np.arange(len(labels)) % 5 == 4
    if len(labels) < 5:
        raise InputError(f"{len(labels)} rows are too few to use every fifth for testing: give at least 5.")
    return {
        "inputs": inputs[~test],
        "labels": labels[~test],
        "test_inputs": inputs[test],
        "test_labels": labels[test],
    }


def split_at(parts: Parts, rows: int) -> Parts:
    """OpenML gives one table: the first rows are for training."""
    if "test_inputs" in parts:
        return parts
    inputs, labels = parts["inputs"], parts["labels"]
    return {
        "inputs": inputs[:rows],
        "labels": labels[:rows],
        "test_inputs": inputs[rows:],
        "test_labels": labels[rows:],
    }


def shuffled(parts: Parts) -> Parts:
    order = np.random.default_rng(0).permutation(len(parts["labels"]))
    return {"inputs": parts["inputs"][order], "labels": parts["labels"][order]}


def standardised(parts: Parts) -> Parts:
    """Every feature with mean 0 and deviation 1 over the training rows; constant ones are left at 0."""
    mean, deviation = parts["inputs"].mean(0), parts["inputs"].std(0)
    deviation[deviation == 0] = 1
    scaled = {key: ((parts[key] - mean) / deviation).astype(np.float32) for key in ("inputs", "test_inputs")}
    return parts | scaled


def _pixels(parts: Parts) -> Parts:
    parts = split_at(parts, 60_000)
    for key in ("inputs", "test_inputs"):
        if np.prod(parts[key].shape[1:]) != 784:
            raise InputError(
                f"MNIST's images have 28 x 28 pixels; these have {' x '.join(map(str, parts[key].shape[1:]))}."
            )
    scaled = {key: parts[key].reshape(-1, 1, 28, 28).astype(np.float32) for key in ("inputs", "test_inputs")}
    for image in scaled.values():
        image /= 255
        image -= 0.1307
        image /= 0.3081
    return parts | scaled


def _colour_images(parts: Parts) -> Parts:
    parts = split_at(parts, 50_000)
    for key in ("inputs", "test_inputs"):
        if np.prod(parts[key].shape[1:]) != 3072:
            raise InputError("CIFAR-10's images have 3 x 32 x 32 numbers; these have others.")
    images = {key: parts[key].reshape(-1, 3, 32, 32).astype(np.uint8, copy=False) for key in ("inputs", "test_inputs")}
    return parts | images


def _one_of(folder: Path, *names: str) -> list[Path]:
    return next(([p] for name in names for p in (folder / name, folder / f"{name}.gz") if p.is_file()), [])


def _all_of(folder: Path, *names: str) -> list[Path]:
    found = [_one_of(folder, name) for name in names]
    return [path for paths in found for path in paths] if all(found) else []


def _parse_mnist(paths: list[Path]) -> Parts:
    keys = ("inputs", "labels", "test_inputs", "test_labels")
    return dict(zip(keys, (files.read_idx(path) for path in paths), strict=True))


def _parse_a9a(paths: list[Path]) -> Parts:
    (inputs, labels), (test_inputs, test_labels) = (files.read_libsvm(path, 123) for path in paths)
    return {"inputs": inputs, "labels": labels, "test_inputs": test_inputs, "test_labels": test_labels}


def _cifar10_files(folder: Path) -> list[Path]:
    """The official binary files, in the folder or as they are unpacked, before images that were compressed again."""
    official = (_all_of(place, *CIFAR10_FILES) for place in (folder, folder / "cifar-10-batches-bin"))
    return next(filter(None, official), None) or _one_of(folder, CIFAR10_JPEG)


def _parse_cifar10(paths: list[Path]) -> Parts:
    if len(paths) == 1:
        (inputs, labels), (test_inputs, test_labels) = files.read_cifar10_jpeg(paths[0])
    else:
        *training, (test_inputs, test_labels) = (files.read_cifar10(path) for path in paths)
        inputs, labels = (np.concatenate(column) for column in zip(*training, strict=True))
    return {"inputs": inputs, "labels": labels, "test_inputs": test_inputs, "test_labels": test_labels}


def _table(inputs: np.ndarray, labels: np.ndarray) -> Parts:
    return {"inputs": inputs, "labels": labels}


MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR10_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR10_JPEG = "cifar10-jpeg.npz"
KNOWN = {
    "mnist": Known(
        lambda folder: _all_of(folder, *MNIST_FILES),
        _parse_mnist,
        _pixels,
        554,
        f"Put its four IDX files ({MNIST_FILES[0]}, ...; .gz or not) into $DNASA_DATA/mnist.",
    ),
    "a9a": Known(
        lambda folder: _all_of(folder, "a9a", "a9a.t"),
        _parse_a9a,
        lambda parts: split_at(parts, 32_561),
        1430,
        "Put the LIBSVM files a9a and a9a.t (.gz or not) into $DNASA_DATA/a9a.",
    ),
    "miniboone": Known(
        lambda folder: _one_of(folder, "MiniBooNE_PID.txt"),
        lambda paths: _table(*files.read_miniboone(paths[0])),
        lambda parts: standardised(split_at(shuffled(parts), round(len(parts["labels"]) * 100_000 / 130_064))),
        41150,
        "Put the UCI file MiniBooNE_PID.txt (.gz or not) into $DNASA_DATA/miniboone.",
    ),
    "covertype": Known(
        lambda folder: _one_of(folder, "covertype.csv", "covertype-sample.csv", "covtype.data"),
        lambda paths: _table(*files.read_csv(paths[0], None)),
        lambda parts: standardised(
            every_fifth(**shuffled(parts | {"labels": (parts["labels"] == 1).astype(np.int64)}))
        ),
        1596,
        "Put covertype.csv, covertype-sample.csv or covtype.data (.gz or not) into $DNASA_DATA/covertype.",
    ),
    "cifar10": Known(
        _cifar10_files,
        _parse_cifar10,
        _colour_images,
        40927,
        f"Put the files of its binary version ({CIFAR10_FILES[0]}, ..., {CIFAR10_FILES[-1]}) into $DNASA_DATA/cifar10.",
    ),
}
DATASETS = ("digits", *KNOWN, "shakespeare")


# ---------------------------------------------------------------- the user's own data


def from_arrays(
    inputs: Any, labels: Any, test_inputs: Any = None, test_labels: Any = None, name: str = "own"
) -> Dataset:
    """Arrays; without a test part, every fifth row is used for testing. Labels may be numbers or words."""
    inputs, words = files.checked_inputs(inputs), np.atleast_1d(np.asarray(labels))
    if len(inputs) != len(words):
        raise InputError(f"There are {len(inputs)} rows of inputs but {len(words)} labels: give one label per row.")
    if test_inputs is None:
        parts: Any = every_fifth(inputs, files.numbered(words))
        return Dataset(name, **parts)
    tests, test_words = files.checked_inputs(test_inputs), np.atleast_1d(np.asarray(test_labels))
    if inputs.shape[1:] != tests.shape[1:] or len(tests) != len(test_words):
        raise InputError(
            f"The test part has {len(test_words)} labels and inputs of shape {tests.shape}: it needs one label per row, and "
            f"rows of shape {inputs.shape[1:]} as in training."
        )
    both = files.numbered(np.concatenate([words, test_words]))
    return Dataset(name, inputs, both[: len(words)], tests, both[len(words) :])


def from_torch(train: Any, test: Any = None) -> Dataset:
    """A torch `Dataset` of (input, label) pairs, read once into memory."""
    import torch

    def columns(rows: Any) -> tuple[np.ndarray, np.ndarray]:
        pairs = [rows[i] for i in range(len(rows))]
        return torch.stack([torch.as_tensor(x) for x, _ in pairs]).numpy(), np.array([int(y) for _, y in pairs])

    return from_arrays(*columns(train), *(columns(test) if test is not None else ()))


def from_file(path: Path, target: str | None) -> Dataset:
    """An .npz with `inputs` and `labels` (optionally `test_inputs` and `test_labels`), or a .csv with its target column."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    if path.suffix == ".npz":
        return from_arrays(name=path.name, **files.read_npz(path))._replace(source=str(path))
    if target is None:
        raise InputError(f"{path.name} needs the name of its label column: give --target NAME.")
    table = shuffled(_table(*files.read_csv(path, target)))
    return Dataset(path.name, **standardised(every_fifth(**table)), source=str(path))


def from_text(path: Path, context: int = CONTEXT) -> Dataset:
    """Windows of `context` characters, each the label of the one before it; the last tenth of the text is for testing.

    Training windows begin at every character and share the text's memory; test windows do not overlap.
    """
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    codes = np.frombuffer(files.read_text(path).encode("utf-32-le"), np.uint32)
    characters, tokens = np.unique(codes, return_inverse=True)
    train, test = np.split(tokens.astype(np.int64), [len(tokens) * 9 // 10])
    if len(test) <= context:
        raise InputError(
            f"{path} has {len(tokens):,} characters: a context of {context:,} needs more than {10 * context:,}. Give a longer "
            "text or a shorter context, such as --model gpt:2,96,64."
        )
    if len(characters) < 2:
        raise InputError(f"All characters of {path} are the same: there is nothing to learn.")
    rows, tests = (sliding_window_view(part, context + 1, writeable=True) for part in (train, test))
    tests = tests[::context]
    vocabulary = "".join(map(chr, characters))
    return Dataset(path.name, rows[:, :-1], rows[:, 1:], tests[:, :-1], tests[:, 1:], str(path), vocabulary)


def from_shards(
    folder: Path, local_nodes: range, nodes: int, target: str | None = None
) -> tuple[Dataset, list[np.ndarray]]:
    """Only the files of `local_nodes`, `node-0.npz` (or .csv), `node-1.npz`, ..., and the common `test.npz` (or .csv).

    Labels must be 0, 1, 2, ... with the same meaning at all nodes, since no node reads the others' data. Shards of other
    nodes are empty.
    """
    pieces = [_shard(folder, f"node-{node}", target) for node in local_nodes]
    test_inputs, test_labels = _shard(folder, "test", target)
    for node, (inputs, labels) in zip(local_nodes, pieces, strict=True):
        if inputs.shape[1:] != test_inputs.shape[1:] or labels.max() > test_labels.max():
            raise InputError(
                f"The data of node {node} and the test data differ in their inputs' shape or their classes."
            )
    ends = np.cumsum([len(labels) for _, labels in pieces])
    shards = [np.empty(0, np.int64)] * nodes
    for node, end, (_, labels) in zip(local_nodes, ends, pieces, strict=True):
        shards[node] = np.arange(end - len(labels), end)
    inputs, labels = (np.concatenate(column) for column in zip(*pieces, strict=True))
    name = folder.resolve().name or str(folder)
    return Dataset(name, inputs, labels, test_inputs, test_labels, str(folder)), shards


def _shard(folder: Path, name: str, target: str | None) -> tuple[np.ndarray, np.ndarray]:
    path = next(
        (p for p in (folder / f"{name}.npz", folder / f"{name}.csv", folder / f"{name}.csv.gz") if p.is_file()), None
    )
    if path is None:
        raise InputError(f"There is no {name}.npz or {name}.csv in {folder}.")
    if path.suffix == ".npz":
        parts = files.read_npz(path)
        inputs, labels = files.checked_inputs(parts["inputs"], path), parts["labels"]
    else:
        inputs, labels = files.read_csv(path, target, keep_labels=True)
    numbers = labels.astype(np.int64) if labels.dtype.kind in "iu" else np.full(1, -1)
    if numbers.shape != (len(inputs),) or numbers.min() < 0:
        raise InputError(f"The labels of {path.name} must be whole numbers 0, 1, 2, ..., one per row.")
    return inputs, numbers
