"""Weight names and settings of icefall's zipformer recipe (egs/librispeech/ASR/zipformer at commit 36e0420c)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr_jax.audio.presets import icefall
from asr_jax.core.errors import UserError
from asr_jax.heads.attention_decoder import AttentionDecoder
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.models.encoder import Context, contexts_of
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.decoders.label_decoder import LabelDecoder
from asr_jax.nn.recurrent.prediction import StatelessPrediction
from asr_jax.pretrained.base import Description, Format, Heads, ctc_rows, first_head
from asr_jax.pretrained.keymap import (
    CONV_2D,
    DEPTHWISE,
    DEPTHWISE_2D,
    LINEAR,
    NORM,
    POINTWISE,
    Leaf,
    NamedWeights,
    Row,
    Table,
    array,
    attention,
    flattened,
    kernel,
    rows_of,
    transposed,
)
from asr_jax.pretrained.torch_files import has_weight, load_torch, state_dict
from asr_jax.pretrained.transducers import OF_ICEFALL, check_transducer, transducer_rows
from asr_jax.search.transducer import TransducerDecoding

UNUSED = r"encoder\.encoders\.\d+\.(encoder\.)?layers\.\d+\.bypass_scale"
"""Names of parameters that icefall creates and never uses."""
BIAS_NORM = (Leaf("bias", "bias"), Leaf("log_scale", "log_scale"))
EMBED = (
    ("conv.0", "conv_0", CONV_2D),
    ("conv.4", "conv_1", CONV_2D),
    ("conv.7", "conv_2", CONV_2D),
    ("convnext.depthwise_conv", "convnext", DEPTHWISE_2D),
    ("convnext.pointwise_conv1", "convnext/expand", POINTWISE),
    ("convnext.pointwise_conv2", "convnext/project", POINTWISE),
    ("out_norm", "norm", BIAS_NORM),
)
WITH_TWO_PROJECTIONS = {
    **{f"self_attn{n}": f"attention_{n}" for n in (1, 2)},
    **{f"feed_forward{n}": f"feed_forward_{n}" for n in (1, 2, 3)},
    "nonlin_attention": "nonlinear_attention",
    **{f"conv_module{n}": f"convolution_{n}" for n in (1, 2)},
}
"""Modules of a layer with the projections `in_proj` and `out_proj`."""
LAYER: Table = (
    ("self_attn_weights.in_proj", "attention_weights/in", LINEAR),
    ("self_attn_weights.linear_pos", "attention_weights/positions", kernel(LINEAR)),
    *(
        (f"{theirs}.{side}_proj", f"{ours}/{side}", LINEAR)
        for theirs, ours in WITH_TWO_PROJECTIONS.items()
        for side in ("in", "out")
    ),
    ("bypass.bypass_scale", "bypass/scale", array()),
    ("bypass_mid.bypass_scale", "bypass_middle/scale", array()),
    ("norm", "norm", BIAS_NORM),
)
CAUSAL = (
    Leaf("causal_conv.weight", "causal_kernel", DEPTHWISE),
    Leaf("causal_conv.bias", "causal_bias"),
    Leaf("chunkwise_conv.weight", "kernel", DEPTHWISE),
    Leaf("chunkwise_conv.bias", "bias"),
    Leaf("chunkwise_conv_scale", "edges", transposed(0, 2, 1)),
)
"""Arrays of a causal depthwise convolution."""
DOWNSAMPLED = (
    ("downsample.bias", "downsample/logits", array()),
    ("out_combiner.bypass_scale", "bypass/scale", array()),
)

DECODER = "attention_decoder.decoder"
OF_ATTENTION = ("linear_q", "linear_k", "linear_v", "out_proj")
DECODER_LAYER: Table = (
    *attention("self_attn", "attention", OF_ATTENTION),
    *attention("src_attn", "to_encoder", OF_ATTENTION),
    ("feed_forward.0", "hidden", LINEAR),
    ("feed_forward.3", "out", LINEAR),
    ("norm_self_attn", "attention_norm", NORM),
    ("norm_src_attn", "to_encoder_norm", NORM),
    ("norm_ff", "norm", NORM),
)
SOS_EOS = 1
"""Label id of both begin and end in icefall's recipes."""
OF_DECODER_HEAD = 64
"""Width of an attention head of the decoder in all published sizes."""


