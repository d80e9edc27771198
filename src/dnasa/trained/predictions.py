"""Predictions for the rows of a file, as a table."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnasa.core import InputError
from dnasa.data.columns import changed
from dnasa.data.reading import is_number, read_rows
from dnasa.trained.model import TrainedModel

if TYPE_CHECKING:
    import pandas as pd


def of_file(model: TrainedModel, path: Path, id_column: str | None = None) -> "pd.DataFrame":
    """A row for each row of the file; the first column has the names of images, or the `id_column`, by default the model's."""
    model.check_takes_rows()
    wanted = id_column or model.encoding.id_column
    rows, names = read_rows(path, model.encoding._replace(id_column=wanted))
    if id_column and not names:
        raise InputError(f"{path.name} has no column '{id_column}': leave --id-column out.")
    if wanted and not names:
        warnings.warn(f"{path.name} has no column '{wanted}': predictions are in the order of its rows.", stacklevel=2)
    predicted = table(model, rows)
    if names:
        predicted.insert(0, "file" if path.is_dir() else str(wanted), names, allow_duplicates=True)
    return predicted


def as_csv(predicted: "pd.DataFrame") -> str:
    """The text of a CSV file; texts that a spreadsheet would calculate begin with an apostrophe there."""
    safe = changed(predicted, lambda column: column.map(_inert))
    return safe.set_axis([_inert(name) for name in safe], axis=1).to_csv(index=False, float_format="%.7g")


def _inert(value: Any) -> Any:
    calculated = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) and not is_number(value)
    return f"'{value}" if calculated else value


def table(model: TrainedModel, rows: Any) -> "pd.DataFrame":
    """`prediction`, and the probability `p_CLASS` of each class."""
    import pandas as pd

    if model.task == "regression":
        return pd.DataFrame({"prediction": model.predict(rows)})
    p = model.predict_proba(rows)
    probabilities = pd.DataFrame(p, columns=[f"p_{name}" for name in model.classes])
    probabilities.insert(0, "prediction", model.classes[p.argmax(1)])
    return probabilities
