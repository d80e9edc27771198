"""Export to ONNX, checked with onnxruntime."""

import json
import logging
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dnasa.core import RunError
from dnasa.extras import needed_by
from dnasa.trained.model import TrainedModel

CHECKED = 64  # rows that both compute
TOLERANCE = 1e-3  # relative to the largest output


def export(model: TrainedModel) -> tuple[bytes, float]:
    """The content of an ONNX file of `to_torch()`, whose number of rows is free.

    Also the largest difference of its outputs, computed by onnxruntime, to ours, on rows like those of the training.
    """
    with needed_by("Export to ONNX"):
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401, which torch's exporter uses
    rows, module = example(model), model.to_torch()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program: Any = torch.onnx.export(
            module,
            (rows,),
            input_names=["rows"],
            output_names=["values" if model.task == "regression" else "logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
        expected = module(rows).numpy()
    proto = program.model_proto
    about = {"inputs": list(model.encoding.inputs), "classes": model.classes.tolist(), "task": model.task}
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in about.items()})
    content = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {"rows": rows.numpy()})
    difference = float(np.abs(outputs - expected).max())
    if not difference <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise RunError(f"The exported model differs from ours by {difference:.3g}: it was not written.")
    return content, difference


def example(model: TrainedModel) -> Tensor:
    """Encoded rows like those of the training data."""
    encoding, generator = model.encoding, np.random.default_rng(0)
    shape = (CHECKED, *encoding.shape)
    if model.kind == "tokens":
        return torch.from_numpy(generator.integers(len(encoding.classes), size=shape))
    if model.kind == "bytes":
        return torch.from_numpy(generator.integers(256, size=shape).astype(np.uint8))
    rows = generator.standard_normal(shape)
    if encoding.mean is not None and encoding.scale is not None:
        rows = rows * encoding.scale + encoding.mean
    return torch.from_numpy(rows.astype(np.float32))