def rows(settings: Zipformer, heads: Heads) -> list[Row]:
    """Returns the table of names; the first attention decoder on the encoder's output is icefall's."""
    table = [*encoder_rows(settings), *ctc_rows("ctc_output.1", heads), *transducer_rows(OF_ICEFALL, heads)]
    return table + [row for path, head in first_head(heads, AttentionDecoder) for row in decoder_rows(path, head)]


def decoder_rows(path: str, head: AttentionDecoder) -> list[Row]:
    """Returns icefall's names of an attention decoder, at a parameter path such as `heads_attention`."""
    ours = f"{path}/decoder"
    table = rows_of([("embed.weight", "embedding", array()), ("output_layer", "output", LINEAR)], DECODER, ours)
    for layer in range(head.decoder.num_layers):
        table += rows_of(DECODER_LAYER, f"{DECODER}.layers.{layer}", f"{ours}/layers", layer)
    return table


def encoder_rows(settings: Zipformer) -> list[Row]:
    """Returns icefall's names of the encoder's weights."""
    table = rows_of([*EMBED, ("out", "out", flattened(settings.embed_channels[-1]))], "encoder_embed", "encoder/embed")
    kind = CAUSAL if settings.causal else DEPTHWISE
    convs = [(f"conv_module{n}.depthwise_conv", f"convolution_{n}/depthwise", kind) for n in (1, 2)]
    for number, sizes in enumerate(settings.stacks()):
        theirs, ours = f"encoder.encoders.{number}", f"encoder/stack_{number}"
        layers = f"{theirs}.layers"
        if sizes.downsampling > 1:
            layers = f"{theirs}.encoder.layers"
            table += rows_of(DOWNSAMPLED, theirs, ours)
        for layer in range(sizes.num_layers):
            table += rows_of([*LAYER, *convs], f"{layers}.{layer}", f"{ours}/layers", layer)
    if settings.output_downsampling > 1:
        table += rows_of([("downsample_output.bias", "downsample/logits", array())], "encoder", "encoder")
    return table


ICEFALL = Format(
    names="icefall",
    of="icefall (Zipformer)",
    encoder=Zipformer,
    mark=r"^(encoder\.encoders|encoder_embed)\.",
    rows=rows,
    unused=UNUSED,
    check=lambda model: check_transducer(model, "icefall", "tanh"),
    checkpoint=lambda weights, model, symbols: {"model": weights},
)
FORMATS = (ICEFALL,)

# Settings of `Zipformer`, and names of the same settings in checkpoints of icefall's training, such as "2,2,3,4,3,2".
SETTINGS = {
    "downsampling": "downsampling_factor",
    "dims": "encoder_dim",
    "num_layers": "num_encoder_layers",
    "unmasked_dims": "encoder_unmasked_dim",
    "num_heads": "num_heads",
    "query_dims": "query_head_dim",
    "value_dims": "value_head_dim",
    "position_dims": "pos_head_dim",
    "feedforward_dims": "feedforward_dim",
    "kernel_sizes": "cnn_module_kernel",
}
HEAD_DIMS = (32, 4, 12)
"""Widths of queries, positions and values of an attention head in all published sizes."""
OF_OTHER_HEADS = r"(decoder|joiner|simple_am_proj|simple_lm_proj|attention_decoder)\..*"
"""Names of weights of an attention decoder, and of a transducer, which models of given settings may lack."""


