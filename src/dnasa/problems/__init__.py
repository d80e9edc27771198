"""What is minimized. A problem defines its nodes' losses and gradients and does not depend on rules, graphs or processes."""

from typing import TYPE_CHECKING

from dnasa.extras import on_first_use
from dnasa.problems.privacy import Privacy
from dnasa.problems.problem import Problem

if TYPE_CHECKING:
    from dnasa.problems import models, prox
    from dnasa.problems.classification import Classification, Regression
    from dnasa.problems.custom import Custom
    from dnasa.problems.least_squares import LeastSquares
    from dnasa.problems.robust_regression import RobustRegression
    from dnasa.problems.supervised import Supervised

__all__ = [
    "Classification",
    "Custom",
    "LeastSquares",
    "Privacy",
    "Problem",
    "Regression",
    "RobustRegression",
    "Supervised",
    "models",
    "prox",
]

PLACES = {
    "Classification": "classification",
    "Custom": "custom",
    "LeastSquares": "least_squares",
    "Regression": "classification",
    "RobustRegression": "robust_regression",
    "Supervised": "supervised",
}
__getattr__, __dir__ = on_first_use(__name__, __all__, PLACES)
