"""Helpers for goldens of wav2vec 2.0.

The programs compute an encoder and heads with their gradients. They are compiled once for all cases of the same sizes,
because compilation takes nearly all the time of these tests. Other functions convert settings and draws of fairseq and
NVIDIA to ours, and compute the scores of codes from the reference's weights only.
"""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from asr_jax.core.batch import OUTPUT, Batch, Encoded, Frames
from asr_jax.heads.contrastive import EXTRACTOR, FEATURES, Contrastive, ContrastiveHead, Draws
from asr_jax.heads.ctc import CTC
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.nn.wav2vec.quantizer import QUANTIZER, GumbelQuantizer
from asr_jax.pretrained.wav2vec2_fairseq import Settings
from tests.support import fast_jit

READ = (FEATURES, EXTRACTOR)


@cache
def encoder_program(settings: Wav2Vec2, training: bool) -> Callable[..., Any]:
    """Returns a program for the encoder's output and the gradient of its parameters.

    Its arguments are parameters, frames, a mask, the Gumbel noise of a quantised input (or None) and the derivatives
    with respect to the values that heads read. Without randomness, training and evaluation are the same program, which
    is compiled once.
    """
    encoder, step = settings.build(dtype=jnp.float32), jnp.int32(0) if training else None

    @fast_jit
    def encode(params: Any, frames: Frames, mask: Any, noise: Any, derivatives: Any) -> tuple[Encoded, Any]:
        def with_noise(call: Any, given: Any, named: Any, context: Any) -> Any:
            is_quantizer = isinstance(context.module, GumbelQuantizer) and context.method_name == "__call__"
            return call(*given, **(named | {"noise": noise} if is_quantizer else named))

        def values(params: Any) -> Any:
            rngs = {"dropout": jax.random.key(0), "mask": jax.random.key(0)}  # all rates are 0
            with nn.intercept_methods(with_noise):
                encoded = encoder.apply({"params": params}, frames, step=step, mask=mask, rngs=rngs)
            return values_of(encoded), encoded

        _, backward, encoded = jax.vjp(values, params, has_aux=True)
        return encoded, backward(derivatives)[0]

    return encode


def values_of(encoded: Encoded) -> dict[str, Any]:
    """Returns the values that heads read, and the parameters that they share."""
    frames = {name: encoded.at(name).values for name in (OUTPUT, *READ) if name == OUTPUT or name in encoded.taps}
    return frames | {"shared": encoded.shared}


def with_values(encoded: Encoded, values: dict[str, Any]) -> Encoded:
    taps = {name: tap.replace(values=values.get(name, tap.values)) for name, tap in encoded.taps.items()}
    frames = encoded.frames.replace(values=values[OUTPUT])
    return encoded.replace(frames=frames, taps=taps, shared=values["shared"])


def encode(
    settings: Wav2Vec2, params: Any, frames: Frames, *, mask: Any = None, noise: Any = None, training: bool = False
) -> Encoded:
    """Returns the encoder's output. Without `mask`, no frames are masked; `noise` is that of a quantised input."""
    rows, num_frames = len(frames.values), settings.build(dtype=jnp.float32).output_length(frames.values.shape[1])
    widths = {OUTPUT: settings.dim} | {tap: settings.feature_dim for tap in READ if tap in settings.taps}
    zeros = {name: np.zeros((rows, num_frames, width), np.float32) for name, width in widths.items()}
    shared = {QUANTIZER: params["input_quantizer"]} if settings.quantized_input else {}
    zeros |= {"shared": jax.tree.map(np.zeros_like, jax.device_get(shared))}
    mask = np.zeros((rows, num_frames), bool) if mask is None else mask
    return encoder_program(settings, training)(params, frames, mask, noise, zeros)[0]


@cache
def forward_program(settings: Wav2Vec2) -> Callable[..., Encoded]:
    """Returns a program without mask and gradient, which compiles in a third of the time of `encoder_program`."""
    encoder = settings.build(dtype=jnp.float32)
    return fast_jit(lambda params, frames: encoder.apply({"params": params}, frames, step=None))


def gradients(
    settings: Wav2Vec2, params: Any, frames: Frames, name: str, of_head: Callable[..., Any], *, mask: Any = None,
    noise: Any = None, training: bool,
) -> tuple[Encoded, Any, Any]:  # fmt: skip
    """Returns the encoder's output, the results of a head's program `of_head`, and the gradient of all parameters."""
    encoded = encode(settings, params["encoder"], frames, mask=mask, noise=noise, training=training)
    found, of_params, derivatives = jax.device_get(of_head(params[name], encoded))
    _, grads = encoder_program(settings, training)(params["encoder"], frames, encoded.mask, noise, derivatives)
    return encoded, found, {"encoder": jax.device_get(grads), name: of_params}


