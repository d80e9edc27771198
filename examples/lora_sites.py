"""LoRA adapters for a new language whose text is spread over four sites: only the adapters travel.

    python examples/lora_sites.py                                      # two minutes on two idle cores
    python examples/lora_sites.py --size large --data tokens.npz.xz    # minutes on a GPU

A GPT learns seven languages and is frozen. Each site is a process with a directory of its own, which has a part of the eighth.
They train adapters with AdamW (pooled, alone, or averaging adapters) and with dnasa, which has no learning rate.

`--data` is a folder with a subfolder of texts for each language, or an .npz file, also .npz.xz, whose array "train" has a row
of tokens for each. The last language is the new one. Without it, the languages are packages of Python's standard library, and
the new one is its documentation.
"""

import argparse
import io
import lzma
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

import dnasa

SITES, RARELY = 4, 20  # sites, and steps from one average to the next where it is rare
PACKAGES = ("asyncio", "ctypes", "email", "encodings", "multiprocessing", "unittest", "xml", "pydoc_data")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Size(NamedTuple):
    layers: int
    width: int
    heads: int
    context: int
    first_rate: float  # AdamW's, for the seven languages
    first: int  # steps for them
    steps: int  # for the eighth
    rates: tuple[float, ...]  # of AdamW for the eighth
    batch: int = 8  # windows of each site
    rank: int = 4  # of the adapters


SIZES = {
    "small": Size(2, 64, 4, 64, 4e-3, 600, 100, rates=(4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2)),
    "large": Size(12, 512, 8, 512, 1e-3, 800, 200, rates=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)),
}


class LoRA(nn.Module):
    """A linear layer that adds B A to its matrix. A and B train, the matrix is frozen."""

    def __init__(self, linear: nn.Linear, rank: int):
        super().__init__()
        self.linear = linear
        self.A = nn.Parameter(torch.empty(rank, linear.in_features))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))
        nn.init.kaiming_uniform_(self.A, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + x @ self.A.T @ self.B.T


def add_adapters(model: Any, rank: int) -> None:
    model.requires_grad_(False)
    for layer in model.layers:
        layer.linear1, layer.linear2 = LoRA(layer.linear1, rank), LoRA(layer.linear2, rank)


def make_model(size: Size, symbols: int) -> nn.Module:
    return dnasa.problems.models.gpt(symbols, size.layers, size.width, size.heads, size.context, dropout=0.0).to(DEVICE)


def loss_of(model: nn.Module, windows: Tensor) -> Tensor:
    with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
        scores = model(windows[:, :-1])
    return nn.functional.cross_entropy(scores.float().flatten(0, 1), windows[:, 1:].flatten())


def windows(tokens: Tensor, size: Size, generator: torch.Generator) -> Tensor:
    first = torch.randint(len(tokens) - size.context, (size.batch, 1), generator=generator)
    return tokens[(first + torch.arange(size.context + 1)).to(DEVICE)]


def adamw(parameters: Any, rate: float, steps: int) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(10 * (t + 1) / steps, 1 - t / steps))


# ------------------------------------------------------------ before the sites begin


def read_languages(path: Path | None) -> list[np.ndarray]:
    if path is not None and path.is_file():
        data = path.read_bytes()
        return list(np.load(io.BytesIO(lzma.decompress(data) if path.suffix == ".xz" else data))["train"])
    folders = [Path(sysconfig.get_path("stdlib"), name) for name in PACKAGES]
    if path is not None:
        folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    texts = [[f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file() and f.suffix != ".pyc"] for folder in folders]
    return [np.frombuffer(b"\n".join(some), np.uint8) for some in texts]


def write_sites(folder: Path, tokens: np.ndarray, size: Size) -> None:
    """Write a directory for each site; 128 windows at the end of its part are held out."""
    width = size.context + 1
    parts = [np.split(part, [-128 * width]) for part in np.array_split(tokens, SITES)]
    for k, (train, test) in enumerate(parts):
        (folder / f"site-{k}").mkdir()
        np.save(folder / f"site-{k}" / "train.npy", train)
        np.save(folder / f"site-{k}" / "test.npy", test.reshape(-1, width))
    np.save(folder / "whole.npy", np.concatenate([test.reshape(-1, width) for _, test in parts]))


def pretrain(model: nn.Module, languages: list[np.ndarray], size: Size, seed: int) -> None:
    texts = [torch.from_numpy(tokens.astype(np.int64)).to(DEVICE) for tokens in languages]
    generator = torch.Generator().manual_seed(seed)
    optimizer, schedule = adamw(model.parameters(), size.first_rate, size.first)
    for _ in range(size.first):
        optimizer.zero_grad()
        loss_of(model, torch.cat([windows(text, size._replace(batch=4), generator) for text in texts])).backward()
        optimizer.step()
        schedule.step()


# ------------------------------------------------------------ at a site


def mean(a: Tensor) -> Tensor:
    """The mean over all sites, by an all-reduce."""
    a = a.detach().cpu().clone()
    dist.all_reduce(a)
    return a.to(DEVICE) / SITES


def average(tensors: list[Tensor]) -> None:
    if tensors:
        parts = mean(torch.cat([a.flatten() for a in tensors])).split([a.numel() for a in tensors])
        torch._foreach_copy_(tensors, [part.view_as(a) for part, a in zip(parts, tensors, strict=True)])


def defect(model: nn.Module) -> float:
    """|mean(B A) - mean(B) mean(A)| / |mean(B A)|: A and B averaged separately are not the average of B A."""
    adapters = [module for module in model.modules() if isinstance(module, LoRA)]
    products = [mean(a.B @ a.A) for a in adapters]
    wrong = [product - mean(a.B) @ mean(a.A) for product, a in zip(products, adapters, strict=True)]
    return float(torch.stack([a.norm() for a in wrong]).norm() / torch.stack([a.norm() for a in products]).norm())


