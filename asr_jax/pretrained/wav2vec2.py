"""Weight names of wav2vec 2.0 in fairseq, NVIDIA's DeepLearningExamples and Hugging Face's transformers.

The modules `wav2vec2_fairseq` and `wav2vec2_huggingface` read their settings.

Source: fairseq at commit 3d262bb2; DeepLearningExamples at commit 729963dd; transformers 5.
"""

import re
from typing import Any, Literal

import numpy as np

from asr_jax.heads.contrastive import Contrastive
from asr_jax.models.base import Model
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.nn.quantizer import Quantizer
from asr_jax.pretrained.base import Format, ctc_head
from asr_jax.pretrained.keymap import CONV_1D, LINEAR, SAME, Layout, NamedWeights, Row, export_params, find_params
from asr_jax.pretrained.wav2vec2_checkpoints import fairseq_checkpoint, nvidia_checkpoint
from asr_jax.pretrained.wav2vec2_fairseq import PREFIXES
from asr_jax.pretrained.wav2vec2_huggingface import folder_files

Names = Literal["fairseq", "huggingface"]
GAIN = Layout(lambda x: x.reshape(-1), lambda x: x[None, None])
"""Converts [1 1 taps] to [taps]."""
NEVER_USED = r".*\.(inv_freq|num_batches_tracked)"
"""Names that are ignored: frequencies of rotary positions, and batch counters."""
LAYER = (
    ("self_attn.q_proj",            "attention/query",        "kernel",  LINEAR),
    ("self_attn.k_proj",            "attention/key",          "kernel",  LINEAR),
    ("self_attn.v_proj",            "attention/value",        "kernel",  LINEAR),
    ("self_attn.out_proj",          "attention/out",          "kernel",  LINEAR),
    ("self_attn_layer_norm",        "attention_norm",         "scale",   SAME),
    ("fc1",                         "in",                     "kernel",  LINEAR),
    ("fc2",                         "out",                    "kernel",  LINEAR),
    ("final_layer_norm",            "norm",                   "scale",   SAME),
)  # fmt: skip
FAIRSEQ_STACKS = {"transformer": "layers", "before": "layers", "middle": "hourglass_layers", "after": "post_layers"}
POSITIONS = "encoder.pos_conv_embed.conv"

# Patterns of fairseq's names and Hugging Face's names for them. They are replaced in this order.
HUGGING_FACE = (
    (r"^feature_extractor\.conv_layers\.(\d+)\.0\.",      r"feature_extractor.conv_layers.\1.conv."),
    (r"^feature_extractor\.conv_layers\.(\d+)\.2(\.1)?\.", r"feature_extractor.conv_layers.\1.layer_norm."),
    (r"^layer_norm\.",                                    "feature_projection.layer_norm."),
    (r"^post_extract_proj\.",                             "feature_projection.projection."),
    (r"^mask_emb$",                                       "masked_spec_embed"),
    (r"^encoder\.pos_conv\.0\.weight_g$",                 f"{POSITIONS}.parametrizations.weight.original0"),
    (r"^encoder\.pos_conv\.0\.weight_v$",                 f"{POSITIONS}.parametrizations.weight.original1"),
    (r"^encoder\.pos_conv\.0\.",                          f"{POSITIONS}."),
    (r"\.self_attn_layer_norm\.",                         ".layer_norm."),
    (r"\.self_attn\.",                                    ".attention."),
    (r"\.fc1\.",                                          ".feed_forward.intermediate_dense."),
    (r"\.fc2\.",                                          ".feed_forward.output_dense."),
    (r"^quantizer\.vars$",                                "quantizer.codevectors"),
    (r"^final_proj\.",                                    "project_hid."),
    (r"^proj\.",                                          "lm_head."),
)  # fmt: skip
HEADS = ("quantizer.", "project_q.", "project_hid.", "lm_head.")
"""Prefixes of Hugging Face's names that are outside of the model `wav2vec2.`."""


def claims_fairseq(weights: NamedWeights) -> bool:
    """Returns whether the weights have fairseq's or NVIDIA's names."""
    return any(name.endswith("mask_emb") or ".pos_conv.0." in name for name in weights)


def claims_huggingface(weights: NamedWeights) -> bool:
    """Returns whether the weights have Hugging Face's names of a wav2vec 2.0."""
    return any("encoder.pos_conv_embed." in name for name in weights)


