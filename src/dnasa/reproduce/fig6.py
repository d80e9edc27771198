"""Figure 6: a9a, loss, accuracy and stationarity against epochs and seconds."""

from dnasa.reproduce import curves
from dnasa.reproduce.report import Report


def run(quick: bool = False, progress: bool | None = None, device: str = "cpu") -> Report:
    """The perceptron on a9a."""
    return curves.run("fig6", "a9a", quick, progress, device)
