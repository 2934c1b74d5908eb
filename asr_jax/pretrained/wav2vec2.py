"""Weight names of wav2vec 2.0 in fairseq, NVIDIA's DeepLearningExamples and Hugging Face's transformers.

The modules `wav2vec2_fairseq` and `wav2vec2_huggingface` read their settings.

Source: fairseq at commit 3d262bb2; DeepLearningExamples at commit 729963dd; transformers 5.
"""

from dataclasses import replace

import numpy as np

from asr_jax.heads.contrastive import Contrastive
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.nn.wav2vec.quantizer import Quantizer
from asr_jax.pretrained.base import NO_NAME, Format, Heads, ctc_rows, first_head
from asr_jax.pretrained.keymap import (
    CONV_1D,
    GROUP_NORM,
    LINEAR,
    NORM,
    Kind,
    NamedWeights,
    Row,
    Table,
    TensorLayout,
    array,
    attention,
    kernel,
    rows_of,
)
from asr_jax.pretrained.wav2vec2_checkpoints import fairseq_checkpoint, nvidia_checkpoint
from asr_jax.pretrained.wav2vec2_fairseq import PREFIXES
from asr_jax.pretrained.wav2vec2_huggingface import folder_files

GAIN = TensorLayout(lambda x: x.reshape(-1), lambda x: x[None, None])
"""Converts [1 1 taps] to [taps]."""
UNUSED = r".*\.(inv_freq|num_batches_tracked)"
"""Names of the frequencies of rotary positions, and of batch counters."""
LAYER: Table = (
    *attention("self_attn", "attention", ("q_proj", "k_proj", "v_proj", "out_proj")),
    ("self_attn_layer_norm", "attention_norm", NORM),
    ("fc1", "in", LINEAR),
    ("fc2", "out", LINEAR),
    ("final_layer_norm", "norm", NORM),
)
POSITIONS = (
    ("encoder.pos_conv.0.weight_g", "positions/gain", array(GAIN)),
    ("encoder.pos_conv.0.weight_v", "positions/direction", array(CONV_1D)),
    ("encoder.pos_conv.0.bias", "positions/bias", array()),
)
RESAMPLING = (
    ("encoder.downsample_layer.linear", "shorten/project", LINEAR),
    ("encoder.upsample_layer.linear", "lengthen/project", LINEAR),
)
STACKS = {"transformer": "layers", "before": "layers", "middle": "hourglass_layers", "after": "post_layers"}
"""fairseq's names of our stacks."""

WEIGHT = "encoder.pos_conv_embed.conv.parametrizations.weight"
# fairseq's names and Hugging Face's names for them.
HUGGING_FACE = (
    (r"^feature_extractor\.conv_layers\.(\d+)\.0\.", r"feature_extractor.conv_layers.\1.conv."),
    (r"^feature_extractor\.conv_layers\.(\d+)\.2(\.1)?\.", r"feature_extractor.conv_layers.\1.layer_norm."),
    (r"^layer_norm\.", "feature_projection.layer_norm."),
    (r"^post_extract_proj\.", "feature_projection.projection."),
    (r"^mask_emb$", "masked_spec_embed"),
    (r"^encoder\.pos_conv\.0\.weight_g$", f"{WEIGHT}.original0"),
    (r"^encoder\.pos_conv\.0\.weight_v$", f"{WEIGHT}.original1"),
    (r"^encoder\.pos_conv\.0\.", "encoder.pos_conv_embed.conv."),
    (r"\.self_attn_layer_norm\.", ".layer_norm."),
    (r"\.self_attn\.", ".attention."),
    (r"\.fc1\.", ".feed_forward.intermediate_dense."),
    (r"\.fc2\.", ".feed_forward.output_dense."),
    (r"^quantizer\.vars$", "quantizer.codevectors"),
    (r"^final_proj\.", "project_hid."),
    (r"^proj\.", "lm_head."),
    (r"^(?!quantizer\.|project_q\.|project_hid\.|lm_head\.)", "wav2vec2."),  # all but the heads
)
OLDER_HUGGING_FACE = (
    (r"^wav2vec2\.", ""),  # in a model without a head, names lack it
    (r"\.parametrizations\.weight\.original0$", ".weight_g"),
    (r"\.parametrizations\.weight\.original1$", ".weight_v"),
)
OF_NVIDIA = (
    (PREFIXES, ""),
    (r"^(feature_extractor\.conv_layers\.\d+)\.conv\.", r"\1.0."),  # an extractor with padding masks
    (r"^(feature_extractor\.conv_layers\.\d+)\.norm\.", r"\1.2."),
    (r"\._group_norm", ""),
)


