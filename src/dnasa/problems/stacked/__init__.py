"""Many small models as one array: layers with formulas, and kernels for GPUs."""
