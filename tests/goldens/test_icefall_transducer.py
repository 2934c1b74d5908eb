"""icefall's transducer: pruned and simple losses with gradients, the joint network, greedy and beam search."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.losses.pruned_transducer import kept_positions, occupancies, simple_log_probs
from asr_jax.nn.recurrent.prediction import StatelessPrediction
from asr_jax.pretrained.keymap import find_params
from asr_jax.pretrained.transducers import OF_ICEFALL, transducer_rows
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.search.transducer_beam import TransducerBeamSearch, TransducerSearch
from asr_jax.text.spelling import Spelling
from tests.support import ROUNDING, assert_gradients, assert_within, golden_cases, max_abs, relative

pytestmark = pytest.mark.golden


def ours(weights: dict[str, np.ndarray], head: Transducer) -> dict[str, np.ndarray]:
    """Returns the parameters of the head from icefall's, or from their gradients; others are left out."""
    found = find_params(weights, transducer_rows(OF_ICEFALL, {"head": head}))
    assert not found.missing
    return {path.removeprefix("params/head/"): array for path, array in found.params.items()}


def of(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}


def factors_of(info: dict[str, Any]) -> dict[str, float]:
    """Returns the factors of the losses in the total whose gradients a case has, from its note."""
    (total,) = re.findall(r"total = ([^ ;]+)", info["note"])
    terms = [term.rpartition("*") for term in total.split("+")]
    return {name: float(factor or 1) for factor, _, name in terms}


