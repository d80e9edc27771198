"""How much of the communication is hidden behind the gradient, on a network that is slowed down.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 -m benchmarks.overlap docs/figures/overlap.png

Two real processes train LeNet with `dnasa.optim.Decentralized`. Every exchange sleeps on top of what it takes, so that a step's
communication takes 0.1 to 2 times its gradient. Blocks of steps with sequential and with hidden exchanges are interleaved;
medians of the slower process. Prints a table and, given a file name, draws it with the two timelines.
"""

import dataclasses
import statistics
import sys
import threading
import time

import torch
from torch import nn

import dnasa
from dnasa.core import Messages
from dnasa.optim import Decentralized
from dnasa.problems.models import lenet

RATIOS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
EVEN = RATIOS.index(1.0)
STEPS, BLOCKS = 8, 5


class Slow:
    """A network whose exchange takes `delay` seconds longer for the three arrays of a step; records when."""

    def __init__(self, network: dnasa.Network):
        self.delay, self.spent = 0.0, 0.0
        self.record: list[tuple[str, int, float, float]] = []  # name, thread, begin, end
        own = network.processes.duplicate() if network.processes.duplicate else network
        self.network = dataclasses.replace(
            own, multiply=self.multiply, processes=dataclasses.replace(own.processes, duplicate=None)
        )
        self.real = own.multiply

    def multiply(self, messages: Messages, t: int) -> Messages:
        began = time.perf_counter()
        mixed = self.real(messages, t)
        time.sleep(self.delay * len(messages) / 3)
        ended = time.perf_counter()
        self.spent += ended - began
        thread = int(threading.current_thread() is not threading.main_thread())
        self.record.append(("exchange", thread, began, ended))
        return mixed


class Loop:
    """An ordinary training loop."""

    def __init__(self, network: dnasa.Network, overlap: bool):
        torch.manual_seed(0)
        self.model = lenet()
        self.slow = Slow(network)
        self.opt = Decentralized(self.model.parameters(), self.slow.network, rule="dnasa", overlap=overlap)
        self.x, self.y = torch.randn(192, 1, 28, 28), torch.randint(10, (192,))

    def gradient(self) -> float:
        began = time.perf_counter()
        self.opt.zero_grad()
        nn.functional.cross_entropy(self.model(self.x), self.y).backward()
        ended = time.perf_counter()
        self.slow.record.append(("gradient", 0, began, ended))
        return ended - began

    def block(self) -> tuple[float, float, float]:
        """Seconds per step in all, of the gradient, and of the exchanges."""
        self.slow.spent, gradients = 0.0, 0.0
        began = time.perf_counter()
        for _ in range(STEPS):
            gradients += self.gradient()
            self.opt.step()
        return (time.perf_counter() - began) / STEPS, gradients / STEPS, self.slow.spent / STEPS


def slowest(network: dnasa.Network, value: float) -> float:
    return max(float(text) for text in network.processes.allgather_text(repr(value)))


def measure(network: dnasa.Network, loops: dict[str, Loop]) -> list[dict[str, float]]:
    rows = []
    for loop in loops.values():
        loop.block()
    base = slowest(network, statistics.median(loops["sequential"].block()[1] for _ in range(5)))
    for ratio in RATIOS:
        taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in loops}
        for loop in loops.values():
            loop.slow.delay = ratio * base
        for _ in range(BLOCKS):
            for name, loop in loops.items():
                taken[name].append(loop.block())
        plain, gradient, exchange = (statistics.median(each) for each in zip(*taken["sequential"], strict=True))
        plain, gradient = slowest(network, plain), slowest(network, gradient)
        exchange = -slowest(network, -exchange)  # of the last process, which waits for no other
        hidden = slowest(network, statistics.median(step for step, _, _ in taken["hidden"]))
        rows.append({"gradient": gradient, "exchange": exchange, "sequential": plain, "hidden": hidden})
    return rows


def table(rows: list[dict[str, float]]) -> str:
    lines = [
        "| gradient | exchange | larger of the two | sequential | hidden | hidden / larger |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        larger = max(row["gradient"], row["exchange"])
        cells = [row["gradient"], row["exchange"], larger, row["sequential"], row["hidden"]]
        lines.append("| " + " | ".join(f"{1e3 * c:.1f} ms" for c in cells) + f" | {row['hidden'] / larger:.2f} |")
    return "\n".join(lines)


def draw(path: str, rows: list[dict[str, float]], loops: dict[str, Loop]) -> None:
    from dnasa.comparing.plots import panels, save_figure

    figure, axes = panels(2, width=6)
    left, right = axes[0]
    ratios = [row["exchange"] / row["gradient"] for row in rows]
    for name, colour in (("sequential", "#1f77b4"), ("hidden", "#d62728")):
        left.plot(ratios, [row[name] / row["gradient"] for row in rows], "o-", color=colour, label=f"exchanges {name}")
    left.plot(ratios, [max(1, r) for r in ratios], "k:", label="the larger of the two")
    left.set(xlabel="communication / gradient", ylabel="step / gradient", title="Seconds per step, in gradients")
    left.legend()
    colours = {"gradient": "#7f7f7f", "exchange": "#d62728"}
    for row, (name, loop) in enumerate(loops.items()):
        record = sorted(loop.slow.record, key=lambda event: event[2])
        first = next(began for kind, _, began, _ in record[3:] if kind == "gradient")
        for kind, thread, began, ended in record:
            if ended > first and began - first < 4.2 * rows[EVEN]["sequential"]:
                bar = (1e3 * (began - first), 1e3 * (ended - began))
                lane = 2.5 * (1 - row) + 0.9 * (1 - (thread if name == "hidden" else int(kind == "exchange")))
                right.broken_barh([bar], (lane, 0.8), color=colours[kind], edgecolor="white")
    right.set(yticks=[0.4, 1.3, 2.9, 3.8], xlabel="milliseconds", title="Grey: gradients. Red: exchanges")
    right.set_yticklabels(["hidden:\nthread", "hidden:\nloop", "sequential:\nexchange", "sequential:\ngradient"])
    right.set_xlim(0, 4e3 * rows[EVEN]["sequential"])
    right.grid(visible=False)
    save_figure(figure, path)


def main() -> None:
    network = dnasa.connect("ring")
    loops = {"sequential": Loop(network, overlap=False), "hidden": Loop(network, overlap=True)}
    rows = measure(network, loops)
    if network.rank == 0:
        print(f"{network.nodes} processes, {loops['hidden'].opt.flat.numel():,} float32 parameters\n\n{table(rows)}")
    if len(sys.argv) > 1:
        for loop in loops.values():
            loop.slow.delay = rows[EVEN]["gradient"]
            loop.slow.record.clear()
            loop.block()
        if network.rank == 0:
            draw(sys.argv[1], rows, loops)


if __name__ == "__main__":
    main()
