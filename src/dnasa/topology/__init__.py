"""Graphs and their mixing matrices W: which nodes exchange messages, and with which weights."""

from dnasa.topology.graphs import (
    TOPOLOGIES,
    complete,
    directed_exponential,
    directed_ring,
    exponential,
    from_networkx,
    grid,
    hypercube,
    ladder,
    make,
    paper_random,
    path,
    random,
    ring,
    star,
    torus,
)
from dnasa.topology.matrices import changing, from_matrix
from dnasa.topology.pairings import exact
from dnasa.topology.types import Changing, Topology
from dnasa.topology.weights import WEIGHTS

__all__ = [
    "TOPOLOGIES",
    "WEIGHTS",
    "Changing",
    "Topology",
    "changing",
    "complete",
    "directed_exponential",
    "directed_ring",
    "exact",
    "exponential",
    "from_matrix",
    "from_networkx",
    "grid",
    "hypercube",
    "ladder",
    "make",
    "paper_random",
    "path",
    "random",
    "ring",
    "star",
    "torus",
]
