import numpy as np
from benchopt import BaseDataset

import dnasa


class Dataset(BaseDataset):
    """Training rows of a dataset that dnasa knows (`dnasa data` lists them). The label is 1 for odd classes, else -1."""

    name = "known"
    requirements = ["scikit-learn"]
    parameters = {"data": ["digits"]}

    def get_data(self):
        rows = dnasa.data.load(self.data)
        X = rows.inputs.reshape(len(rows.labels), -1).astype(float)
        return {"X": X, "y": np.where(rows.labels % 2, 1.0, -1.0)}
