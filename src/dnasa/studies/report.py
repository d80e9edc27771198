"""The outcome of a study: tables, figures, and findings in words."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dnasa.files import make_folder
from dnasa.plots import save_figure

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
        """One CSV per table, one PNG per figure, and the findings as text."""
        folder = make_folder(path)
        for name, table in (self.tables | self.data).items():
            table.to_csv(folder / f"{name}.csv", index=False)
        (folder / f"{self.name}-findings.txt").write_text("\n".join(self.findings) + "\n", encoding="utf-8")
        return [save_figure(figure, folder / f"{name}.png") for name, figure in self.figures.items()]
