"""Graphs by name: the built-in ones, those of users, and which one is used where none is named."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import networkx as nx

from dnasa.core import Channel, InputError, Rule, check_new_name, choose
from dnasa.topology.graphs import (
    complete,
    directed_exponential,
    directed_ring,
    exponential,
    from_networkx,
    grid,
    hypercube,
    ladder,
    paper_random,
    path,
    random,
    ring,
    star,
    torus,
)
from dnasa.topology.matrices import check_weights, from_matrix
from dnasa.topology.pairings import exact
from dnasa.topology.types import Topology, node_count

UNDIRECTED = (
    *(ring, ladder, complete, random, star, path),
    *(grid, torus, hypercube, exponential, exact, paper_random),
)
DIRECTED = (directed_ring, directed_exponential)
TOPOLOGIES: dict[str, Callable[..., Any]] = {f.__name__: f for f in (*UNDIRECTED, *DIRECTED)}
"""Graphs by name, with registered ones."""
BUILT_IN = frozenset(TOPOLOGIES)


def register(name: str, make: Callable[..., Any]) -> None:
    """Make a graph of your own usable by name: in `connect`, `make`, `dnasa train --plugin`, study files and `dnasa topology`.

    Registering a name again replaces a graph of your own, not a built-in one.

    Args:
        name: Letters, digits, - and _.
        make: A function of the number of nodes, such as `networkx.wheel_graph`, that returns a networkx graph, a matrix W, or a
            topology. If it has an argument `weights`, it is given the value of `--weights`; without one, these weights are
            applied to a networkx graph, and refused for a W.
    """
    check_new_name("topology", name, BUILT_IN)
    if not callable(make):
        raise InputError(f"The maker of topology '{name}' must be a function of the number of nodes.")
    takes_weights = "weights" in signature(make).parameters

    def checked(nodes: int, weights: str | None = None) -> Topology:
        nodes = node_count(nodes)
        graph = make(nodes, weights=weights) if takes_weights else make(nodes)
        try:
            return replace(_registered(graph, nodes, None if takes_weights else weights), name=name)
        except InputError as error:
            raise InputError(f"Topology '{name}': {error}") from error

    TOPOLOGIES[name] = checked


def _registered(graph: Any, nodes: int, weights: str | None) -> Topology:
    """The topology of what a registered function returned."""
    if isinstance(graph, nx.Graph):
        graph = from_networkx(graph, weights)
    elif weights is not None:
        raise InputError("It has weights of its own: leave weights out, or return a networkx graph.")
    elif not isinstance(graph, Topology):
        graph = from_matrix(graph)
    if graph.nodes != nodes:
        raise InputError(f"Its function returned {graph.nodes} nodes in place of {nodes}.")
    return graph


def make(name: str, nodes: int, weights: str | None = None) -> Topology:
    """The topology of that name.

    Args:
        name: A name in `TOPOLOGIES`.
        nodes: The number of nodes.
        weights: A name in `WEIGHTS`, or "lazy"; by default those of the graph.
    """
    return choose("topology", name, TOPOLOGIES)(nodes, weights=weights)


def default(
    nodes: int, rules: Iterable[Rule] = (), channel: Channel | None = None, weights: str | None = None
) -> Topology:
    """The graph where none is named, as `default_name` chooses it.

    Args:
        nodes: The number of nodes.
        rules: The rules that will use the graph.
        channel: How messages travel.
        weights: As for `make`.
    """
    name, weights = default_name(nodes, rules, channel, weights)
    return make(name, nodes, weights)


def default_name(
    nodes: int, rules: Iterable[Rule] = (), channel: Channel | None = None, weights: str | None = None
) -> tuple[str, str | None]:
    """The name and the weights of the default graph.

    It is exact, or ring where a rule or the channel needs a fixed graph, or weights are given. Rules that need larger
    eigenvalues than those of the ring get its lazy weights.

    Args:
        nodes: The number of nodes.
        rules: The rules that will use the graph.
        channel: How messages travel.
        weights: As for `make`.
    """
    if weights:
        return "ring", weights
    users = list(rules)
    if not (channel and channel.fixed_graph) and _suits(exact(nodes), users):
        return "exact", None
    return "ring", None if _suits(ring(nodes), users) else "lazy"


def _suits(graph: Topology, rules: Sequence[Rule]) -> bool:
    """Whether all of the rules can use the graph, with any number of rounds."""
    try:
        for rule in rules:
            check_weights(rule, graph, 1)
    except InputError:
        return False
    return True
