"""Calibration of linear models on few rows of real tables: dnasa over five sites, and scikit-learn on pooled rows.

DNASA_DATA=data python experiments/calibration.py     # a9a and covertype; a line for each number of events per input
"""

import os
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dnasa import data
from dnasa.sklearn import DecentralizedClassifier

EVENTS = (3, 6, 12, 25)  # training rows of the rarer class for each input
SEEDS, TESTED, MOST = 3, 15_000, 20_000
METHODS = {
    "dnasa, linear": lambda seed: DecentralizedClassifier(model="linear", nodes=5, random_state=seed, early_stopping=False),
    "scikit-learn, pooled": lambda seed: make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
    "maximum likelihood, pooled": lambda seed: make_pipeline(StandardScaler(), LogisticRegression(C=1e4, max_iter=2000)),
}


def tables() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Some columns of a9a, and classes of covertype against the rest, with all columns and with twelve."""
    random, adult = np.random.default_rng(7), data.load("a9a")
    inputs, labels = np.concatenate([adult.inputs, adult.test_inputs]), np.concatenate([adult.labels, adult.test_labels])
    out = {f"a9a, {width}": (inputs[:, random.choice(123, width, replace=False)], labels) for width in (10, 25, 60, 123)}
    cover = pd.read_csv(Path(os.environ["DNASA_DATA"]) / "covertype" / "covertype-sample.csv.gz").to_numpy(float)
    for kind in (1, 2, 3, 5, 7):
        twelve = np.concatenate([random.choice(10, 6, replace=False), 10 + random.choice(44, 6, replace=False)])
        for columns in (np.arange(54), twelve):
            out[f"covertype {kind}, {len(columns)}"] = cover[:, columns], (cover[:, -1] == kind).astype(int)
    return out


def fits() -> pd.DataFrame:
    rows = []
    for (table, (inputs, labels)), events, seed in product(tables().items(), EVENTS, range(SEEDS)):
        count = int(events * inputs.shape[1] / min(labels.mean(), 1 - labels.mean()))
        if count > min(len(labels) // 2, MOST):
            continue
        order = np.random.default_rng(seed).permutation(len(labels))
        train, test = order[:count], order[count:][:TESTED]
        varying = inputs[train].std(0) > 0
        for method, make in METHODS.items():
            model = make(seed).fit(inputs[train][:, varying], labels[train])
            risks = model.predict_proba(inputs[test][:, varying])[:, 1].astype(float).clip(1e-9, 1 - 1e-9)
            slope = LogisticRegression(C=1e6).fit(logit(risks)[:, None], labels[test]).coef_[0, 0]
            found = {"slope": slope, "AUC": roc_auc_score(labels[test], risks), "loss": log_loss(labels[test], risks)}
            rows.append({"table": table, "events per input": events, "method": method} | found)
    return pd.DataFrame(rows)


def summary(runs: pd.DataFrame) -> pd.Series:
    low, median, high = runs.slope.quantile([0.1, 0.5, 0.9])
    inside = runs.slope.between(0.9, 1.1).mean()
    numbers = {"slope": f"{median:.2f} ({low:.2f} to {high:.2f})", "0.9 to 1.1": f"{inside:.0%}"}
    return pd.Series(numbers | {"AUC": runs.AUC.mean().round(4), "loss": runs.loss.mean().round(4), "fits": len(runs)})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = fits()
    names = ["events per input", "method"]
    print(found.groupby(names, sort=False).apply(summary, include_groups=False).to_string())
    print(found.groupby("method", sort=False).apply(summary, include_groups=False).to_string())
