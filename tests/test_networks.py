"""The exchange is a product with W, whatever holds the arrays and however W is stored."""

import numpy as np
import pytest
import torch

from dnasa import topology
from dnasa.core import InputError
from dnasa.networks import simulated


@pytest.fixture
def arrays():
    generator = np.random.default_rng(0)
    return [generator.standard_normal((2, 3, 12, 5)) for _ in range(3)]


def sparse(graph):
    return topology.Topology(graph.name, graph.sparse)


def test_mix_multiplies_every_array_by_w(arrays):
    graph = topology.grid(12)
    for mixed, plain in zip(simulated.connect(graph).mix(*arrays), arrays, strict=True):
        np.testing.assert_allclose(mixed, np.einsum("ij,...jd->...id", graph.weights, plain))


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("kind", [lambda a: a, torch.from_numpy, lambda a: torch.from_numpy(a).float()])
def test_dense_equals_sparse(arrays, rounds, kind):
    graph = topology.exponential(12)
    given = [kind(a) for a in arrays]
    dense = simulated.connect(graph, rounds).mix(*given)
    thin = simulated.connect(sparse(graph), rounds).mix(*given)
    for a, b in zip(dense, thin, strict=True):
        assert a.dtype == b.dtype == given[0].dtype
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-5 if a.dtype == torch.float32 else 1e-12)


def test_rounds_are_powers_of_w(arrays):
    graph = topology.ring(12)
    (twice,) = simulated.connect(graph, rounds=2).mix(arrays[0])
    network = simulated.connect(graph)
    np.testing.assert_allclose(twice, network.mix(*network.mix(arrays[0]))[0])


def test_one_array_comes_back_as_a_tuple_of_one(arrays):
    assert len(simulated.connect(topology.ring(12)).mix(arrays[0])) == 1


def test_mean_averages_over_the_nodes(arrays):
    np.testing.assert_allclose(simulated.connect(topology.ring(12)).mean(arrays[0]), arrays[0].mean(2))


def test_no_rounds_are_refused():
    with pytest.raises(InputError, match="at least one round"):
        simulated.connect(topology.ring(3), rounds=0)
