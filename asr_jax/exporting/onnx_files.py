"""ONNX files: their metadata, weights in float16 or int8, and sessions that run them."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from asr_jax.core.files import write_whole

WeightType = Literal["f32", "f16", "int8"]
"""Type of the weights in a file. f16: rounded to float16, and computed in float32. int8: the weights of products of
matrices are quantised by onnxruntime, which also quantises their inputs when the model runs."""
SMALLEST = 1024
"""Smallest number of elements of a constant that is stored in float16."""


def file_name(part: str, weights: WeightType) -> str:
    """Returns the name of the file of a part, such as `encoder.int8.onnx`."""
    return f"{part}.onnx" if weights == "f32" else f"{part}.{weights}.onnx"


def write_onnx(model: onnx.ModelProto, path: Path, *, metadata: Mapping[str, Any], weights: WeightType) -> None:
    """Writes a model with weights of a type.

    Args:
        model: Model with weights in float32.
        metadata: Keys and values, which are written as text.
    """
    if weights == "f16":
        model = with_half_weights(model)
    elif weights == "int8":
        model = quantised(model)
    else:
        model = _copied(model)
    helper.set_model_props(model, {name: str(value) for name, value in metadata.items()})
    onnx.checker.check_model(model)
    write_whole(path, model.SerializeToString())


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def with_half_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model whose large constants are stored in float16 and converted to float32 when it is loaded."""
    model = _copied(model)
    casts = []
    for constant in model.graph.initializer:
        array = numpy_helper.to_array(constant)
        if array.dtype == np.float32 and array.size >= SMALLEST:
            name = constant.name
            constant.CopyFrom(numpy_helper.from_array(array.astype(np.float16), f"{name}_f16"))
            casts.append(helper.make_node("Cast", [constant.name], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model with int8 weights in products of matrices."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        onnx.save(model, before)
        quantize_dynamic(before, after, op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8)
        return onnx.load(after)


def open_onnx(path: Path, *, threads: int = 0) -> onnxruntime.InferenceSession:
    """Opens a file to run it on the CPU.

    Args:
        threads: Number of threads. 0: all cores.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
