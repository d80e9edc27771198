"""Names of nodes in messages, tables and logs, and of the columns of a history."""

from collections.abc import Sequence
from typing import Any

# Columns of every history, which no metric may be named after.
COLUMNS = (
    *("run", "rule", "schedule", "eta", "seed", "step", "nodes", "consensus", "improved"),
    *("samples", "epochs", "messages", "bytes", "clock_seconds", "seconds"),
)


def node_name(sites: Sequence[str], node: Any) -> str:
    """The name of the node's site, or its number."""
    return sites[node] if type(node) is int and 0 <= node < len(sites) else f"node {node}"


def node_names(sites: Sequence[str], nodes: Sequence[int]) -> str:
    if sites:
        return ", ".join(node_name(sites, node) for node in nodes)
    return f"node{'s' if len(nodes) != 1 else ''} {', '.join(map(str, nodes))}"