class Site:
    """Each way to train starts at the same adapters and sees the same batches.

    Each returns the losses on the site's own text and on that of all, the bytes and exchanges, and the largest defect.
    """

    def __init__(self, folder: Path, size: Size, symbols: int, seed: int):
        self.folder, self.size, self.symbols, self.seed = folder, size, symbols, seed
        own = folder / f"site-{dist.get_rank()}"
        files = own / "train.npy", own / "test.npy", folder / "whole.npy"
        self.text, *self.tests = (torch.from_numpy(np.load(file).astype(np.int64)).to(DEVICE) for file in files)

    def start(self) -> nn.Module:
        model = make_model(self.size, self.symbols)
        model.load_state_dict(torch.load(self.folder / "base.pt", map_location=DEVICE))
        torch.manual_seed(self.seed)
        add_adapters(model, self.size.rank)
        self.generator = torch.Generator().manual_seed(SITES * self.seed + dist.get_rank())
        return model.to(DEVICE)

    def backward(self, model: nn.Module) -> None:
        loss_of(model, windows(self.text, self.size, self.generator)).backward()

    @torch.no_grad()
    def losses(self, model: nn.Module) -> list[float]:
        return [float(np.mean([loss_of(model, some).item() for some in test.split(32)])) for test in self.tests]

    def dnasa(self, **options: Any) -> list[float]:
        model, steps, largest = self.start(), self.size.steps, 0.0
        network = dnasa.connect(**options)
        optimizer = dnasa.optim.Decentralized(model, network, steps=steps)
        for t in range(1, steps + 1):
            optimizer.zero_grad()
            self.backward(model)
            optimizer.step()
            largest = max(largest, defect(model) if t % RARELY == 0 else 0.0)
        with optimizer.averaged():
            return [*self.losses(model), network.processes.traffic.bytes, steps, largest]

    def adamw(self, rate: float, pooled: bool = False, every: int = 0) -> list[float]:
        """Average the gradients of all sites (pooled), or the adapters after this many steps, or nothing."""
        model, steps, largest = self.start(), self.size.steps, 0.0
        adapters = [p for p in model.parameters() if p.requires_grad]
        optimizer, schedule = adamw(adapters, rate, steps)
        for t in range(1, steps + 1):
            optimizer.zero_grad()
            self.backward(model)
            average([p.grad for p in adapters if pooled and p.grad is not None])
            optimizer.step()
            schedule.step()
            largest = max(largest, defect(model) if every and t % RARELY == 0 else 0.0)
            average([p.data for p in adapters if every and t % every == 0])
        exchanges = steps if pooled else steps // every if every else 0
        sent = 4 * sum(p.numel() for p in adapters) * 2 * (SITES - 1) / SITES  # by a ring all-reduce
        return [*self.losses(model), exchanges * sent, exchanges, largest]


def report(name: str, results: list[float]) -> np.ndarray:
    """Print a row of the table; returns the losses of the sites on their own texts."""
    everyone: list[Any] = [None] * SITES
    dist.all_gather_object(everyone, results)
    own, whole, (sent, *_), (exchanges, *_), (largest, *_) = np.array(everyone).T
    if dist.get_rank() == 0:
        losses = " ".join(f"{loss:.3f}" for loss in [*own, whole.mean()])
        print(f"{name:32}{losses} {sent / max(exchanges, 1) / 1e6:10.3f} {sent * 8 / 1e8:9.1f} {largest:10.1e}", flush=True)
    return own


def run_site(rank: int, *about: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{about[0]}/store", rank=rank, world_size=SITES)
    site = Site(*about)
    if rank == 0:
        print(f"{'loss at sites 0 to 3, on all texts':>61}  MB/exchange  seconds    defect")
    report("before", [*site.losses(site.start()), 0, 0, 0])
    pooled = {rate: report(f"AdamW {rate:g}, pooled", site.adamw(rate, pooled=True)) for rate in site.size.rates}
    best = min(pooled, key=lambda rate: pooled[rate].mean())
    for name, options in {"dnasa": {}, "dnasa, few bits": {"compress": "moniqua:8,4,8/8"}}.items():
        losses = report(name, site.dnasa(**options))
        if rank == 0:
            print(f"{'  minus the best pooled':31}" + " ".join(f"{a:+.3f}" for a in losses - pooled[best]), flush=True)
    report(f"AdamW {best:g}, alone", site.adamw(best))
    for every in (1, RARELY):
        report(f"AdamW {best:g}, averaged every {every}", site.adamw(best, every=every))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--data", type=Path, help="a folder, or an .npz file")
    parser.add_argument("--steps", type=int, help="for the new language")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.data is not None and not options.data.exists():
        parser.error(f"there is no {options.data}")
    size = SIZES[options.size]
    size = size._replace(steps=options.steps or size.steps)
    languages = read_languages(options.data)
    if len(languages) < 2 or min(map(len, languages)) < 200 * SITES * size.context:
        parser.error(f"each of two or more languages needs {200 * SITES * size.context} tokens: give more text")
    *known, new = languages
    symbols = 1 + max(int(tokens.max()) for tokens in languages)
    torch.manual_seed(options.seed)
    model = make_model(size, symbols)
    with tempfile.TemporaryDirectory() as folder:
        write_sites(Path(folder), new, size)
        pretrain(model, known, size, options.seed)
        torch.save(model.state_dict(), Path(folder, "base.pt"))
        torch.multiprocessing.spawn(run_site, (Path(folder), size, symbols, options.seed), nprocs=SITES)


if __name__ == "__main__":
    main()
