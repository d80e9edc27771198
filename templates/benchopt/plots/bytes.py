from benchopt import BasePlot


class Plot(BasePlot):
    """A metric against the bytes that a node has sent."""

    name = "against_bytes"
    type = "scatter"
    options = {"dataset": ..., "objective": ..., "objective_column": ...}

    def plot(self, df, dataset, objective, objective_column):
        df = df[(df.dataset_name == dataset) & (df.objective_name == objective) & (df.objective_bytes > 0)]
        curves = []
        for solver, rows in df.groupby("solver_name"):
            medians = rows.groupby("stop_val")[["objective_bytes", objective_column]].median()
            x, y = medians.T.to_numpy().tolist()
            curves.append({"x": x, "y": y, "label": solver, **self.get_style(solver)})
        return curves

    def get_metadata(self, df, dataset, objective, objective_column):
        return {"title": f"{objective}\nData: {dataset}", "xlabel": "bytes sent by a node", "ylabel": objective_column}
