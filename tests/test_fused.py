"""The fast path is the rule: the same numbers to rounding."""

import numpy as np
import pytest
import torch

from dnasa import rules, schedules, topology
from dnasa.fused import Fused, suits
from dnasa.networks.simulated import connect
from dnasa.stepping import InTurn, stepping
from dnasa.timing import Timeline

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
RULES = {
    "dnasa": lambda n: rules.dnasa(*schedules.diminishing(n)),
    "dasagt": lambda n: rules.dasagt(schedules.root_decay(0.1, n), schedules.averaging(n)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(8, 25), (5, 1000), (2, 3, 6, 300), (1, 7)])
@pytest.mark.parametrize("rule", RULES)
def test_fused_steps_are_the_rules_steps(rule, shape, device):
    nodes = shape[-2]
    made, network = RULES[rule](nodes), connect(topology.ring(nodes))
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator).to(device)
    runs = [kind(made, network, made.init(start.clone()), Timeline()) for kind in (InTurn, Fused)]
    for t in range(30):
        g = torch.randn(shape, generator=generator).to(device)
        for run in runs:
            run.step(g, t)
    for plain, fast in zip(*(run.state for run in runs), strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)


def test_fused_steps_take_every_run_its_own_schedule():
    from dnasa.rules import build, variants

    like = torch.zeros(1, 1, 4, 3)
    made = build(variants("dasagt", [0.01, 0.1, 1.0]), 4, 50, like)
    network = connect(topology.ring(4))
    start = torch.randn(3, 2, 4, 3)
    runs = [kind(made, network, made.init(start.clone()), Timeline()) for kind in (InTurn, Fused)]
    for t in range(20):
        g = torch.randn(start.shape)
        for run in runs:
            run.step(g, t)
    torch.testing.assert_close(runs[1].x, runs[0].x, rtol=1e-4, atol=1e-5)


def test_it_is_taken_where_it_fits_and_nowhere_else():
    made = RULES["dnasa"](8)
    state = made.init(torch.zeros(8, 3))
    ring = connect(topology.ring(8))
    assert isinstance(stepping(made, ring, state, Timeline(), overlap=False), Fused)
    assert not suits(rules.dsgd(lambda t: 0.1), ring, state)
    assert not suits(made, ring, made.init(torch.zeros(8, 3).double()))
    assert not suits(made, ring, made.init(np.zeros((8, 3))))
    assert not suits(made, connect(topology.ring(8), rounds=2), state)
    assert not suits(made, connect(topology.ring(8), wire="bfloat16"), state)
    assert not suits(made, connect(topology.one_peer(8)), state)
    assert not suits(made, connect(topology.ring(3000)), made.init(torch.zeros(3000, 3)))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_scale_of_the_loss_does_not_matter(scale):
    made, network = RULES["dnasa"](4), connect(topology.ring(4))
    run = Fused(made, network, made.init(torch.zeros(4, 5)), Timeline())
    generator = torch.Generator().manual_seed(1)
    for t in range(10):
        run.step(scale * torch.randn(4, 5, generator=generator), t)
    twin = Fused(made, network, made.init(torch.zeros(4, 5)), Timeline())
    generator.manual_seed(1)
    for t in range(10):
        twin.step(torch.randn(4, 5, generator=generator), t)
    torch.testing.assert_close(run.x, twin.x, rtol=1e-4, atol=1e-5)
