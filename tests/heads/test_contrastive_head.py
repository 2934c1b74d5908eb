"""The contrastive head with codebook distractors, compared with fairseq's definition in plain NumPy."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_within, fast_jit, relative

from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.heads.contrastive import FEATURES, Contrastive, ContrastiveHead, Draws
from asr_jax.nn.wav2vec.quantizer import Quantizer

GROUPS, ENTRIES, CODES_DIM = 2, 3, 4
SETTINGS = Contrastive(
    quantizer=Quantizer(GROUPS, ENTRIES, start_temperature=1.5), codes_dim=CODES_DIM, dim=5, num_negatives=3,
    codebook_negatives=4, temperature=0.3, penalty=0.0,
)  # fmt: skip
MASK = np.array([[0, 1, 1, 0, 1, 0], [1, 0, 0, 1, 0, 1]], bool)
"""Masked frames; as in fairseq, all rows have the same number of them."""
RNG = np.random.default_rng(0)
FEATURE_VALUES, OUTPUTS = RNG.normal(size=(*MASK.shape, 3)), RNG.normal(size=(*MASK.shape, 7))
NOISE = RNG.gumbel(size=(*MASK.shape, GROUPS, ENTRIES))
OTHERS = [[np.flatnonzero(row & (np.arange(len(row)) != frame)) for frame in range(len(row))] for row in MASK]
WITHIN = np.array([[RNG.choice(places, SETTINGS.num_negatives) for places in row] for row in OTHERS])


def encoded_of(features: Any) -> tuple[Encoded, Batch]:
    lengths = np.full(len(MASK), MASK.shape[1], np.int32)
    frames, taps = (
        Frames(jnp.asarray(OUTPUTS, jnp.float32), jnp.asarray(lengths)),
        {FEATURES: Frames(features, lengths)},
    )
    batch = Batch(
        audio=None, features=np.zeros((len(MASK), 1, 1), np.float32), lengths=lengths, tokens=lengths[:, None],
        token_lengths=lengths, weights=jnp.ones(len(MASK)), utterances=lengths,
    )  # fmt: skip
    return Encoded(frames, taps=taps, mask=jnp.asarray(MASK)), batch


def params_of(settings: Contrastive) -> dict[str, np.ndarray]:
    """Random parameters by path, in double precision."""
    given = encoded_of(jnp.asarray(FEATURE_VALUES, jnp.float32))
    keys = {name: jax.random.key(0) for name in ("params", "dropout")}
    shapes = jax.eval_shape(lambda: ContrastiveHead(settings).init(keys, *given, step=jnp.int32(0)))["params"]
    rng = np.random.default_rng(1)
    return {path: rng.normal(size=leaf.shape) for path, leaf in flatten(shapes).items()}


def ours(settings: Contrastive, params: Any, features: Any, key: Any) -> Any:
    """Returns the loss of a training step, all sums, and the drawn codebook entries."""
    encoded, batch = encoded_of(features)
    sums, kept = ContrastiveHead(settings).apply(
        {"params": params}, encoded, batch, step=jnp.int32(0), rngs={"dropout": key}, mutable=["intermediates"],
        draws=Draws(jnp.asarray(NOISE, jnp.float32), jnp.asarray(WITHIN[..., : settings.num_negatives])),
        capture_intermediates=lambda _, method: method == "values",
    )  # fmt: skip
    (entries,) = kept["intermediates"]["quantizer"]["values"]
    return sums["loss"].total, (sums, entries)


def codes_of(entries: Any, codebook: np.ndarray) -> np.ndarray:
    """Returns the index of each vector's entry in each group, [B T N G]."""
    parts = np.asarray(entries).reshape(*entries.shape[:3], GROUPS, 1, CODES_DIM // GROUPS)
    same = (parts == codebook.astype(np.float32)).all(axis=-1)
    assert (same.sum(axis=-1) == 1).all()
    return same.argmax(axis=-1)


def fairseqs(params: Any, features: np.ndarray, codes: np.ndarray, soft: np.ndarray | None = None) -> Any:
    """Returns the sum of cross entropies, the number of correct frames, the number of finite logits of each frame, and
    the softmax, in double precision. `soft` is the constant that the straight-through estimator subtracts; None: the
    softmax itself.

    Source: `GumbelVectorQuantizer.forward` and `sample_from_codebook`, `Wav2Vec2Model.forward` and `compute_preds`, and
    criterions/wav2vec_criterion.py, at commit 3d262bb2.
    """

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ params[f"{name}/kernel"] + params[f"{name}/bias"]

    def project_q(x: np.ndarray) -> np.ndarray:
        projected = linear("targets", x)
        if "gate/kernel" not in params:
            return projected
        value, gate = np.split(linear("gate", projected), 2, axis=-1)
        return value / (1 + np.exp(-gate))

    codebook = params["quantizer/codebook"]
    scores = linear("quantizer/logits", features[MASK]).reshape(-1, GROUPS, ENTRIES) + NOISE[MASK]
    exponents = np.exp(scores / SETTINGS.quantizer.start_temperature)
    found = exponents / exponents.sum(axis=-1, keepdims=True)
    own = found.argmax(axis=-1)
    chosen = np.eye(ENTRIES)[own] + found - (found if soft is None else soft)
    y = project_q(np.einsum("tgv,gve->tge", chosen, codebook).reshape(len(own), -1))
    # Distractors of a frame are masked frames of its row, as indices into all masked frames, and drawn entries.
    places = np.cumsum(MASK).reshape(MASK.shape)[np.arange(len(MASK))[:, None, None], WITHIN] - 1
    places, codes = places[MASK], codes[MASK]
    drawn = np.concatenate([codebook[group][codes[..., group]] for group in range(GROUPS)], axis=-1)
    negatives = np.concatenate([y[places], project_q(drawn)], axis=1)
    is_own = (np.concatenate([own[places], codes], axis=1) == own[:, None]).all(axis=-1)
    vectors, x = np.concatenate([y[:, None], negatives], axis=1), linear("predictions", OUTPUTS[MASK])[:, None]
    cosines = (vectors * x).sum(axis=-1) / np.linalg.norm(vectors, axis=-1) / np.linalg.norm(x, axis=-1)
    logits = cosines / SETTINGS.temperature
    logits[:, 1:][is_own] = -np.inf
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[:, 0]
    correct = (logits.argmax(axis=1) == 0) & (logits.argmin(axis=1) != 0)
    return losses.sum(), correct.sum(), np.isfinite(logits).sum(axis=1), found


def slopes(loss: Any, x: np.ndarray) -> np.ndarray:
    """Returns the derivatives of `loss` with respect to each value of `x`, as central differences."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-5
        found[place] = (loss(x + step) - loss(x - step)) / 2e-5
    return found


@pytest.mark.parametrize("gated", [pytest.param(False, marks=pytest.mark.slow), True])
def test_distractors_of_codebooks_are_fairseqs(gated: bool) -> None:
    """Loss, accuracy and gradients equal fairseq's. Codebooks and the projection of distractors have gradients, the
    choice of the frames' own entries has none."""
    settings = replace(SETTINGS, gated_targets=gated)
    params, features = params_of(settings), jnp.asarray(FEATURE_VALUES, jnp.float32)
    given = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), unflatten(params))
    differentiate = jax.value_and_grad(partial(ours, settings), argnums=(0, 1), has_aux=True)
    program = fast_jit(differentiate)
    (total, (sums, entries)), (of_params, of_features) = program(given, features, jax.random.key(0))
    codes = codes_of(entries, params["quantizer/codebook"])
    assert codes.shape == (*MASK.shape, settings.codebook_negatives, GROUPS)
    expected, correct, counts, soft = fairseqs(params, FEATURE_VALUES, codes)
    most = 1 + settings.num_negatives + settings.codebook_negatives
    assert counts.min() < counts.max() == most == 1 / settings.chance()["accuracy"]
    assert_within(abs(float(total) / expected - 1), 1e-5)
    assert float(sums["loss"].weight) == MASK.sum()
    assert float(sums["accuracy"].total) == correct

    actual = flatten(of_params) | {FEATURES: of_features}
    for path, array in (params | {FEATURES: FEATURE_VALUES}).items():

        def loss(value: np.ndarray, path: str = path) -> float:
            features = value if path == FEATURES else FEATURE_VALUES
            return fairseqs(params | {path: value}, features, codes, soft)[0]

        assert_within(relative(actual[path], slopes(loss, array)), 1e-4, what=path)

    # A prediction of 0 is equally similar to all vectors: the loss is the logarithm of the number of finite logits.
    nothing = jax.tree.map(jnp.zeros_like, given["predictions"])
    (total, _), _ = program({**given, "predictions": nothing}, features, jax.random.key(0))
    assert_within(abs(float(total) - np.log(counts).sum()), 1e-4)


