"""The outcome of a study: tables, figures, and findings in words."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dnasa.files import make_folder
from dnasa.plots import rendered
from dnasa.runs.own_files import OwnFiles

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass
class Report:
    """`tables` are printed and written as CSV, `data` only written, `findings` are printed under the tables."""

    name: str
    title: str
    tables: dict[str, "pd.DataFrame"] = field(default_factory=dict)
    data: dict[str, "pd.DataFrame"] = field(default_factory=dict)
    figures: dict[str, "Figure"] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def save(self, path: str | Path) -> list[Path]:
        """One CSV per table, one PNG per figure, and the findings as text; those of an earlier report are replaced."""
        tables = {f"{name}.csv": table.to_csv(index=False) for name, table in (self.tables | self.data).items()}
        tables[f"{self.name}-findings.txt"] = "\n".join(self.findings) + "\n"
        pictures = {f"{name}.png": rendered(figure, "png") for name, figure in self.figures.items()}
        folder = OwnFiles(make_folder(path)).save({name: text.encode() for name, text in tables.items()} | pictures)
        return [folder / name for name in pictures]