@cache
def contrastive_program(settings: Contrastive, terms: tuple[str, ...], training: bool) -> Callable[..., Any]:
    """Returns a program for the sums of the contrastive head, and derivatives of the sum of `terms`."""
    head, step = ContrastiveHead(settings), jnp.int32(0) if training else None

    @fast_jit
    def contrastive(params: Any, encoded: Encoded, batch: Batch, draws: Draws) -> Any:
        def total(params: Any, values: Any) -> Any:
            sums = head.apply({"params": params}, with_values(encoded, values), batch, step=step, draws=draws)
            return sum(sums[term].total for term in terms), sums

        derivatives, sums = jax.grad(total, (0, 1), has_aux=True)(params, values_of(encoded))
        return sums, *derivatives

    return contrastive


def code_scores(weights: dict[str, np.ndarray], features: Any, *, groups: int) -> np.ndarray:
    """Returns the scores of all entries [B T G V] without noise; a frame's codes are their argmax.

    They are computed in float64 from the reference's weights, without our code.
    """
    x = np.asarray(features, np.float64)
    # One linear layer, weight_proj.weight, or several with GELU between them, weight_proj.0.0.weight and so on.
    names = sorted(
        name.removesuffix("weight") for name in weights if re.match(r"quantizer\.weight_proj.*\.weight$", name)
    )
    for name in names:
        x = x @ weights[f"{name}weight"].astype(np.float64).T + weights[f"{name}bias"]
        if name != names[-1]:
            x = x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    return x.reshape(*x.shape[:-1], groups, -1)


@cache
def quantizer_program(settings: Contrastive, training: bool) -> Callable[..., Any]:
    """Returns a program for log-probabilities of all entries [B T G V] without noise, and projected quantised features.

    In training, the noise determines the entries of the quantised features.
    """
    head, step = ContrastiveHead(replace(settings, same_quantizer=False)), jnp.int32(0) if training else None

    def quantized(bound: Any, features: Any, noise: Any) -> Any:
        found = bound.quantizer(features, step=step, noise=noise)
        return jnp.log(found.probabilities), bound._projected(found.values)

    return fast_jit(lambda params, *given: head.apply({"params": params}, *given, method=quantized))


@cache
def ctc_program(vocab_size: int, blank_id: int, training: bool) -> Callable[..., Any]:
    """Returns a program for the loss and log-probabilities of the CTC head, and derivatives of the loss."""
    head = CTC(dropout=0.0).build(vocab_size=vocab_size, blank_id=blank_id, dtype=jnp.float32)
    step = jnp.int32(0) if training else None

    @fast_jit
    def ctc(params: Any, encoded: Encoded, batch: Batch) -> Any:
        def total(params: Any, values: Any) -> Any:
            given = with_values(encoded, values)
            sums = head.apply({"params": params}, given, batch, step=step)
            return sums["loss"].total, head.apply({"params": params}, given, method="emit")

        found, derivatives = jax.value_and_grad(total, (0, 1), has_aux=True)(params, values_of(encoded))
        return found, *derivatives

    return ctc


def counting_padding(theirs: Settings) -> tuple[Wav2Vec2, Contrastive]:
    """Returns settings of fairseq and NVIDIA, which count padding as valid; their batches rarely have padding."""
    norm = theirs.encoder.extractor_norm.replace("group", "group_padded")
    assert theirs.contrastive is not None
    encoder = replace(theirs.encoder, extractor_norm=norm, mask_padding=False)
    return encoder, replace(theirs.contrastive, counts_padding=True)


def draws_of(head: Contrastive, mask: np.ndarray, places: np.ndarray, noise: np.ndarray | None) -> Draws:
    """Converts draws of fairseq and NVIDIA, which are for masked frames only, to draws for all frames.

    Args:
        head: Settings of the head.
        mask: Masked frames [B T].
        places: Indices of distractors [B M*N] among the concatenated masked frames of the batch.
        noise: Gumbel noise [B*M*G V], or another shape with as many values; None if there is none.
    """
    rows, frames = mask.shape
    hidden = np.stack([np.flatnonzero(row) for row in mask])
    num = hidden.shape[1]

    def for_all(drawn: np.ndarray) -> Any:
        full = np.zeros((rows, frames, *drawn.shape[2:]), drawn.dtype)
        for row in range(rows):
            full[row, hidden[row]] = drawn[row]
        return full

    if noise is not None:
        noise = noise.reshape(rows, -1, head.quantizer.groups, head.quantizer.entries)
        noise = noise if head.from_everywhere else for_all(noise)
    if head.from_everywhere:
        return Draws(noise, within=for_all(places.reshape(rows, num, -1) % frames))
    places = places.reshape(rows, num, -1)
    in_batch = places // num * frames + hidden[places // num, places % num]
    if not head.across_negatives:
        return Draws(noise, within=for_all(in_batch % frames))
    # In the reference, a frame's distractors are a slice of all indices, which mixes its own with its neighbours'.
    return Draws(noise, within=jnp.zeros((rows, frames, 0), jnp.int32), across=for_all(in_batch))
