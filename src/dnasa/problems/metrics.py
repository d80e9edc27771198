"""What the name of a metric says: in which direction it improves, and whether it is a share."""


def larger_is_better(metric: str) -> bool:
    """Whether larger values are better: for accuracies and R^2; for everything else, smaller ones are."""
    return in_percent(metric) or metric.endswith("_r2")


def in_percent(metric: str) -> bool:
    """Whether a metric is shown in percent: accuracies are shares."""
    return "accuracy" in metric
