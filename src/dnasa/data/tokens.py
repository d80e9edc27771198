"""Tokens of a text at each node: from a token file, or from a folder of texts. Windows are views, which need no memory."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dnasa.core import InputError
from dnasa.data.dataset import TESTED, Dataset
from dnasa.data.reading import by_characters, extension, in_order, open_archive, read_text, refusing
from dnasa.data.summaries import Summary
from dnasa.extras import needed_by

TOKENIZER = "tokenizer.json"
LARGEST = (1 << 20) - 1  # a larger number is no position in a vocabulary


class Tokens(NamedTuple):
    """What each node trains and tests on, the names of the nodes, and the tokens that their numbers stand for."""

    train: Sequence[np.ndarray]
    test: Sequence[np.ndarray]
    names: Sequence[str]
    vocabulary: Sequence[str]


def load_tokens(path: Path, context: int, text: bool = False) -> Dataset | None:
    """The windows of a token file or a folder of texts; None if it is neither, unless `text` says that it is."""
    tokens = None
    if is_text_folder(path, text):
        tokens = read_texts(path)
    elif is_archive(path):
        tokens = read_token_file(path, text)
    return tokens and as_windows(tokens, path, context)


def names_of_nodes(path: Path, text: bool = False) -> Sequence[str]:
    """The nodes of a token file or a folder of texts; none if it is neither."""
    if is_text_folder(path, text):
        return [folder.name for folder in text_folders(path)]
    if not is_archive(path):
        return ()
    with open_archive(path) as archive:
        return node_names(archive) if "train" in archive else ()


def is_text_folder(path: Path, text: bool) -> bool:
    return path.is_dir() and (text or (path / TOKENIZER).is_file())


def is_archive(path: Path) -> bool:
    return extension(path) == ".npz" and path.is_file()


def as_windows(tokens: Tokens, path: Path, context: int) -> Dataset:
    """Training windows begin at every token of a node; test windows do not overlap, and each node has as many of them."""
    for name, parts in zip(tokens.names, zip(tokens.train, tokens.test, strict=True), strict=True):
        if min(map(len, parts)) <= context:
            train, test = (f"{len(part):,}" for part in parts)
            raise InputError(
                f"{path}: {name} has {train} tokens for training and {test} for testing, and a context of {context:,} needs "
                "more of each. Give longer texts or a shorter context, such as --model gpt:2,96,64."
            )
    tested = context * min(TESTED, *((len(part) - 1) // context for part in tokens.test))
    test_inputs, test_labels = (
        np.concatenate([part[first : first + tested] for part in tokens.test]).reshape(-1, context) for first in (0, 1)
    )
    rows = sliding_window_view(np.concatenate(tokens.train), context + 1, writeable=True)
    lengths = [len(part) for part in tokens.train]
    shards = [np.arange(end - length, end - context) for length, end in zip(lengths, accumulate(lengths), strict=True)]
    return Dataset(
        path.name,
        rows[:, :-1],
        rows[:, 1:],
        test_inputs,
        test_labels,
        source=str(path),
        vocabulary=tokens.vocabulary,
        sites=tuple(Summary(len(shard), name=name) for name, shard in zip(tokens.names, shards, strict=True)),
        shards=shards,
    )


# ---------------------------------------------------------------- token files


def read_token_file(path: Path, text: bool) -> Tokens | None:
    """An archive with `train` and `test`, a row for each node, and perhaps the `names` of the nodes."""
    with open_archive(path) as archive:
        if "train" not in archive and not text:
            return None
        train, test = (_read_part(archive, name, path.name) for name in ("train", "test"))
        names = node_names(archive)
    if not len(train) == len(test) == len(names):
        counts = f"{len(train)} rows in train, {len(test)} in test and {len(names)} names"
        raise InputError(f"{path.name} has {counts}: give as many of each.")
    largest = int(max(train.max(), test.max()))
    return Tokens(list(train), list(test), names, [str(token) for token in range(largest + 1)])


def _read_part(archive: Mapping[str, np.ndarray], name: str, file: str) -> np.ndarray:
    if name not in archive:
        raise InputError(f"{file} has no array '{name}'; it has: {', '.join(archive) or 'nothing'}.")
    part = archive[name]
    if part.ndim != 2 or not part.size or part.dtype.kind not in "iu":
        raise InputError(f"'{name}' of {file} is {part.dtype} of shape {part.shape}: give whole numbers, nodes x tokens.")
    low, high = int(part.min()), int(part.max())
    if low < 0 or high > LARGEST:
        raise InputError(f"'{name}' of {file} has the token {low if low < 0 else high:,}: give numbers from 0 to {LARGEST:,}.")
    return part.astype(token_type(high), copy=False)


def node_names(archive: Mapping[str, np.ndarray]) -> list[str]:
    if "names" in archive:
        return [str(name) for name in np.ravel(archive["names"])]
    return [f"node {node}" for node in range(len(archive["train"]))]


def token_type(largest: int) -> type[np.integer[Any]]:
    return np.uint16 if largest < 1 << 16 else np.int32


# ---------------------------------------------------------------- folders of texts


def text_folders(folder: Path) -> list[Path]:
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    if not folders:
        raise InputError(f"{folder} has no texts: put those of each node into a folder of its own, such as node-0/1.txt.")
    return sorted(folders, key=in_order)


def read_texts(folder: Path) -> Tokens:
    """The texts of each node, whose last tenth is for testing; without a tokenizer, tokens are characters."""
    folders = text_folders(folder)
    texts = map(_read_files, folders)
    with_tokenizer = (folder / TOKENIZER).is_file()
    tokens, vocabulary = _by_tokenizer(folder / TOKENIZER, texts) if with_tokenizer else by_characters(map("".join, texts))
    train, test = zip(*(np.split(each, [len(each) * 9 // 10]) for each in tokens), strict=True)
    return Tokens(train, test, [each.name for each in folders], vocabulary)


def _read_files(folder: Path) -> list[str]:
    """All files in a folder and the folders below, but no hidden ones."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    texts = [read_text(path) for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    if not any(texts):
        raise InputError(f"{folder} has no text: add a file, or remove the folder.")
    return texts


def _by_tokenizer(path: Path, texts: Iterable[list[str]]) -> tuple[list[np.ndarray], Sequence[str]]:
    with needed_by(f"Reading {path.name}"):
        from tokenizers import Tokenizer
    with refusing(f"{path} is no tokenizer of the package tokenizers: write it with Tokenizer.save."):
        tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()  # texts are longer than what a model sees at once
    tokenizer.no_padding()
    tokens = {number: token for token, number in tokenizer.get_vocab().items()}
    vocabulary = [tokens.get(number, f"unused {number}") for number in range(max(tokens, default=-1) + 1)]
    numbers = (
        chain.from_iterable(each.ids for each in tokenizer.encode_batch(files, add_special_tokens=False)) for files in texts
    )
    return [np.fromiter(each, token_type(len(vocabulary))) for each in numbers], vocabulary
