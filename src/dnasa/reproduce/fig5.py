"""Figure 5: MNIST, loss, accuracy and stationarity against epochs and seconds."""

from dnasa.reproduce import curves
from dnasa.reproduce.report import Report


def run(quick: bool = False, progress: bool | None = None, device: str = "cpu") -> Report:
    """LeNet on MNIST."""
    return curves.run("fig5", "mnist", quick, progress, device)