def rows(settings: Wav2Vec2, heads: Heads) -> list[Row]:
    """Returns the table of fairseq's names, with the CTC head as `proj`."""
    ours, quantizes = "encoder", settings.quantized_input
    modules: list[tuple[str, str, Kind]] = [
        ("mask_emb", "mask", array()),
        ("layer_norm", "feature_norm", NORM),
        *POSITIONS,
        ("encoder.layer_norm", "norm", NORM),
    ]
    if settings.projected:
        modules.append(("project_inp" if quantizes else "post_extract_proj", "project", LINEAR))
    if quantizes:
        modules += _quantizer("input_quantizer", "input_quantizer", settings.input_quantizer, settings.input_codes_dim)
    if settings.hourglass and settings.hourglass.resample == "linear":
        modules += RESAMPLING
    table = rows_of([*modules, *_extractor(settings)], ours=ours)
    for stack, num_layers in settings.stacks().items():
        for layer in range(num_layers):
            table += rows_of(LAYER, f"encoder.{STACKS[stack]}.{layer}", f"{ours}/{stack}/layers", layer)
    for path, head in first_head(heads, Contrastive):
        table += _contrastive_rows(path, head, f"{ours}/input_quantizer")
    return table + ctc_rows("proj", heads)


def _extractor(settings: Wav2Vec2) -> list[tuple[str, str, Kind]]:
    theirs, ours = "feature_extractor.conv_layers", "extractor"
    conv: Kind = CONV_1D if settings.extractor_bias else kernel(CONV_1D)
    numbers = range(len(settings.extractor))
    modules: list[tuple[str, str, Kind]] = [
        (f"{theirs}.{number}.0", f"{ours}/conv_{number}", conv) for number in numbers
    ]
    if settings.extractor_norm == "layer":
        modules += [(f"{theirs}.{number}.2.1", f"{ours}/norm_{number}", NORM) for number in numbers]
    elif settings.extractor:
        modules.append((f"{theirs}.0.2", f"{ours}/norm_0", GROUP_NORM))
    return modules


def _quantizer(theirs: str, ours: str, settings: Quantizer, width: int) -> list[tuple[str, str, Kind]]:
    shape = (settings.groups, settings.entries, width // settings.groups)
    codebook = TensorLayout(lambda x: x.reshape(shape), lambda x: x.reshape(1, -1, x.shape[-1]))
    inner, last = settings.depth - 1, f".{settings.depth - 1}" if settings.depth > 1 else ""
    return [
        (f"{theirs}.vars", f"{ours}/codebook", array(codebook)),
        *((f"{theirs}.weight_proj.{number}.0", f"{ours}/inner_{number}", LINEAR) for number in range(inner)),
        (f"{theirs}.weight_proj{last}", f"{ours}/logits", LINEAR),
    ]


def _contrastive_rows(ours: str, settings: Contrastive, of_input: str) -> list[Row]:
    """Returns the rows of a contrastive head; `of_input` is the path of the encoder's quantiser."""
    # fairseq stores a quantiser of input and targets under both names.
    quantizer = of_input if settings.same_quantizer else f"{ours}/quantizer"
    modules: list[tuple[str, str, Kind]] = [
        ("project_q", f"{ours}/targets", LINEAR),
        ("final_proj", f"{ours}/predictions", LINEAR),
        *_quantizer("quantizer", quantizer, settings.quantizer, settings.codes_dim),
    ]
    if settings.gated_targets:
        modules.append(("target_glu.0", f"{ours}/gate", LINEAR))
    return rows_of(modules)


def split_projections(weights: NamedWeights) -> dict[str, np.ndarray]:
    """Returns the weights with NVIDIA's joint projections of query, key and value split into three."""
    split = {}
    for name, values in weights.items():
        parts = ("q_proj", "k_proj", "v_proj") if ".qkv." in name else ("",)
        for part, share in zip(parts, np.split(values, len(parts)), strict=True):
            split[name.replace(".qkv.", f".{part}.")] = share
    return split


HUGGINGFACE = Format(
    names="huggingface",
    of="Hugging Face (wav2vec 2.0)",
    encoder=Wav2Vec2,
    mark=r"encoder\.pos_conv_embed\.",
    rows=lambda settings, heads: [row.renamed(HUGGING_FACE) for row in rows(settings, heads)],
    unused=UNUSED,
    versions=OLDER_HUGGING_FACE,
    folder=folder_files,
)
FAIRSEQ = Format(
    names="fairseq",
    of="fairseq or NVIDIA (wav2vec 2.0)",
    encoder=Wav2Vec2,
    mark=r"mask_emb$|\.pos_conv\.0\.",
    rows=rows,
    unused=UNUSED,
    versions=OF_NVIDIA,
    newest=split_projections,
    checkpoint=fairseq_checkpoint,
)
NVIDIA = replace(
    FAIRSEQ,  # also claims the files of NVIDIA
    names="deeplearningexamples",
    of="NVIDIA DeepLearningExamples (wav2vec 2.0)",
    mark=NO_NAME,
    checkpoint=nvidia_checkpoint,
)
FORMATS = (HUGGINGFACE, FAIRSEQ, NVIDIA)
