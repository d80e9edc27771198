"""Rows that several sites have, found by hashes, which they show each other: whoever guesses a whole row can test it."""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from dnasa.checks import counted
from dnasa.data.dataset import Dataset

DIGITS = 4  # of standardized numbers


def count_duplicates(
    data: Dataset, shards: Sequence[np.ndarray], gather: Callable[[Any, Callable[[Any], Any]], list[Any]], min_count: int
) -> tuple[pd.DataFrame, list[str]]:
    """How many different rows two sites both have, equal in all columns, for each two that have any; which, of local sites.

    A column that is empty at a site is not compared. `gather(own, read)` returns what `read` makes of what each process gives.
    All contribute to the salt of the hashes.
    """
    salt = "".join(gather(secrets.token_hex(16), str)).encode()
    local, tests = [node for node, rows in enumerate(shards) if len(rows)], np.arange(len(data.test_labels))
    ends = np.cumsum([data.test_counts[node] if data.test_counts else 0 for node in local])
    empty = sorted({column.name for site in data.sites for column in site.columns if column.is_empty})
    hashed, numbered = [], dict[int, list[tuple[str, int]]]()
    for node, own in zip(local, np.split(tests, ends), strict=False):
        trained = _hashes(salt, _without(empty, data, data.inputs[shards[node]]), data.labels[shards[node]])
        tested = _hashes(salt, _without(empty, data, data.test_inputs[own]), data.test_labels[own])
        places = [*shards[node], *(len(data.labels) + own)]
        numbered[node] = list(zip([*trained, *tested], [data.row_numbers[place] for place in places], strict=True))
        hashed.append(sorted({*trained, *tested}))
    given = gather(hashed, lambda given: [{*map(str, given[i])} for i in range(len(hashed))])
    everyone, names = [rows for process in given for rows in process], [site.name for site in data.sites]
    pairs = [(i, j, len(everyone[i] & everyone[j])) for i in range(len(names)) for j in range(i)]
    found = [(names[j], names[i], f"{n:,}" if n >= min_count else f"fewer than {min_count}") for i, j, n in pairs if n]
    sentences = [
        f"{names[node]} has {counted(copies, 'row')} equal to others of it in all columns used."
        for node, texts in numbered.items()
        if (copies := len(texts) - len(dict(texts)))
    ]
    for (i, j, n), node in product(pairs, numbered):
        if node in (i, j) and n >= min_count:
            rows = sorted(number for text, number in numbered[node] if text in everyone[i] & everyone[j])
            listed = ", ".join(map(str, rows))
            both = f"{names[node]} and {names[i + j - node]} both have these rows of {names[node]}"
            sentences.append(f"{both} (1 is the line below the header): {listed}.")
    if empty:
        sentences.append(f"Not compared, since empty at a site: {', '.join(empty)}.")
    return pd.DataFrame(found, columns=["site", "other site", "rows that both have"]), sentences


def _without(names: Sequence[str], data: Dataset, inputs: np.ndarray) -> np.ndarray:
    if not names or data.encoding is None:
        return inputs
    kept = [feature.name not in names for feature in data.encoding.features for _ in feature.inputs]
    return inputs[:, kept]


def _hashes(salt: bytes, inputs: np.ndarray, labels: np.ndarray) -> list[str]:
    """Of each row; the same wherever it is, since all sites encode rows in the same way."""
    rows = np.concatenate([part.reshape(len(labels), -1).astype(np.float64) for part in (inputs, labels)], axis=1)
    numbers = np.round(rows, DIGITS) + 0.0  # without -0.0
    return [hashlib.sha256(salt + row.tobytes()).hexdigest()[:24] for row in numbers]