def test_entries_are_drawn_alike_in_each_group_and_on_their_own() -> None:
    """Pairs of entries are drawn uniformly and independently for each frame, as in fairseq."""
    settings = replace(SETTINGS, num_negatives=0, codebook_negatives=1000)
    params = params_of(settings)
    given = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), unflatten(params))
    program = fast_jit(lambda params, x, key: ours(settings, params, x, key)[1][1])
    features = jnp.asarray(FEATURE_VALUES, jnp.float32)
    codes, others = (
        codes_of(program(given, features, jax.random.key(seed)), params["quantizer/codebook"]) for seed in (0, 1)
    )
    pairs = codes[..., 0] * ENTRIES + codes[..., 1]
    expected = pairs.size / ENTRIES**GROUPS
    assert (ENTRIES, GROUPS) == (3, 2)
    quantile = 26.12  # of chi-squared with 8 degrees of freedom, exceeded once in 1,000 draws
    assert ((np.bincount(pairs.ravel(), minlength=ENTRIES**GROUPS) - expected) ** 2 / expected).sum() < quantile
    assert len({row.tobytes() for row in pairs.reshape(MASK.size, -1)}) == MASK.size
    assert (codes != others).any()


def test_the_quantiser_of_the_input_must_be_there_and_have_the_same_codebook() -> None:
    head = ContrastiveHead(replace(SETTINGS, same_quantizer=True))
    encoded, batch = encoded_of(jnp.asarray(FEATURE_VALUES, jnp.float32))
    with pytest.raises(ValueError, match="same_quantizer is True, but the encoder has no quantiser"):
        head.init(jax.random.key(0), encoded, batch, step=None)
    other = encoded.replace(shared={"quantizer": {"codebook": jnp.zeros((GROUPS, ENTRIES + 1, 3))}})
    with pytest.raises(ValueError, match=r"codebook has the shape .* and the head's .*: expected the same quantizer"):
        head.init(jax.random.key(0), other, batch, step=None)
