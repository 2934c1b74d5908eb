"""Weight names of W2V-BERT 2.0 in Hugging Face's transformers (5.23)."""

from asr_jax.models.w2v_bert import W2VBert
from asr_jax.pretrained.base import Format, Heads, ctc_rows
from asr_jax.pretrained.keymap import (
    CONV_1D,
    DEPTHWISE,
    LINEAR,
    NORM,
    POINTWISE_1D,
    Kind,
    Row,
    array,
    kernel,
    rows_of,
)
from asr_jax.pretrained.w2v_bert_settings import folder_files

UNUSED = r"encoder\.embed_positions\.(inv_freq|pe)|masked_spec_embed"
"""Names of position encodings, which transformers 4 stored, and of the mask vector, which some models do not use."""

ATTENTION = (
    ("self_attn.linear_q", "attention/query", LINEAR),
    ("self_attn.linear_k", "attention/key", LINEAR),
    ("self_attn.linear_v", "attention/value", LINEAR),
    ("self_attn.linear_out", "attention/out", LINEAR),
    ("self_attn_layer_norm", "attention_norm", NORM),
)
LAYER = (
    *ATTENTION,
    ("ffn1_layer_norm", "feed_forward_1_norm", NORM),
    ("ffn1.intermediate_dense", "feed_forward_1/in", LINEAR),
    ("ffn1.output_dense", "feed_forward_1/out", LINEAR),
    ("conv_module.layer_norm", "convolution_norm", NORM),
    ("conv_module.pointwise_conv1", "convolution/in", kernel(POINTWISE_1D)),
    ("conv_module.depthwise_conv", "convolution", kernel(DEPTHWISE)),
    ("conv_module.depthwise_layer_norm", "convolution/norm", NORM),
    ("conv_module.pointwise_conv2", "convolution/out", kernel(POINTWISE_1D)),
    ("ffn2_layer_norm", "feed_forward_2_norm", NORM),
    ("ffn2.intermediate_dense", "feed_forward_2/in", LINEAR),
    ("ffn2.output_dense", "feed_forward_2/out", LINEAR),
    ("final_layer_norm", "norm", NORM),
)
POSITIONS: dict[str, tuple[tuple[str, str, Kind], ...]] = {
    "relative_key": (("self_attn.distance_embedding.weight", "attention/distance_embedding", array()),),
    "relative": (
        ("self_attn.linear_pos", "attention/positions", kernel(LINEAR)),
        ("self_attn.pos_bias_u", "attention/content_bias", array()),
        ("self_attn.pos_bias_v", "attention/position_bias", array()),
    ),
    "rotary": (),
    "none": (),
}
ADAPTER = (
    *ATTENTION,
    ("residual_layer_norm", "residual_norm", NORM),
    ("residual_conv", "residual_conv", CONV_1D),
    ("self_attn_conv", "attention_conv", CONV_1D),
    ("ffn_layer_norm", "feed_forward_norm", NORM),
    ("ffn.intermediate_dense", "feed_forward/in", LINEAR),
    ("ffn.output_dense", "feed_forward/out", LINEAR),
)


def rows(settings: W2VBert, heads: Heads) -> list[Row]:
    """Returns the table of names of Wav2Vec2BertForCTC, or without a CTC head of Wav2Vec2BertModel."""
    ours = "encoder"
    modules: list[tuple[str, str, Kind]] = [
        ("feature_projection.layer_norm", "embed_norm", NORM),
        ("feature_projection.projection", "embed", LINEAR),
    ]
    if settings.masks_anything:
        modules.append(("masked_spec_embed", "mask", array()))
    if settings.intermediate:
        modules.append(("intermediate_ffn.intermediate_dense", "intermediate/in", LINEAR))
        modules.append(("intermediate_ffn.output_dense", "intermediate/out", LINEAR))
    if settings.output_dim != settings.dim:
        modules.append(("adapter.proj_layer_norm", "adapter_embed_norm", NORM))
        modules.append(("adapter.proj", "adapter_embed", LINEAR))
    table = rows_of(modules, ours=ours)
    for layer in range(settings.num_layers):
        theirs = f"encoder.layers.{layer}"
        table += rows_of(LAYER, theirs, f"{ours}/layers", layer)
        table += rows_of(POSITIONS[settings.positions], theirs, f"{ours}/layers", layer)
    for number in range(settings.num_adapters):
        table += rows_of(ADAPTER, f"adapter.layers.{number}", f"{ours}/adapter_{number}")
    head = ctc_rows("lm_head", heads)
    return [row.renamed([("^", "wav2vec2_bert.")]) for row in table] + head if head else table


HUGGINGFACE = Format(
    names="huggingface",
    of="Hugging Face (W2V-BERT)",
    encoder=W2VBert,
    mark=r"\.conv_module\.",
    rows=rows,
    unused=UNUSED,
    versions=((r"^wav2vec2_bert\.", ""),),
    folder=folder_files,
)
FORMATS = (HUGGINGFACE,)
