"""Training loops that go wrong, and processes with different numbers of batches."""

import copy
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_optim import RING, alone, backward, flat, model
from thread_network import run_threads
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

from dnasa.communication import Network
from dnasa.core import InputError, RunError
from dnasa.optim import Decentralized, Join


def batches(opt: Decentralized, net: Any, node: int, steps: Iterable[int], bad: Sequence[int] = ()) -> None:
    """Steps with the batches of these numbers; the gradient of the bad ones has an infinite number."""
    for t in steps:
        opt.zero_grad()
        backward(net, node, t)
        if t in bad:
            net[2].bias.grad[1] = math.inf
        opt.step()


@pytest.mark.parametrize(("named", "name"), [(True, "'2.bias'"), (False, "parameter 3 of shape (3,)")])
def test_a_gradient_that_is_not_finite_is_named_with_step_and_parameter(named: bool, name: str) -> None:
    net = model()
    opt = Decentralized(net.named_parameters() if named else net.parameters(), alone())
    with pytest.raises(RunError, match=re.escape(f"At rank 0, step 5: the gradient of {name} is not finite")):
        batches(opt, net, 0, range(40), bad=[4])
    assert flat(net).isfinite().all()


def test_large_finite_gradients_are_no_error() -> None:
    p = torch.nn.Parameter(torch.zeros(4))
    opt = Decentralized([p], alone())
    p.grad = torch.full((4,), 3e38)
    opt.step()
    assert opt.t == 1


def tolerant(opt: Decentralized, net: Any, node: int, count: int, bad: Sequence[int]) -> None:
    """Batches until `count` steps are done or the batches end; the closure fails at the bad ones, and the loop goes on."""
    for t in range(2 * count):

        def closure(t: int = t) -> float:
            opt.zero_grad()
            if t in bad:
                raise IndexError("a bad batch")
            return backward(net, node, opt.t)

        with suppress(IndexError):
            opt.step(closure)
        if opt.t == count:
            return


@pytest.mark.parametrize("rule", ["dnasa", "adanasa"])  # hidden exchanges, and not
def test_a_step_that_failed_before_its_exchange_can_be_done_again(rule: str) -> None:
    def work(network: Network, bad: Sequence[int]) -> torch.Tensor:
        net = model()
        opt = Decentralized(net.parameters(), network, rule)
        tolerant(opt, net, network.rank, 6, bad)
        with opt.averaged():
            return flat(net)

    plain = run_threads(RING, lambda network: work(network, ()))
    bad = [[], [0, 2, 3], [0], [4]]
    disturbed = run_threads(RING, lambda network: work(network, bad[network.rank]))
    assert all(torch.equal(a, b) for a, b in zip(plain, disturbed, strict=True))


