"""What the processes of `test_fsdp.py` do: two sites, each with a model that FSDP2 has divided, or a copy in
each process. Not a test."""

import sys
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from conftest import take_step
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import dnasa
from dnasa.core import InputError, RunError, leaves
from dnasa.networks import simulated
from dnasa.optim import Decentralized
from dnasa.optim.flat import local
from dnasa.rules.weight_decay import with_weight_decay

vars(import_module("dnasa.rules.adanasa"))["SHORTEST"] = 64  # so that a small matrix is a hidden one
SITES, STEPS, SAVED, ROWS, DECAY = 2, 8, 4, 12, 0.01
GRAPH = dnasa.topology.ring(SITES, weights="lazy")  # the sites differ
RULES: dict[str, Any] = {
    "adanasa": {"steps": STEPS, "weight_decay": DECAY},
    "dnasa": {"weight_decay": DECAY},
    "gt_hsgd": {"eta": 1e-3},
}


def model(seed: int = 0) -> Any:
    """25,163 numbers, of which AdaNASA samples every second; a hidden matrix of an odd number of rows, and a single row."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 80), nn.Tanh(), nn.Linear(80, 301), nn.Tanh(), nn.Linear(301, 1)).double()


def loss(net: nn.Module, site: int, t: int, rank: int = 0, ranks: int = 1, device: str = "cpu") -> Tensor:
    rows = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(100 * site + t), dtype=torch.float64)
    x = rows[rank::ranks].to(device)
    return ((net(x) - x.sum(1, keepdim=True) - site) ** 2).mean()


class Site:
    """This process's site: the loop and the checkpoints of docs/own-model.md."""

    def __init__(self, ranks: int, device: str, load: str):
        dist.init_process_group("gloo")
        self.group, _ = dist.new_subgroups(group_size=ranks)
        self.mesh = DeviceMesh.from_group(self.group, device)
        self.network = dnasa.connect(GRAPH, site=self.group if load or ranks > 1 else None)
        self.batch: Any = (self.network.rank, dist.get_rank(self.group), ranks, device)

    def sharded(self, net: Any, mesh: DeviceMesh | None = None) -> Any:
        net = net.to(self.batch[-1])
        if len(net) > 2:
            fully_shard(net[2], mesh=mesh or self.mesh)
        return fully_shard(net, mesh=mesh or self.mesh)

    def start(self, rule: str, seed: int = 0) -> tuple[nn.Module, Decentralized]:
        net = self.sharded(model(seed))
        return net, Decentralized(net if rule == "adanasa" else net.parameters(), self.network, rule, **RULES[rule])

    def loss(self, net: nn.Module, t: int) -> Tensor:
        site, *rest = self.batch
        return loss(net, site, t, *rest)

    def train(self, net: nn.Module, opt: Decentralized, until: int, joint: bool = False) -> None:
        def closure() -> None:
            opt.zero_grad()
            (loss(net, self.network.rank, opt.t) if joint else self.loss(net, opt.t)).backward()

        while opt.t < until:
            opt.step(closure)

    def state(self, net: nn.Module, opt: Decentralized, folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
        where = {"checkpoint_id": f"{folder}/site-{self.network.rank}", "process_group": self.group}
        return {"model": net.state_dict(), "optimizer": opt.state_dict()}, where

    def load(self, net: nn.Module, opt: Decentralized, folder: str) -> None:
        state, where = self.state(net, opt, folder)
        dcp.load(state, **where)
        net.load_state_dict(state["model"])
        opt.load_state_dict(state["optimizer"])

    def check(self, net: nn.Module, expected: Tensor) -> None:
        torch.testing.assert_close(whole(net), expected[self.network.rank], rtol=0, atol=1e-6)

    def say(self, *words: str) -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            print(*words, flush=True)


def whole(net: nn.Module) -> Tensor:
    return torch.cat([a.full_tensor().reshape(-1) for a in net.state_dict().values()]).cpu()


def simulate(opt: Decentralized) -> Tensor:
    """Two nodes, each with the joint batch of its site's processes, by the rule's own functions."""
    network, net = simulated.connect(GRAPH), model()
    rule = opt.node.recipe.rule
    rule = with_weight_decay(rule, lambda t: DECAY) if rule.stepsize else rule

    def gradient(points: Tensor, t: int) -> Tensor:
        rows = []
        for site, point in enumerate(points):
            vector_to_parameters(point.clone(), net.parameters())
            rows.append(parameters_to_vector(torch.autograd.grad(loss(net, site, t), list(net.parameters()))))
        return torch.stack(rows)

    state = rule.init(parameters_to_vector(net.parameters()).detach().repeat(SITES, 1))
    for t in range(STEPS):
        state = take_step(rule, state, gradient, network, t)
    return torch.stack([state.x, rule.result(state)])


def held(opt: Decentralized) -> int:
    """The bytes of parameters, gradients and the rule's state in this process."""
    parameters = opt.node.parameters
    gradients = [local(p.grad) for p in parameters.trained if p.grad is not None]
    tensors = [*parameters.values, parameters.gradient, *gradients, *leaves(opt.node.snapshot().state).values()]
    return sum({s.data_ptr(): s.nbytes() for s in (a.untyped_storage() for a in tensors)}.values())


def same(site: Site, load: str, save: str) -> None:
    for rule in RULES:
        net, opt = site.start(rule, seed=site.network.rank)  # both begin at the values of the first
        site.train(net, opt, SAVED)
        if save:
            state, where = site.state(net, opt, f"{save}/{rule}")
            dcp.save(state, **where)
        site.train(net, opt, STEPS)
        iterates, answers = simulate(opt)
        site.check(net, iterates)
        check_mean(site, net, opt, answers)
        if load:
            net, opt = site.start(rule, seed=5)
            site.load(net, opt, f"{load}/{rule}")
            site.train(net, opt, STEPS)
            site.check(net, iterates)
        site.say("same", rule)


@torch.no_grad()
def check_mean(site: Site, net: nn.Module, opt: Decentralized, answers: Tensor) -> None:
    x, right, mean = torch.ones(1, 5).double(), model(), answers.mean(0)
    vector_to_parameters(mean, right.parameters())
    own = net(x.to(site.batch[-1]))  # FSDP2 keeps what it has gathered for this
    with opt.averaged():
        torch.testing.assert_close(net(x.to(site.batch[-1])).cpu(), right(x))
    assert torch.equal(net(x.to(site.batch[-1])), own)
    assert not torch.allclose(own.cpu(), right(x))
    assert opt.consensus() == pytest.approx(float(((answers - mean) ** 2).sum(1).mean()), rel=1e-6)


def memory(site: Site) -> None:
    for rule in RULES:
        net, opt = site.start(rule)
        site.train(net, opt, 2)
        undivided = model()
        other = Decentralized(undivided, site.network, rule, **RULES[rule])
        site.train(undivided, other, 2, joint=True)
        assert held(opt) <= 0.55 * held(other), (rule, held(opt), held(other))
    site.say("half the memory")


def skip(site: Site) -> None:
    """If a process overflows, all skip the step."""
    net, opt = site.start("dnasa")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for t in (0, 1, 2):
        opt.zero_grad()
        scaler.scale(site.loss(net, t) * (torch.inf if (t, dist.get_rank()) == (1, 3) else 1)).backward()
        scaler.step(opt)
        scaler.update()
    assert opt.t == 2
    site.say("skipped")


def stop(site: Site) -> None:
    """If a number of one shard is not finite, all processes of the site stop."""
    net, opt = site.start("adanasa")
    opt.zero_grad()
    site.loss(net, 0).backward()
    if site.batch[1] == 1:
        local(opt.node.parameters.trained[2].grad)[0] = torch.nan
    with pytest.raises(RunError, match=r"the gradient of '2\.weight' is not finite"):
        opt.step()
    site.say("stopped")


def small(site: Site) -> None:
    """The second shard is empty, and messages are compressed; the processes have statistics of their own batches."""
    mesh = init_device_mesh("cpu", (SITES, 2), mesh_dim_names=("site", "shard"))
    network = dnasa.connect(GRAPH, site=mesh.get_group("shard"), compress="topk:0.5")
    for rule in RULES:
        net = site.sharded(nn.Sequential(nn.BatchNorm1d(5, affine=False), nn.Linear(5, 1)).double(), mesh["shard"])
        opt = Decentralized(net, network, rule, **RULES[rule])
        site.train(net, opt, 3)
        assert opt.consensus() > 0
        with opt.averaged():
            assert len(set(network.processes.allgather_text(str(net[0].running_mean.tolist())))) == 1
    site.say("small")


def replicate(site: Site) -> None:
    """With DistributedDataParallel the processes of a site stay equal to the bit, and are a node of the joint batch."""
    for rule, compress in (*((rule, None) for rule in RULES), ("dnasa", "topk:0.5")):
        network = dnasa.connect(GRAPH, site=site.group, compress=compress)
        net = DistributedDataParallel(model(seed=network.rank), process_group=site.group)
        opt = Decentralized(net.parameters(), network, rule, **RULES[rule])
        site.train(net, opt, STEPS)
        checksums = network.processes.allgather_text(str(zlib.crc32(opt.flat.numpy().tobytes())))
        assert checksums[0] == checksums[1] != checksums[2] == checksums[3]
        if compress is None:
            iterates, answers = simulate(opt)
            torch.testing.assert_close(opt.flat[0], iterates[network.rank], rtol=0, atol=1e-10)
            check_mean(site, net, opt, answers)
    site.say("replicated")


def refuse(site: Site) -> None:
    pairs, world = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "shard")), init_device_mesh("cpu", (4,))
    uneven, _ = dist.new_subgroups_by_enumeration([[0, 1, 2], [3]])
    blocks = model()
    fully_shard(blocks[2], mesh=site.mesh)
    plain, late = dnasa.connect("ring"), model()
    optimizer = Decentralized(late.parameters(), site.network)

    def train_sharded_later() -> None:
        net = site.sharded(late)
        site.loss(net, 0).backward()
        optimizer.step()

    def train_without_parallel() -> None:
        net = model()
        site.train(net, Decentralized(net.parameters(), site.network), 1)

    cases: dict[str, Callable[[], Any]] = {
        "different gradients: use DistributedDataParallel": train_without_parallel,
        "Every process must be in one site": lambda: dnasa.connect("ring", site=dist.new_group([0, 1, 2])),
        "whole matrices": lambda: Decentralized(site.sharded(model()), site.network, "demuon", eta=0.1, steps=5),
        r"the sites are \[\[0, 1\], \[2, 3\]\]": lambda: Decentralized(site.sharded(model(), world), site.network),
        "by rows over one mesh": lambda: Decentralized(site.sharded(model(), pairs), site.network),
        r"they have \[3, 1\]": lambda: Decentralized(
            site.sharded(model(), DeviceMesh.from_group(uneven, "cpu")), dnasa.connect("ring", site=uneven)
        ),
        "on the whole model, too": lambda: Decentralized(blocks, site.network),
        "make them a site": lambda: Decentralized(site.sharded(model()), plain),
        "different settings: rule": lambda: site.start(("dnasa", "adanasa")[site.batch[1]]),
        r"the meshes \[\[0, 1\], \[0, 1\], \[\], \[\]\]": lambda: Decentralized(
            model() if site.network.rank else site.sharded(model()), site.network
        ),
        "after the optimizer was made": train_sharded_later,
    }
    for words, case in cases.items():
        with pytest.raises(InputError, match=words):
            case()
    site.say("refused")


def main(device: str, ranks: str, load: str, save: str) -> None:
    site = Site(int(ranks), device, load)
    same(site, load, save)
    for check in (memory, skip, stop, small, replicate, refuse) if ranks == "2" else ():
        check(site)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