@pytest.mark.parametrize("case", golden_cases("icefall_zipformer", "asr_model*"))
def test_losses_and_gradients(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares loss and gradients at the positions that the peer's occupancies keep.

    If several positions have the same total occupancy except for rounding, rounding decides which one is kept, and the
    pruned loss depends on it. A test of `tests/losses/test_transducer.py` compares the loss at our own positions.
    """
    arrays, sizes = case.arrays(), case.info["config"]
    settings = Transducer(
        prediction=StatelessPrediction(sizes["dec"], sizes["ctx"]), joint_dim=sizes["join"], activation="tanh",
        dropout=0.0,
        pruning=Pruning(
            case.info["prune_range"], case.info["am_scale"], case.info["lm_scale"],
            simple_scale=factors_of(case.info)["simple"],
        ),
    )  # fmt: skip
    expected, params = ours(of(arrays, "grad/"), settings), unflatten(ours(of(arrays, "param/"), settings))
    head = settings.build(vocab_size=sizes["vocab"], blank_id=0, dtype=jnp.float32)
    num_labels = np.int32(arrays["input/y_lens"])
    labels = np.int32(arrays["input/y"]) if "input/y" in arrays else labels_of(case.info, num_labels)
    rows = len(num_labels)
    given = (
        arrays["out/encoder_out"], np.int32(arrays["out/encoder_lens"]), labels, num_labels,
        np.ones(rows, np.float32), np.arange(rows, dtype=np.int32),
    )  # fmt: skip
    batch = Batch(None, *jax.device_put(given))
    frames = Frames(batch.features, batch.lengths)

    # The peer's layouts are [B S T], and labels have a further frame.
    of_blank, of_label = (np.swapaxes(arrays[f"out/{name}_grad"], 1, 2) for name in ("py", "px"))
    of_label, kept = of_label[:, :-1], arrays["out/prune_ranges"]
    found: dict[str, Any] = {}

    def occupied(*log_probs: Any) -> Any:
        found["occupancies"] = occupancies(*log_probs)
        return jnp.asarray(of_blank), jnp.asarray(of_label)

    def padding_counts(*given: Any, weights: Any, **options: Any) -> Any:
        return simple_log_probs(*given, **options)

    monkeypatch.setattr("asr_jax.heads.transducer.occupancies", occupied)
    monkeypatch.setattr("asr_jax.heads.transducer.simple_log_probs", padding_counts)
    monkeypatch.setattr("asr_jax.heads.transducer.logits_of_tile", lambda: 1000)

    def total(params: Any) -> Any:
        sums = head.apply({"params": params}, Encoded(frames), batch, step=None)
        starts = kept_positions(
            jnp.asarray(of_blank), jnp.asarray(of_label), frames.lengths, batch.token_lengths, size=kept.shape[2]
        )
        return sums["simple"].total + sums["loss"].total, (sums, found.pop("occupancies"), starts)

    (_, (sums, own_occupancies, starts)), gradient = jax.device_get(
        jax.jit(jax.value_and_grad(total, has_aux=True))(params)
    )
    # Occupancies are exponentials of differences of log-probabilities. Their magnitude is that of the mean loss of a
    # row, and each side rounds them three times.
    rounding = 2 * 3 * ROUNDING * float(arrays["out/simple_loss"]) / rows
    for name, own, theirs in zip(("blank", "label"), own_occupancies, (of_blank, of_label), strict=True):
        assert_within(max_abs(own, theirs), rounding, what=f"occupancies of {name}")
    is_there = np.arange(kept.shape[1]) < arrays["out/encoder_lens"][:, None]
    np.testing.assert_array_equal(starts[is_there], kept[..., 0][is_there])
    simple, pruned = float(sums["simple"].total) / settings.pruning.simple_scale, float(sums["loss"].total)
    assert_within(relative(simple, arrays["out/simple_loss"]), 1e-5, what="simple loss")
    assert_within(relative(pruned, arrays["out/pruned_loss"]), 1e-5, what="pruned loss")
    gradients = flatten(gradient)
    assert gradients.keys() == expected.keys()
    assert_gradients(gradients, expected)


def labels_of(info: dict[str, Any], num_labels: Any) -> Any:
    rows = np.zeros((len(num_labels), int(num_labels.max())), np.int32)
    for row, labels in enumerate(info["y"]):
        rows[row, : len(labels)] = labels
    return rows


def head_of(case: Any) -> tuple[Any, Any, Frames]:
    """Returns the head of a case, its parameters and the frames."""
    arrays, sizes = case.arrays(), case.info["config"]
    settings = Transducer(
        prediction=StatelessPrediction(sizes["dec"], sizes["ctx"]), joint_dim=sizes["join"], activation="tanh"
    )
    params = unflatten(ours(of(arrays, "param/"), settings))
    head = settings.build(vocab_size=sizes["V"], blank_id=0, dtype=jnp.float32)
    frames = Frames(*jax.device_put((arrays["input/encoder_out"], np.int32(arrays["input/lens"]))))
    return head, params, frames


def searched(case: Any, decodings: dict[str, TransducerDecoding]) -> Any:
    """Returns the results of several searches, which are one program."""
    head, params, frames = head_of(case)
    search = lambda p, f, decoding: head.apply({"params": p}, Encoded(f), decoding, method="search")[0]  # noqa: E731
    return jax.jit(lambda p, f: {name: search(p, f, each) for name, each in decodings.items()})(params, frames)


@pytest.mark.parametrize("case", golden_cases("icefall_decode", "transducer*"))
def test_greedy_search(case: Any) -> None:
    decodings = {}
    for name in (name for name in case.info["results"][0] if name.startswith("greedy_max")):
        max_symbols, _, penalty = name.removeprefix("greedy_max").partition("_blankpenalty")
        decodings[name] = TransducerDecoding(max_symbols=int(max_symbols), blank_penalty=float(penalty or 0))
    assert decodings
    for name, found in jax.device_get(searched(case, decodings)).items():
        for result in case.info["results"]:
            expected = result[name] if isinstance(result[name], dict) else {"hyp": result[name]}
            sequence = found.sequences(result["utt"])[0]
            assert list(sequence.tokens) == expected["hyp"]
            if "timestamps" in expected:
                assert list(sequence.starts) == expected["timestamps"]


@pytest.mark.slow  # tests/search compares the beam search with one in Python
@pytest.mark.parametrize("case", golden_cases("icefall_decode", "transducer*"))
@pytest.mark.parametrize("kind", ["modified_beam", "beam"])
def test_beam_search(case: Any, kind: str) -> None:
    """The lists are complete, and their order is that of the log-probabilities; `hyp` is the best per label."""
    start, worst, widths = case.info["config"]["ctx"], 0.0, []
    given = searched(case, {kind: TransducerDecoding(kind="beam")})[kind]
    spelling = Spelling.of_surfaces([f" {label}" for label in range(case.info["config"]["V"])], blank_id=0)
    for name in case.info["results"][0]:
        if name.rpartition("_")[0] != kind:
            continue
        widths.append(int(name.rpartition("_")[2]))
        settings = TransducerSearch(beam_width=widths[-1], num_best=widths[-1])
        search = TransducerBeamSearch(spelling, search=settings, max_symbols=1 if kind == "modified_beam" else 99)
        for result, found in zip(case.info["results"], search(given), strict=True):
            expected, best = result[name], found[0]
            assert list(best.labels) == expected["hyp"]
            assert list(best.starts) == expected["timestamps"]
            log_probs = {tuple(labels[start:]): log_prob for labels, log_prob in expected["final"]}
            assert {each.labels for each in found} == log_probs.keys()
            worst = max(worst, *(abs(each.log_prob - log_probs[each.labels]) for each in found))
    assert widths
    assert_within(worst, 1e-4, what="log-probabilities")
