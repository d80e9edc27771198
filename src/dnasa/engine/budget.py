"""The privacy budget of a run: checked, turned into noise, and spent."""

from collections.abc import Sequence

import numpy as np

from dnasa.communication import Network
from dnasa.core import Array, InputError
from dnasa.problems.privacy import Budget, Noise, noise_multiplier
from dnasa.problems.problem import Problem
from dnasa.rules.registry import VariantGroup
from dnasa.runs.folder import RunFolder
from dnasa.runs.names import node_name
from dnasa.runs.releases import Releases

COLLUDING = 1  # sites whose shares of the noise do not count: each knows its own


def make_budget(
    problem: Problem,
    network: Network,
    groups: Sequence[VariantGroup],
    x: Array,
    steps: int,
    rows: np.ndarray | None,
    weights: np.ndarray | None,
) -> Budget | None:
    """The budget of the problem and the noise that each node needs; None if the problem has none."""
    if problem.privacy is None:
        return None
    assert rows is not None, "A problem with a budget has rows."
    _check(network, groups, x)
    counts, batch, privacy = np.atleast_2d(rows).min(0), problem.batch, problem.privacy  # the least of all seeds
    names = list(network.processes.names) or list(problem.site_names)
    least, place = int(counts.min()), node_name(names, int(counts.argmin()))
    if batch > least:
        raise InputError(
            f"The batch must be at most the rows of each site with differential privacy: {place} has {least}, not {batch}. "
            f"Give --batch {least} (batch={least}), or leave {place} out."
        )
    if privacy.delta >= 1 / least:
        raise InputError(
            f"delta must be below 1 / rows of each site, {1 / least:.2g} at {place}, not {privacy.delta:g}: give a smaller one."
        )
    sigma = np.array([noise_multiplier(batch / count, steps, privacy) for count in counts.tolist()])
    channel, every = network.settings.channel, network.settings.every
    shared = channel is not None and channel.only_sums and every == 1 and all(group.rule.only_sums for group in groups)
    if shared:
        weight = np.ones((1, len(sigma))) if weights is None else np.atleast_2d(weights)
        sigma = ((weight * sigma).max(1, keepdims=True) / weight).max(0) / np.sqrt(len(sigma) - COLLUDING)
    return Budget(privacy, steps, sigma.tolist(), shared, names)


def _check(network: Network, groups: Sequence[VariantGroup], x: Array) -> None:
    mistakes = {
        "nodes that wait for each other: leave late out": network.settings.late is not None,
        "rules with one gradient in each step: choose another": any(
            len(group.rule.gradient_points(group.rule.init(x), 0)) > 1 for group in groups
        ),
        "sites and for one process: leave out mpirun, torchrun and --engine": not (
            network.simulated or network.processes.names
        ),
        "one rule, stepsize and seed between sites: each would spend the budget again": not network.simulated
        and sum(group.size for group in groups) * x.shape[1] > 1,
    }
    for what, made in mistakes.items():
        if made:
            raise InputError(f"The privacy budget is for {what}.")


def make_noise(budget: Budget, network: Network, folder: RunFolder | None) -> Noise:
    """The noise of this process: of seeds in one process, of its own secret at a site."""
    if network.simulated:
        return Noise(budget)
    own, resumed = (None, False) if folder is None else (folder.own, folder.resume)
    releases = Releases(own, budget.steps, budget.shared, resumed)
    return Noise(budget, releases.secret, releases.spend)
