"""Make tables of five hospitals: synthetic patients, 8 % of whom die, for the tutorial *Our five hospitals*.

    python examples/five_hospitals.py [folder] [--messy]

Columns: an identifier, a date, numbers with gaps, and categories. The risk is not linear: low and high sodium are both bad, and
lactate matters more for the old. With `--messy` the hospitals write their tables differently, as real ones do: other units,
spellings and codes, -999 for a missing number, an empty column, a typo in a label, and patients that two hospitals have.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

HOSPITALS = {"berlin": 1500, "bonn": 1100, "lyon": 850, "oslo": 600, "paris": 400}  # rows
TRANSFERRED = 30  # patients of Berlin whom Paris has too, in the messy tables


def patients(name: str, rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """The table of a hospital; hospitals differ a little in their patients."""
    age = rng.normal(64 + 4 * rng.normal(), 13, rows).clip(18, 99)
    sodium = rng.normal(138, 5, rows)
    lactate = rng.lognormal(0.5 + 0.1 * rng.normal(), 0.55, rows)
    creatinine = rng.lognormal(0.1, 0.4, rows)
    sex = rng.choice(["female", "male"], rows)
    severity = rng.choice(["mild", "moderate", "severe"], rows, p=[0.5, 0.35, 0.15])
    smoker = rng.choice(["never", "former", "current"], rows, p=[0.5, 0.3, 0.2])
    old = (age - 64) / 13
    logit = -5.1 + 0.7 * old + 0.4 * ((sodium - 138) / 5) ** 2 + 1.3 * np.log(lactate) * (1 + 0.5 * old) + np.log(creatinine)
    logit += 1.2 * (severity == "severe") + 0.5 * (severity == "moderate") + 0.4 * (smoker == "current")
    table = pd.DataFrame(
        {
            "patient": [f"{name[:2].upper()}-{number:06d}" for number in rng.choice(10**6, rows, replace=False)],
            "admitted": (pd.Timestamp("2025-01-01") + pd.to_timedelta(rng.integers(0, 365, rows), "D")).strftime("%Y-%m-%d"),
            "age": age.round(),
            "sex": sex,
            "severity": severity,
            "smoker": smoker,
            "heart_rate": rng.normal(85, 15, rows).round(),
            "sodium": sodium.round(1),
            "creatinine": creatinine.round(2),  # mg/dl
            "lactate": lactate.round(2),
            "albumin": rng.normal(36, 5, rows).round(1),
        }
    )
    dead = rng.random(rows) < 1 / (1 + np.exp(-logit))
    for column, share in {"lactate": 0.15, "albumin": 0.1, "smoker": 0.05}.items():
        table[column] = table[column].mask(rng.random(rows) < share)
    return table.assign(died=np.where(dead, "yes", "no"))


def mess_up(tables: dict[str, pd.DataFrame]) -> None:
    """Write the tables as five hospitals would that did not talk to each other."""
    berlin, bonn, lyon, oslo = (tables[name] for name in list(HOSPITALS)[:4])
    paris = tables["paris"] = pd.concat([tables["paris"], berlin[:TRANSFERRED]], ignore_index=True)
    bonn["died"] = bonn["died"].map({"no": 0, "yes": 1})
    lyon["died"] = lyon["died"].map({"no": 1, "yes": 2})
    lyon["creatinine"] = (lyon["creatinine"] * 88.4).round(1)  # in µmol/l
    oslo["severity"] = oslo["severity"].str.capitalize()
    oslo["sex"] = oslo["sex"].map({"female": "f", "male": "m"})
    oslo["lactate"] = oslo["lactate"].fillna(-999)
    bonn["albumin"] = np.nan
    oslo["heart_rate"] = 80
    paris.loc[paris.index[paris["died"] == "no"][0], "died"] = "noo"


def make(folder: Path, messy: bool = False, seed: int = 0) -> None:
    """Write a file for each hospital into a folder."""
    rng = np.random.default_rng(seed)
    tables = {name: patients(name, rows, rng) for name, rows in HOSPITALS.items()}
    if messy:
        mess_up(tables)
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?", default=Path("hospitals"))
    parser.add_argument("--messy", action="store_true")
    make(**vars(parser.parse_args()))
