"""What is minimized. A problem defines its nodes' losses and gradients and does not depend on rules, graphs or processes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dnasa.extras import needed_by
from dnasa.problems.privacy import Privacy
from dnasa.problems.problem import Problem

if TYPE_CHECKING:
    from dnasa.problems import augment, models, prox
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
    "augment",
    "models",
    "prox",
]


MODULES = {
    "Classification": "classification",
    "Custom": "custom",
    "LeastSquares": "least_squares",
    "Regression": "classification",
    "RobustRegression": "robust_regression",
    "Supervised": "supervised",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a problem when it is first used, since some need torch."""
        if name not in __all__:
            raise AttributeError(f"module 'dnasa.problems' has no attribute '{name}'")
        with needed_by(f"dnasa.problems.{name}"):
            module = import_module(f"dnasa.problems.{MODULES.get(name, name)}")
        return getattr(module, name, module)

    def __dir__() -> list[str]:
        return sorted(__all__)
