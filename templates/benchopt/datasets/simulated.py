import numpy as np
from benchopt import BaseDataset


class Dataset(BaseDataset):
    """Labels -1 and 1 of a linear model with noise."""

    name = "simulated"
    parameters = {"n_samples": [1000], "n_features": [20]}
    test_parameters = {"n_samples": [80], "n_features": [5]}

    def get_data(self):
        rng = np.random.default_rng(self.get_seed())
        X = rng.standard_normal((self.n_samples, self.n_features))
        margins = X @ rng.standard_normal(self.n_features) + rng.standard_normal(self.n_samples)
        return {"X": X, "y": np.where(margins > 0, 1.0, -1.0)}
