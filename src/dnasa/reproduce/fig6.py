"""Figure 6: the curves of Figure 5 for the perceptron on a9a."""

from dnasa.reproduce.fig5 import curves

EXPERIMENT = curves("fig6", "a9a")