def test_after_an_exchange_that_failed_a_process_takes_no_further_step(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()

    def work(network: Network) -> list[str]:
        opt = Decentralized(copy.deepcopy(net).parameters(), network, "dsgd", eta=0.1)
        opt.step()
        opt.node.network = opt.node.stepper.network = replace(opt.network, multiply=lost)  # type: ignore[union-attr]
        reasons = []
        for call in (opt.step, opt.step, opt.consensus):
            with pytest.raises(RunError) as error:
                call()
            reasons.append(str(error.value))
        return reasons

    def lost(messages: Any, t: int) -> Any:
        raise RunError("No answer from rank 1.")

    first, *further = run_threads(RING, work)[0]
    assert first == "No answer from rank 1."
    words = "The exchange of step 2 failed: No answer from rank 1. The processes have been out of step since then"
    assert all(reason.startswith(words) for reason in further)


COUNTS = [5, 9, 3, 6]


@pytest.mark.parametrize("options", [{"rule": "dnasa"}, {"rule": "dnasa", "overlap": False}, {}])
def test_joined_processes_continue_with_gradient_zero(options: dict[str, Any]) -> None:
    def joined(network: Network) -> tuple[Decentralized, torch.Tensor]:
        net = model()
        opt = Decentralized(net.parameters(), network, **options)
        with Join([opt]):
            batches(opt, net, network.rank, range(COUNTS[network.rank]))
        return opt, flat(net)

    def twin(network: Network) -> tuple[Decentralized, torch.Tensor]:
        net = model()
        opt = Decentralized(net.parameters(), network, **options)
        batches(opt, net, network.rank, range(COUNTS[network.rank]))
        for _ in range(9 - COUNTS[network.rank]):
            opt.zero_grad()
            opt.step()
        return opt, flat(net)

    def result(work: Callable[[Network], tuple[Decentralized, torch.Tensor]]) -> list[torch.Tensor]:
        def run(network: Network) -> tuple[torch.Tensor, ...]:
            opt, x = work(network)
            state = opt.node.snapshot().state
            return (x, state.u, state.v) if "rule" in options else (x,)

        return [torch.stack(each) for each in zip(*run_threads(RING, run), strict=True)]

    ours, expected = result(joined), result(twin)
    for a, b in zip(ours, expected, strict=True):
        assert torch.equal(a, b)
    if "rule" in options:
        torch.testing.assert_close(ours[1].mean(0), ours[2].mean(0))


def test_two_optimizers_join_together_and_all_can_be_averaged_after_it() -> None:
    def work(network: Network) -> list[int]:
        nets = [model(1), model(2)]
        opts = [Decentralized(net.parameters(), network) for net in nets]
        with Join(opts):
            for t in range(COUNTS[network.rank]):
                for net, opt in zip(nets, opts, strict=True):
                    batches(opt, net, network.rank, [t])
        batches(opts[0], nets[0], network.rank, [20])
        with opts[0].averaged():
            return [opt.t for opt in opts]

    assert run_threads(RING, work) == [[10, 9]] * 4


def test_a_scaler_and_skipped_steps_work_in_joined_processes() -> None:
    def work(network: Network) -> int:
        net = model()
        opt = Decentralized(net.parameters(), network)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        with Join([opt]):
            for t in range(COUNTS[network.rank]):
                opt.zero_grad()
                scale = math.inf if (t, network.rank) == (7, 1) else 1.0
                scaler.scale(scale * net(torch.ones(2, 5)).square().mean()).backward()
                scaler.step(opt)
                scaler.update()
        return opt.t

    assert run_threads(RING, work) == [8] * 4


def test_an_error_inside_join_is_not_replaced() -> None:
    opt = Decentralized(model().parameters(), alone())
    with pytest.raises(KeyError), Join([opt]):
        raise KeyError
    assert opt.joined is False


class Based(torch.nn.Module):
    """A frozen base, different at every node, a trained head, and buffers of several kinds."""

    def __init__(self, rank: int):
        super().__init__()
        self.base, self.head = torch.nn.Linear(5, 4).requires_grad_(False), torch.nn.Linear(4, 3)
        torch.nn.init.constant_(self.base.weight, 1.0 + rank)
        torch.nn.init.zeros_(self.base.bias)
        self.register_buffer("mask", torch.tensor([rank % 2 == 0, True]))
        self.register_buffer("count", torch.tensor(7 - rank))
        self.register_buffer("scale", torch.full((2, 2), 0.5 * rank, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.base(x))


def train_based(network: Network, given: Callable[[Based], Any], steps: int = 2) -> Based:
    net = Based(network.rank)
    opt = Decentralized(given(net), network)
    for t in range(steps):
        opt.zero_grad()
        backward(net, network.rank, t)
        opt.step()
    return net


def test_a_model_that_is_given_starts_equal_with_frozen_parameters_and_buffers() -> None:
    for net in run_threads(RING, lambda network: train_based(network, given=lambda model: model)):
        assert (net.base.weight == 1).all()
        assert net.mask.tolist() == [True, True]
        assert net.count == 7
        assert (net.scale == 0).all()


class Adapter(torch.nn.Module):
    """W + B A, as LoRA has it; A begins elsewhere at each node."""

    def __init__(self, rank: int):
        super().__init__()
        self.A, self.B = torch.nn.Parameter(torch.full((1, 5), 1.0 + rank)), torch.nn.Parameter(torch.zeros(6, 1))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.B @ self.A


def test_only_adapters_are_sent_and_frozen_weights_keep_their_bits() -> None:
    def work(network: Network) -> int:
        net = model().requires_grad_(False)
        register_parametrization(net[0], "weight", Adapter(network.rank))
        opt = Decentralized(net, network)
        batches(opt, net, network.rank, range(3))
        with opt.averaged():
            assert opt.flat.all()  # B has moved from 0
        remove_parametrizations(net[0], "weight", leave_parametrized=False)
        assert all(torch.equal(p, net.get_parameter(name)) for name, p in model().named_parameters())
        return sum(size for sending, (_, size) in network.processes.traffic.sent.items() if sending.kind != "text")

    adapters = 4 * 11  # bytes
    each = 3 * 2 * (3 * adapters + 16) + adapters  # x, y, m and A, which is aligned, to two neighbors in three steps; the mean
    assert run_threads(RING, work) == [each + 4 * adapters, each, each, each]  # the first sends where all start


def test_models_of_equal_shapes_with_other_modules_are_noticed() -> None:
    def work(network: Network) -> None:
        net = model()
        net[1] = torch.nn.ReLU() if network.rank == 3 else net[1]
        Decentralized(net, network)

    with pytest.raises(InputError, match=r"model is \(1\): Tanh\(\) at rank 0 and \(1\): ReLU\(\) at rank 3"):
        run_threads(RING, work)


def test_a_parameter_frozen_later_and_a_learning_rate_set_later_are_refused() -> None:
    net = model()
    opt = Decentralized(net, alone())
    with pytest.raises(InputError, match="has no learning rate"):
        opt.param_groups[0]["lr"] = 0.1
    batches(opt, net, 0, range(2))
    net[0].weight.requires_grad_(False)
    with pytest.raises(InputError, match="frozen now: make a new optimizer"):
        batches(opt, net, 0, range(1))


@pytest.mark.parametrize("change", ["order", "activation"])
@pytest.mark.parametrize("named", [True, False])
def test_parameters_of_equal_shapes_that_belong_to_other_models_are_noticed(change: str, named: bool) -> None:
    def work(network: Network) -> None:
        net = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Tanh(), torch.nn.Linear(5, 5))
        if network.rank == 3 and change == "activation":
            net[1] = torch.nn.ReLU()
        given = list(net.named_parameters()) if named else list(net.parameters())
        opt = Decentralized(given[2:] + given[:2] if network.rank == 3 and change == "order" else given, network)
        backward(net, network.rank, 0)
        opt.step()

    place = r"Tanh\(\) at rank 0 and .*ReLU\(\)" if change == "activation" else "0.weight.* at rank 0 and .*2.weight.*"
    with pytest.raises(InputError, match=rf"is .*{place} at rank 3"):
        run_threads(RING, work)


def test_a_parameter_replaced_after_the_optimizer_was_made_is_refused() -> None:
    net = model()
    opt = Decentralized(net, alone())
    net[0].weight = torch.nn.Parameter(net[0].weight.detach().clone())
    backward(net, 0, 0)
    with pytest.raises(InputError, match=r"'0\.weight' is not trained: make the optimizer after"):
        opt.step()


@pytest.mark.parametrize("cleared", [True, False])
def test_a_step_without_a_backward_pass_gets_one_warning(cleared: bool, recwarn: pytest.WarningsRecorder) -> None:
    def work(network: Network) -> None:
        net = model()
        opt = Decentralized(net, network)
        for t in range(3):
            if cleared:
                opt.zero_grad()
            if network.rank != 2:
                backward(net, network.rank, t)
            opt.step()

    run_threads(RING, work)
    found = [str(w.message) for w in recwarn if "backward()" in str(w.message)]
    assert found == ["At rank 2, step 1: no parameter has got a gradient: call backward() before step()."]
