"""Export to ONNX, checked with onnxruntime."""

import json
import logging
import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from dnasa.core import RunError
from dnasa.data.columns import MISSING, MISSING_WORDS
from dnasa.data.encoding import Encoding, are_positions
from dnasa.extras import needed_by
from dnasa.trained.model import TrainedModel

CHECKED = 64  # rows that both compute
TOLERANCE = 1e-3  # relative to the largest output


def export(model: TrainedModel) -> tuple[bytes, float]:
    """The content of an ONNX file, whose number of rows is free, with an input for each named column of a table, else `rows`.

    Also the largest difference of its outputs, computed by onnxruntime, to ours, on rows like those of the training.
    """
    with needed_by("Export to ONNX"):
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401, which torch's exporter uses
    encoding, module, is_regression = model.encoding, model.to_torch(), model.task == "regression"
    by_column = bool(encoding.features) and not are_positions(model.features)
    frame = example_table(encoding) if by_column else pd.DataFrame()
    rows = torch.from_numpy(encoding.encode(frame)).double() if by_column else example(model)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program: Any = torch.onnx.export(
            module,
            (rows,),
            input_names=["rows"],
            output_names=["values" if is_regression else "logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
        expected = module(rows).numpy()
    if by_column:
        expected = encoding.target_values(model.outputs(encoding.transform(frame)))
    proto = with_columns(encoding, program.model_proto) if by_column else program.model_proto
    if not is_regression:
        proto.graph.node.append(onnx.helper.make_node("Softmax", ["logits"], ["probabilities"]))
        proto.graph.output.add().CopyFrom(proto.graph.output[0])
        proto.graph.output[1].name = "probabilities"
    about = {"inputs": list(encoding.inputs), "classes": model.classes.tolist(), "task": model.task}
    onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in about.items()})
    content = proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    columns = {name: frame[[name]].to_numpy() for name in frame}
    outputs, *_ = session.run(None, columns or {"rows": rows.numpy()})
    difference = float(np.abs(outputs - expected).max())
    if not difference <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise RunError(f"The exported model differs from ours by {difference:.3g}: it was not written.")
    return content, difference


def with_columns(encoding: Encoding, model: Any) -> Any:
    """The ONNX model with raw columns as inputs, `(rows, 1)` each: numbers in double precision, NaN if missing, or texts."""
    from onnx import TensorProto, compose, helper, numpy_helper

    nodes, inputs, parts, place = list[Any](), list[Any](), list[str](), 0

    def add(kind: str, *names: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, names, [f"encoding/{len(nodes)}"], **attributes))
        return f"encoding/{len(nodes) - 1}"

    def constant(value: Any) -> str:
        return add("Constant", value=numpy_helper.from_array(np.asarray(value)))

    for feature in encoding.features:
        kind = TensorProto.STRING if feature.kind == "text" else TensorProto.DOUBLE
        inputs.append(helper.make_tensor_value_info(feature.name, kind, ["batch", 1]))
        if feature.kind == "text":
            numbers = {word: number for number, word in enumerate(feature.categories)}
            numbers |= dict.fromkeys(MISSING_WORDS, numbers.get(MISSING, -1))
            codes = {"keys_strings": list(numbers), "values_int64s": list(numbers.values()), "default_int64": -1}
            number = add("LabelEncoder", feature.name, domain="ai.onnx.ml", **codes)
            parts.append(add("Cast", add("Equal", number, constant(np.arange(len(feature.categories)))), to=TensorProto.DOUBLE))
        else:
            missing, mean = add("IsNaN", feature.name), np.asarray(encoding.mean)[place]
            parts.append(add("Where", missing, constant(mean if feature.fill is None else feature.fill), feature.name))
            parts += [add("Cast", missing, to=TensorProto.DOUBLE)] if feature.fill is not None else []
        place += len(feature.inputs)
    encoded = helper.make_tensor_value_info(add("Concat", *parts, axis=1), TensorProto.DOUBLE, ["batch", place])
    versions = [*model.opset_import, helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "encoding", inputs, [encoded])
    before = helper.make_model(graph, opset_imports=versions, ir_version=model.ir_version)
    after = compose.add_prefix(model, "model/", rename_outputs=False)
    return compose.merge_models(before, after, io_map=[(encoded.name, "model/rows")])


def example_table(encoding: Encoding) -> pd.DataFrame:
    """Rows like those of the training data, with gaps and an unknown category."""
    columns, place = dict[str, np.ndarray](), 0
    for feature in encoding.features:
        mean, scale = (np.asarray(part)[place] for part in (encoding.mean, encoding.scale))
        words, numbers = np.array([*feature.categories, "unknown"], object), mean + scale * np.array([-1, np.nan, 0, 2])
        columns[feature.name] = np.resize(words if feature.kind == "text" else numbers, CHECKED)
        place += len(feature.inputs)
    return pd.DataFrame(columns)


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