def rows(
    settings: Wav2Vec2, *, ctc_head: str | None, contrastive: tuple[str, Contrastive] | None, names: Names
) -> list[Row]:
    """Returns the table of names for a model.

    Args:
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.
        contrastive: Path and settings of the contrastive head; None if the model has none.
        names: System whose names the table has.
    """
    ours = "params/encoder"
    table = [Row("mask_emb", f"{ours}/mask"), *_module("layer_norm", f"{ours}/feature_norm", "scale")]
    table += _extractor_rows(settings, f"{ours}/extractor")
    if settings.projected:
        theirs = "project_inp" if settings.quantized_input else "post_extract_proj"
        table += _module(theirs, f"{ours}/project", "kernel", LINEAR)
    if settings.quantized_input:
        table += _quantizer_rows(
            "input_quantizer", f"{ours}/input_quantizer", settings.input_quantizer, settings.input_codes_dim
        )
    table += [
        Row("encoder.pos_conv.0.weight_g", f"{ours}/positions/gain", GAIN),
        Row("encoder.pos_conv.0.weight_v", f"{ours}/positions/direction", CONV_1D),
        Row("encoder.pos_conv.0.bias", f"{ours}/positions/bias"),
        *_module("encoder.layer_norm", f"{ours}/norm", "scale"),
    ]
    for stack, num_layers in settings.stacks().items():
        for layer in range(num_layers):
            theirs = f"encoder.{FAIRSEQ_STACKS[stack]}.{layer}"
            for name, module, leaf, layout in LAYER:
                table += _module(f"{theirs}.{name}", f"{ours}/{stack}/layers/{module}", leaf, layout, layer)
    if settings.hourglass and settings.hourglass.resample == "linear":
        table += _module("encoder.downsample_layer.linear", f"{ours}/shorten/project", "kernel", LINEAR)
        table += _module("encoder.upsample_layer.linear", f"{ours}/lengthen/project", "kernel", LINEAR)
    if contrastive:
        table += _contrastive_rows(f"params/{contrastive[0]}", contrastive[1], f"{ours}/input_quantizer")
    if ctc_head:
        table += _module("proj", f"params/{ctc_head}/output", "kernel", LINEAR)
    return table if names == "fairseq" else [Row(_renamed(row.theirs), *list(vars(row).values())[1:]) for row in table]


def _module(theirs: str, ours: str, leaf: str, layout: Layout = SAME, layer: int | None = None) -> list[Row]:
    """Returns the rows of a module's weight and bias."""
    return [
        Row(f"{theirs}.weight", f"{ours}/{leaf}", layout, layer),
        Row(f"{theirs}.bias", f"{ours}/bias", SAME, layer),
    ]


def _extractor_rows(settings: Wav2Vec2, ours: str) -> list[Row]:
    table = []
    for number in range(len(settings.extractor)):
        theirs = f"feature_extractor.conv_layers.{number}"
        table.append(Row(f"{theirs}.0.weight", f"{ours}/conv_{number}/kernel", CONV_1D))
        if settings.extractor_bias:
            table.append(Row(f"{theirs}.0.bias", f"{ours}/conv_{number}/bias"))
        if settings.extractor_norm == "layer":
            table += _module(f"{theirs}.2.1", f"{ours}/norm_{number}", "scale")
        elif number == 0:
            table += _module(f"{theirs}.2", f"{ours}/norm_0", "gain")
    return table


