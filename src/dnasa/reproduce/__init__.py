"""The paper's figures and other experiments: each declares its parts and how they are reported; `experiment` runs them."""

from importlib import import_module
from typing import TYPE_CHECKING

from dnasa.core import choose
from dnasa.extras import needed_by

if TYPE_CHECKING:
    from dnasa.reproduce.experiment import Experiment

__all__ = ["FIGURES", "figure"]

FIGURES = {
    "fig1": "speedup with the number of nodes (least squares, ring)",
    "fig2": "the spike model against tuned methods",
    "fig3": "test accuracy against stepsize on real data",
    "fig4": "the same for a9a on four graphs",
    "fig5": "MNIST: curves at the best stepsizes",
    "fig6": "a9a: curves at the best stepsizes",
    "heterogeneity": "accuracy of each method when the nodes' data differ",
    "faults": "accuracy of each method with lost messages, unreachable nodes and late messages",
    "compression": "accuracy against bytes for every compression of messages",
    "networks": "AdaNASA and D-NASA, untuned, against tuned methods on models that people train",
    "graphs": "AdaNASA on every graph: accuracy against bytes when the nodes' data differ",
    "robustness": "AdaNASA with other nodes, steps, graphs, partitions and loss scales",
    "lengths": "AdaNASA against tuned D-Adam on runs of 300 to 6,000 steps",
    "finetuning": "the first steps from a trained model",
    "fidelity": "D-NASA in two forms: Algorithm 2, and as published code has it",
    "guidance": "four problems with your own gradients: where D-NASA trails tuned methods, and where it does not",
    "theory": "the rates of the fixed-stepsize theorem, measured for D-NASA and AdaNASA",
}
"""What `dnasa reproduce` makes, by name."""


def figure(name: str) -> "Experiment":
    """The experiment of this name; its `run` makes the report.

    Args:
        name: One of `FIGURES`.
    """
    choose("figure", name, FIGURES)
    with needed_by(f"The study {name}"):
        experiment: Experiment = import_module(f"dnasa.reproduce.{name}").EXPERIMENT
    return experiment