def zipformer_of(path: Path) -> Zipformer:
    """Returns the encoder settings of a checkpoint of icefall's zipformer recipe.

    Checkpoints of a training contain the settings. Exported ones contain only weights, whose shapes state all settings
    except the contexts of attention and the number of attention heads. The latter follows from the widths of a head in
    the published sizes.

    Raises:
        UserError: If the file is not such a checkpoint, or the shapes do not fit these widths.
    """
    loaded = load_torch(path)
    try:
        sizes = _sizes_of(state_dict(loaded))
        named = {ours: theirs for ours, theirs in SETTINGS.items() if isinstance(loaded.get(theirs), str)}
        given = {ours: tuple(map(int, loaded[theirs].split(","))) for ours, theirs in named.items()}
        given = {name: values * len(sizes["dims"]) if len(values) == 1 else values for name, values in given.items()}
        heads = {} if "num_heads" in given else _heads_by_width(state_dict(loaded), sizes)
        contexts = _contexts_of_training(loaded) if sizes["causal"] else (Context(),)
        return Zipformer(**{**sizes, "unmasked_dims": sizes["dims"], **heads, **given}, contexts=contexts)
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: {error}; expected a Zipformer of icefall") from error


def _contexts_of_training(loaded: Mapping[str, Any]) -> tuple[Context, ...]:
    """Returns the contexts that a training of a causal model draws; an unlimited one if the file does not state them.

    As in icefall, a chunk has at least one chunk before it, and the frames before a chunk are rounded down to chunks.
    """
    given = [loaded.get(name) for name in ("chunk_size", "left_context_frames")]
    if not all(isinstance(numbers, str) for numbers in given):
        return (Context(),)
    chunks, left = (tuple(None if (n := int(text)) < 0 else n for text in str(each).split(",")) for each in given)
    return tuple(
        context
        if context.chunk_frames is None or context.left_frames is None
        else Context(chunk := context.chunk_frames, max(context.left_frames // chunk, 1) * chunk)
        for context in contexts_of(chunks, left)
    )


def _sizes_of(weights: NamedWeights) -> dict[str, Any]:
    """Returns the settings that shapes of weights state."""
    names = [re.match(r"encoder\.encoders\.(\d+)\.(encoder\.)?layers\.(\d+)\.", name) for name in weights]
    places = {(int(found[1]), found[2] or "", int(found[3])) for found in names if found}
    sizes: dict[str, list[int]] = {
        name: [] for name in ("downsampling", "dims", "num_layers", "feedforward_dims", "kernel_sizes")
    }
    positions_dim, causal = 0, False
    for number in range(1 + max(stack for stack, _, _ in places)):
        inner = next(inner for stack, inner, _ in places if stack == number)
        layer = f"encoder.encoders.{number}.{inner}layers.0"
        hidden, width = weights[f"{layer}.feed_forward2.in_proj.weight"].shape
        positions_dim = weights[f"{layer}.self_attn_weights.linear_pos.weight"].shape[1]
        conv = f"{layer}.conv_module1.depthwise_conv"
        causal = f"{conv}.chunkwise_conv.weight" in weights
        taps = weights[f"{conv}.chunkwise_conv.weight" if causal else f"{conv}.weight"].shape[-1]
        factor = len(weights[f"encoder.encoders.{number}.downsample.bias"]) if inner else 1
        layers = sum(stack == number for stack, _, _ in places)
        for name, value in zip(sizes, (factor, width, layers, hidden, taps), strict=True):
            sizes[name].append(value)
    channels = tuple(len(weights[f"encoder_embed.conv.{place}.bias"]) for place in (0, 4, 7))
    width = weights["encoder_embed.out.weight"].shape[1] // channels[-1]
    return {
        **{name: tuple(values) for name, values in sizes.items()},
        "embed_channels": channels,
        "positions_dim": positions_dim,
        "causal": causal,
        "num_mels": 4 * width + 4,  # the only multiple of 4 whose embedding has this width
        "output_downsampling": len(weights.get("encoder.downsample_output.bias", [0])),
    }


def _heads_by_width(weights: NamedWeights, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numbers of heads for the widths of the published sizes."""
    query, position, value = HEAD_DIMS
    heads = []
    for number, factor in enumerate(sizes["downsampling"]):
        layer = f"encoder.encoders.{number}.{'encoder.' if factor > 1 else ''}layers.0"
        parts = ("self_attn_weights.linear_pos", "self_attn_weights.in_proj", "self_attn1.in_proj")
        rows = [len(weights[f"{layer}.{part}.weight"]) for part in parts]
        heads.append(rows[0] // position)
        if rows != [heads[-1] * width for width in (position, 2 * query + position, value)]:
            raise ValueError(
                f"the attention of stack {number} does not have heads of the published widths (queries {query}, "
                f"positions {position}, values {value}), so their number is unknown: --config FILE with the settings, "
                "such as configs/zipformer.py with --model.encoder.num-heads and others"
            )
    num = len(heads)
    return {
        "num_heads": tuple(heads),
        "query_dims": (query,) * num,
        "position_dims": (position,) * num,
        "value_dims": (value,) * num,
    }


def _heads_of(path: Path) -> dict[str, HeadSettings]:
    """Returns transducer, attention decoder and CTC head, as far as the checkpoint has them, in this order."""
    loaded = load_torch(path)
    weights = state_dict(loaded)
    heads = _transducer_of(weights)
    if f"{DECODER}.embed.weight" in weights:
        reads = "ctc" if "ctc_output.1.weight" in weights else ""
        heads["attention"] = attention_of(weights, num_heads=loaded.get("attention_decoder_num_heads"), ctc=reads)
    if "ctc_output.1.weight" in weights:
        heads["ctc"] = CTC()
    if not heads and any(re.fullmatch(OF_OTHER_HEADS, name) for name in weights):
        raise UserError(
            f"{path}: texts come from a head that this package does not have: expected a model of --use-transducer 1 "
            "or --use-ctc 1"
        )
    return heads


def attention_of(weights: NamedWeights, *, num_heads: int | None, ctc: str) -> AttentionDecoder:
    """Returns the settings of the attention decoder that shapes of weights state.

    Args:
        num_heads: Number of attention heads. None: that of heads of the published width.
        ctc: Name of the CTC head; empty if the model has none.

    Raises:
        UserError: If `num_heads` is None and the width is not that of whole heads.
    """
    dim = weights[f"{DECODER}.embed.weight"].shape[1]
    width = len(weights[f"{DECODER}.layers.0.self_attn.linear_q.weight"])
    if not num_heads and width % OF_DECODER_HEAD:
        raise UserError(
            f"the attention decoder's attention is {width} wide: expected a multiple of {OF_DECODER_HEAD}, the width "
            "of a head in all published sizes, or a checkpoint with attention_decoder_num_heads, as training writes it"
        )
    layers = {int(found[1]) for name in weights if (found := re.match(rf"{re.escape(DECODER)}\.layers\.(\d+)\.", name))}
    decoder = LabelDecoder(
        dim=dim,
        num_layers=len(layers),
        attention_dim=width,
        num_heads=num_heads or width // OF_DECODER_HEAD,
        feedforward_dim=len(weights[f"{DECODER}.layers.0.feed_forward.0.weight"]),
    )
    return AttentionDecoder(decoder=decoder, ctc=ctc, begin_id=SOS_EOS, end_id=SOS_EOS, scale=0.9 if ctc else 1.0)


def _transducer_of(weights: NamedWeights) -> dict[str, HeadSettings]:
    """Returns the transducer, from shapes of weights; empty if there is none."""
    if not {"decoder.embedding.weight", "joiner.output_linear.weight"} <= weights.keys():
        return {}
    conv = weights.get("decoder.conv.weight")
    width = weights["decoder.embedding.weight"].shape[1]
    transducer = Transducer(
        prediction=StatelessPrediction(width, 1 if conv is None else conv.shape[2]),
        joint_dim=weights["joiner.output_linear.weight"].shape[1],
        activation="tanh",
        dropout=0.0,
        pruning=Pruning() if "simple_am_proj.weight" in weights else None,
        decoding=TransducerDecoding(max_symbols=1),  # as icefall's decode.py
    )
    return {"transducer": transducer}


DESCRIPTIONS = (
    Description(
        "icefall's .pt",
        lambda path: has_weight(path, r"encoder_embed\."),
        zipformer_of,
        lambda path: icefall(num_mels=zipformer_of(path).num_mels),
        _heads_of,
        others=OF_OTHER_HEADS,
    ),
)