def _quantizer_rows(theirs: str, ours: str, settings: Quantizer, width: int) -> list[Row]:
    shape = (settings.groups, settings.entries, width // settings.groups)
    codebook = Layout(lambda x: x.reshape(shape), lambda x: x.reshape(1, -1, x.shape[-1]))
    table = [Row(f"{theirs}.vars", f"{ours}/codebook", codebook)]
    inner, last = settings.depth - 1, f".{settings.depth - 1}" if settings.depth > 1 else ""
    for number in range(inner):
        table += _module(f"{theirs}.weight_proj.{number}.0", f"{ours}/inner_{number}", "kernel", LINEAR)
    return table + _module(f"{theirs}.weight_proj{last}", f"{ours}/logits", "kernel", LINEAR)


def _contrastive_rows(ours: str, settings: Contrastive, of_input: str) -> list[Row]:
    """Returns the rows of a contrastive head; `of_input` is the path of the encoder's quantiser."""
    # fairseq stores a quantiser of input and targets under both names.
    quantizer = of_input if settings.same_quantizer else f"{ours}/quantizer"
    table = _quantizer_rows("quantizer", quantizer, settings.quantizer, settings.codes_dim)
    table += _module("project_q", f"{ours}/targets", "kernel", LINEAR)
    table += _module("final_proj", f"{ours}/predictions", "kernel", LINEAR)
    if settings.gated_targets:
        table += _module("target_glu.0", f"{ours}/gate", "kernel", LINEAR)
    return table


def _renamed(name: str) -> str:
    for theirs, other in HUGGING_FACE:
        name = re.sub(theirs, other, name)
    return name if name.startswith(HEADS) else f"wav2vec2.{name}"


def find(
    weights: NamedWeights,
    settings: Wav2Vec2,
    *,
    ctc_head: str | None,
    contrastive: tuple[str, Contrastive] | None = None,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the weights of a file of any of these systems by parameter path, and the names that are left.

    Args:
        weights: Weights by the system's names; parameters that they lack are not returned.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.
        contrastive: Path and settings of the contrastive head; None if the model has none.

    Returns:
        Parameters, and the names of weights that the model does not have, except those that match `NEVER_USED`.
    """
    names: Names = "huggingface" if claims_huggingface(weights) else "fairseq"
    weights = _newest(weights, names)
    found = find_params(weights, rows(settings, ctc_head=ctc_head, contrastive=contrastive, names=names))
    return found.params, [name for name in found.left if not re.fullmatch(NEVER_USED, name)]


def export_fairseq(
    variables: Any, settings: Wav2Vec2, *, ctc_head: str | None, contrastive: tuple[str, Contrastive] | None = None
) -> dict[str, np.ndarray]:
    """Returns the variables of a model under fairseq's names of a pre-trained model, with the CTC head as `proj`.

    Args:
        variables: `{"params": …}`, a part of it, or a tree of the same structure.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.
        contrastive: Path and settings of the contrastive head; None if the model has none.

    Raises:
        UserError: If a parameter has no name in fairseq.
    """
    return export_params(variables, rows(settings, ctc_head=ctc_head, contrastive=contrastive, names="fairseq"))


def export_huggingface(
    variables: Any, settings: Wav2Vec2, *, ctc_head: str | None, contrastive: tuple[str, Contrastive] | None = None
) -> dict[str, np.ndarray]:
    """Returns the variables of a model under Hugging Face's names.

    Args:
        variables: `{"params": …}`, a part of it, or a tree of the same structure.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.
        contrastive: Path and settings of the contrastive head; None if the model has none.

    Raises:
        UserError: If a parameter has no name in transformers.
    """
    return export_params(variables, rows(settings, ctc_head=ctc_head, contrastive=contrastive, names="huggingface"))


def _newest(weights: NamedWeights, names: Names) -> dict[str, np.ndarray]:
    """Returns the weights under the names of the system's newest version."""
    if names == "fairseq":
        # Removed or split are: prefixes of data parallelism and of fine-tuned models, the modules of NVIDIA's extractor
        # with padding masks, and NVIDIA's joint projection of query, key and value.
        renamed = {}
        for name, array in weights.items():
            name = re.sub(PREFIXES, "", name)
            name = re.sub(r"^(feature_extractor\.conv_layers\.\d+)\.conv\.", r"\1.0.", name)
            name = re.sub(r"^(feature_extractor\.conv_layers\.\d+)\.norm\.", r"\1.2.", name).replace("._group_norm", "")
            parts = ("q_proj", "k_proj", "v_proj") if ".qkv." in name else ("",)
            for part, share in zip(parts, np.split(array, len(parts)), strict=True):
                renamed[name.replace(".qkv.", f".{part}.")] = share
        return renamed
    bare = not any(name.startswith("wav2vec2.") for name in weights)
    renamed = {}
    for name, array in weights.items():
        name = f"wav2vec2.{name}" if bare and not name.startswith(HEADS) else name
        for old, new in (("weight_g", "original0"), ("weight_v", "original1")):
            name = re.sub(rf"(pos_conv_embed\.conv\.){old}$", rf"\1parametrizations.weight.{new}", name)
        renamed[name] = array
    return renamed


def named_heads(model: Model) -> dict[str, Any]:
    """Returns the path of the CTC head, and the path and settings of the contrastive head; None for a missing head."""
    contrastive = ((f"heads_{name}", head) for name, head in model.heads.items() if isinstance(head, Contrastive))
    return {"ctc_head": ctc_head(model), "contrastive": next(contrastive, None)}


FORMATS = (
    Format(
        "huggingface", "Hugging Face (wav2vec 2.0)", Wav2Vec2, claims_huggingface, find, export_huggingface,
        folder_files, heads=named_heads,
    ),
    Format(
        "fairseq", "fairseq or NVIDIA (wav2vec 2.0)", Wav2Vec2, claims_fairseq, find, export_fairseq,
        checkpoint=fairseq_checkpoint, heads=named_heads,
    ),
    Format(
        "deeplearningexamples", "NVIDIA DeepLearningExamples (wav2vec 2.0)", Wav2Vec2, lambda weights: False, find,
        export_fairseq, checkpoint=nvidia_checkpoint, heads=named_heads,
    ),
)  # fmt: skip
