"""Measures published numbers again that a small computer can check, those of `claims.toml`, and says which differ.

python experiments/check.py     # four minutes on two cores; exit code 1 if a number differs
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from dnasa import topology
from dnasa.files import read_toml
from dnasa.problems.metrics import in_percent
from dnasa.reproduce.runs import missing, run

CLAIMS = Path(__file__).parent / "claims.toml"


class Claim(NamedTuple):
    """A published number and how to measure it."""

    text: str
    page: str  # of the documentation
    published: float  # as it is printed there
    tolerance: float  # how far the number found may be from it
    reason: str  # why so far
    runs: Mapping[str, Any]  # the runs whose mean it is (`measure`)
    needs: str | None = None  # the dataset


def claims() -> list[Claim]:
    return read_toml(CLAIMS, "claims", lambda content: [Claim(**entry) for entry in content["claim"]])


def check(every: list[Claim]) -> Iterator[tuple[Claim, float | None, str]]:
    """Each claim, the number found, and "ok", "differs", or "skipped" with the reason where its data is not there."""
    for claim in every:
        reason = missing(claim.needs) if claim.needs else ""
        if reason:
            yield claim, None, f"skipped: {reason}"
            continue
        found = measure(**claim.runs)
        is_close = abs(found - claim.published) <= claim.tolerance  # not if it is not a number
        yield claim, found, "ok" if is_close else "differs"


def measure(metric: str, **settings: Any) -> float:
    """The mean over the seeds, as pages print it: accuracies in percent."""
    value = float(_last_rows(**settings)[metric].mean())
    return 100 * value if in_percent(metric) else value


@cache
def _last_rows(
    task: str,
    rule: str,
    steps: int,
    seeds: int,
    graph: str = "ring",
    nodes: int = 8,
    weights: str | None = None,
    eta: float | None = None,
    schedule: str | None = None,
    step: int | None = None,
    **options: Any,
) -> pd.DataFrame:
    """The rows of these runs at the last step or at `step`, one for each seed."""
    options |= {"schedules": schedule and [schedule], "evaluate": [step or steps], "progress": False}
    etas = [] if eta is None else [eta]
    return run(task, topology.make(graph, nodes, weights), [rule], steps, range(seeds), etas, **options)


def main(every: list[Claim]) -> bool:
    """Print each claim and what was found; returns whether all that could be measured agree."""
    counts = Counter[str]()
    for claim, found, result in check(every):
        numbers = "" if found is None else f" {found:.5g}, published {claim.published:g} ({claim.page}),"
        print(f"{claim.text}:{numbers} {result}", flush=True)
        counts[result.partition(":")[0]] += 1
    print(f"{len(every)} numbers: {', '.join(f'{count} {result}' for result, count in counts.items())}.")
    return not counts["differs"]


if __name__ == "__main__":
    sys.exit(not main(claims()))
