"""ONNX files: their metadata, weights in float16 or int8, and sessions that run them."""

import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from asr_jax.core.files import write_whole
from asr_jax.exporting.onnx_graph import EXACT
from asr_jax.exporting.parts import WeightType

SMALLEST = 1024
"""Smallest number of elements of a constant that is stored in float16."""


def file_name(part: str, weights: WeightType) -> str:
    """Returns the name of the file of a part, such as `encoder.int8.onnx`."""
    return f"{part}.onnx" if weights == "f32" else f"{part}.{weights}.onnx"


def write_onnx(model: onnx.ModelProto, path: Path, *, metadata: Mapping[str, Any], weights: WeightType) -> None:
    """Writes a model with weights of a type."""
    if weights == "f16":
        model = with_half_weights(model)
    elif weights == "int8":
        model = quantised(model)
    helper.set_model_props(model, {name: str(value) for name, value in metadata.items()})
    onnx.checker.check_model(model)
    write_whole(path, model.SerializeToString())


def with_half_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model whose large constants are stored in float16 and converted to float32 when it is loaded."""
    before, model = model, onnx.ModelProto()
    model.CopyFrom(before)
    exact = {name for node in model.graph.node if node.doc_string == EXACT for name in node.input}
    casts = []
    for constant in model.graph.initializer:
        array = numpy_helper.to_array(constant)
        if array.dtype == np.float32 and array.size >= SMALLEST and constant.name not in exact:
            name = constant.name
            constant.CopyFrom(numpy_helper.from_array(array.astype(np.float16), f"{name}_f16"))
            casts.append(helper.make_node("Cast", [constant.name], [name], to=onnx.TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model with weights of 8 bits in the products of matrices that are not the front-end's."""
    exact = [node.name for node in model.graph.node if node.doc_string == EXACT]
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        onnx.save(model, before)
        disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)  # the advice to pre-process images
        try:
            # Activations are unsigned. With signed weights, onnxruntime's sums of two products exceed 16 bits on x86
            # processors without VNNI, and are cut: a model's best labels changed in a quarter of the frames.
            quantize_dynamic(
                before, after, op_types_to_quantize=["MatMul"], weight_type=QuantType.QUInt8, nodes_to_exclude=exact
            )
        finally:
            logging.disable(disabled)
        return onnx.load(after)


def open_onnx(path: Path) -> onnxruntime.InferenceSession:
    """Opens a file to run it on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
