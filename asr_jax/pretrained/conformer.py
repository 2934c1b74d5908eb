"""Weight names and settings of Conformer and FastConformer in NeMo and in Hugging Face's Parakeet.

Source: NeMo at commit 8cfedd72; transformers 5.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.presets import nemo
from asr_jax.core.errors import UserError
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Transducer
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.encoder import Context
from asr_jax.nn.recurrent.prediction import LSTMPrediction
from asr_jax.pretrained.base import Description, Format, Heads, check_settings, ctc_rows, made
from asr_jax.pretrained.huggingface import CONFIG, front_end_settings, model_type, read_json
from asr_jax.pretrained.keymap import NORM, POINTWISE_1D, Row
from asr_jax.pretrained.nemo import UNUSED, encoder_fields, layer_rows, nemo_description, nemo_format, subsampling_rows
from asr_jax.pretrained.transducers import OF_PARAKEET, transducer_rows
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.tokenizers import Tokenizer

# Parts of NeMo's names, and Hugging Face's names for them.
HUGGING_FACE = (
    (r"^encoder\.pre_encode\.conv\.", "encoder.subsampling.layers."),
    (r"^encoder\.pre_encode\.out\.", "encoder.subsampling.linear."),
    (r"\.self_attn\.linear_q\.", ".self_attn.q_proj."),
    (r"\.self_attn\.linear_k\.", ".self_attn.k_proj."),
    (r"\.self_attn\.linear_v\.", ".self_attn.v_proj."),
    (r"\.self_attn\.linear_out\.", ".self_attn.o_proj."),
    (r"\.self_attn\.linear_pos\.", ".self_attn.relative_k_proj."),
    (r"\.self_attn\.pos_bias_", ".self_attn.bias_"),
    (r"\.conv\.batch_norm\.", ".conv.norm."),
)
NORM_AFTER_LAYER = (("norm_out", "norm", NORM),)


def rows(settings: Conformer) -> list[Row]:
    """Returns NeMo's names of the encoder's weights."""
    table, biases = subsampling_rows(settings, "subsample", "embed"), (settings.use_bias, settings.convolution_bias)
    for layer in range(settings.num_layers):
        table += layer_rows(settings, layer, "encoder/layers", layer, more=NORM_AFTER_LAYER, biases=biases)
    return table


def parakeet_rows(settings: Conformer, heads: Heads) -> list[Row]:
    """Returns Hugging Face's names."""
    table = [row.renamed(HUGGING_FACE) for row in rows(settings)]
    return table + ctc_rows("ctc_head", heads, POINTWISE_1D) + transducer_rows(OF_PARAKEET, heads)


def settings_of_nemo(given: Mapping[str, Any], path: Path) -> Conformer:
    """Returns the settings of a Conformer from the section `encoder` of a NeMo configuration.

    The probabilities of contexts, which only training uses, are ignored.

    Raises:
        UserError: If a setting is missing or not supported.
    """
    causal = bool(given.get("causal_downsampling"))
    check_settings(
        f"{path}: encoder",
        {"conv_context_size": None, **given},
        reduction=None,
        conv_context_size="causal" if causal else None,
        att_context_style=("regular", "chunked_limited"),
    )
    fields = encoder_fields({**given, "att_context_size": None}, path, subsampling="striding")
    return made(
        path,
        Conformer,
        **fields,
        contexts=_contexts_of_nemo(given, path),
        causal=causal,
        use_bias=given.get("use_bias", True),
        convolution_bias=given.get("use_bias", True),
        input_dropout=given.get("dropout_pre_encoder", 0.1),
        position_dropout=given.get("dropout_emb", 0.1),
    )


def _contexts_of_nemo(given: Mapping[str, Any], path: Path) -> tuple[Context, ...]:
    """Returns the contexts of attention in a section `encoder`, which has one pair or a list of pairs.

    A pair has the numbers of frames to the left and to the right, where -1 is unlimited. With the style
    chunked_limited, the right context is that of the first frame of a chunk. The style regular limits the context of
    each frame, which is the same as chunks of one frame if there is no right context.
    """
    pairs, style = given.get("att_context_size") or [-1, -1], given.get("att_context_style", "regular")
    contexts = list[Context]()
    for pair in pairs if isinstance(pairs[0], list) else [pairs]:
        left, right = pair
        if (left, right) == (-1, -1):
            contexts.append(Context())
        elif right == 0 or (right > 0 and style == "chunked_limited"):
            contexts.append(Context(right + 1, None if left < 0 else left))
        else:
            raise UserError(
                f"{path}: encoder.att_context_size is {pairs} and att_context_style is {style}: expected [-1, -1], a "
                "right context of 0, or one above 0 with the style chunked_limited; this package has no attention to "
                "a sliding window"
            )
    return tuple(contexts)


def _check_parakeet(model: Model) -> None:
    """Raises a UserError if a model is causal or has chunks, because Parakeet in transformers has neither."""
    encoder = model.encoder
    if isinstance(encoder, Conformer) and (encoder.causal or encoder.has_chunks):
        raise UserError(
            "encoder.causal and encoder.contexts are those of a streaming model, which Hugging Face's Parakeet is not: "
            "expected --to nemo"
        )


PARAKEET_SETTINGS = {
    "num_mels": "num_mel_bins",
    "dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "feedforward_dim": "intermediate_size",
    "kernel_size": "conv_kernel_size",
    "subsampling_factor": "subsampling_factor",
    "subsampling_channels": "subsampling_conv_channels",
    "scale_input": "scale_input",
    "use_bias": "attention_bias",
    "convolution_bias": "convolution_bias",
    "dropout": "dropout",
    "input_dropout": "dropout",
    "position_dropout": "dropout_positions",
    "attention_dropout": "attention_dropout",
}
"""Hugging Face's names of the settings of `Conformer`."""
CTC_MODEL, TRANSDUCERS = "parakeet_ctc", ("parakeet_rnnt", "parakeet_tdt")


def _parakeet(path: Path) -> Conformer:
    """Returns the encoder settings of a Parakeet folder.

    Layer drop is ignored, because `Conformer` does not implement it. The `layerdrop` in these folders comes from
    Hugging Face's converter of NeMo files; the models were not trained with it.
    """
    encoder = read_json(path / CONFIG)["encoder_config"]
    check_settings(
        f"{path}: encoder_config",
        encoder,
        model_type="parakeet_encoder",
        hidden_act="silu",
        subsampling_conv_kernel_size=3,
        subsampling_conv_stride=2,
    )
    # transformers 4 has no setting convolution_bias: the bias is always there.
    encoder = {"convolution_bias": True, **encoder}
    if missing := sorted(set(PARAKEET_SETTINGS.values()) - encoder.keys()):
        raise UserError(f"{path}: encoder_config has no {', '.join(missing)}; expected a file that transformers wrote")
    fields = {ours: encoder[theirs] for ours, theirs in PARAKEET_SETTINGS.items()}
    return made(path, Conformer, subsampling="dw_striding", **fields)


def _parakeet_front_end(path: Path) -> FrontEnd:
    num_mels = _parakeet(path).num_mels
    check_settings(
        f"{path}: feature_extractor",
        front_end_settings(path),
        feature_extractor_type="ParakeetFeatureExtractor",
        feature_size=num_mels,
        sampling_rate=16000,
        hop_length=160,
        win_length=400,
        n_fft=512,
        preemphasis=0.97,
    )
    return nemo(num_mels=num_mels)


def _parakeet_heads(path: Path) -> dict[str, HeadSettings]:
    found = model_type(path)
    if found in TRANSDUCERS:
        return {"transducer": _parakeet_transducer(read_json(path / CONFIG), path)}
    return {"ctc": CTC(dropout=0.0)} if found == CTC_MODEL else {}


def _parakeet_transducer(config: Mapping[str, Any], path: Path) -> Transducer:
    """Returns the settings of a transducer."""
    given = {"hidden_act": "relu", "blank_token_id": None, **config, "durations": tuple(config.get("durations") or ())}
    durations = tuple(range(len(given["durations"])))  # transformers uses the index as the value
    check_settings(
        f"{path}: config",
        given,
        hidden_act=("relu", "tanh"),
        blank_token_id=config.get("vocab_size", 0) - 1,
        durations=(durations,),
    )
    try:
        return Transducer(
            prediction=LSTMPrediction(
                config["decoder_hidden_size"], num_layers=config["num_decoder_layers"], dropout=0.0
            ),
            joint_dim=config["decoder_hidden_size"],
            activation=given["hidden_act"],
            dropout=0.0,
            durations=durations,
            decoding=TransducerDecoding(max_symbols=config.get("max_symbols_per_step", 10)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: the settings of the transducer cannot be read: {error!r}") from error


def _parakeet_tokenizer(path: Path, given: Tokenizer | None) -> Tokenizer | None:
    """Returns the tokenizer with the blank of a transducer, which is not the padding token as that of CTC is."""
    if model_type(path) not in TRANSDUCERS or not isinstance(given, SentencePieceTokenizer):
        return given
    blank = read_json(path / CONFIG)["blank_token_id"]
    return SentencePieceTokenizer.of_model(given.model, normaliser=given.normaliser, blank_id=blank)


def _is_parakeet(path: Path) -> bool:
    return (path / CONFIG).is_file() and isinstance(read_json(path / CONFIG).get("encoder_config"), Mapping)


NEMO = nemo_format("Conformer", Conformer, r"^encoder\.pre_encode\.", rows)
HUGGINGFACE = Format(
    names="huggingface",
    of="Hugging Face (Parakeet)",
    encoder=Conformer,
    mark=r"^encoder\.subsampling\.layers\.",
    rows=parakeet_rows,
    unused=UNUSED,
    check=_check_parakeet,
)
FORMATS = (NEMO, HUGGINGFACE)
DESCRIPTIONS = (
    nemo_description("ConformerEncoder", settings_of_nemo),
    Description(CTC_MODEL, _is_parakeet, _parakeet, _parakeet_front_end, _parakeet_heads, _parakeet_tokenizer),
)
