"""The most probable path of CTC: kernels against the scan, bit for bit, also with equally good paths."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.devices import TracedFor
from asr_jax.kernels import implementations
from asr_jax.kernels.ctc_viterbi import mosaic_tpu, reference
from asr_jax.kernels.ctc_viterbi.api import ctc_viterbi
from asr_jax.kernels.log_space import NEVER
from tests.kernels.compiled import compiled_for
from tests.kernels.drawn import with_drawn
from tests.kernels.paths import DRAWN, PATH_SIZES, for_paths


@pytest.mark.parametrize("sizes", with_drawn(PATH_SIZES[1:], [PATH_SIZES[0], *DRAWN]))
def test_the_kernel_for_tpus_equals_the_scan(sizes, interpreted):
    rows, frames, num_labels, _ = sizes

    @jax.jit
    def both(*given):
        (last, expected), (found, pointers) = (module.forward(*given, blank_id=0) for module in (reference, mosaic_tpu))
        pointers = jnp.moveaxis(pointers, 0, 1)[:rows, :frames, : num_labels + 1]
        path = ctc_viterbi(*given, blank_id=0, implementation="mosaic_tpu")
        return (last, expected, ctc_viterbi(*given, blank_id=0)), (found, pointers, path)

    for expected, found in zip(*map(jax.tree.leaves, both(*for_paths(*sizes))), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_path_is_one_of_its_labels():
    log_probs, lengths, labels, label_lengths = jax.device_get(for_paths(9, 60, 12, 5))
    best = jax.jit(partial(ctc_viterbi, blank_id=0))
    scores, states = jax.device_get(best(np.maximum(log_probs, -9), lengths, labels, label_lengths))
    reached = (scores > NEVER / 2) & (lengths > 0)
    assert 1 < reached.sum() < len(scores)
    for row in np.flatnonzero(reached):
        path, number = states[row, : lengths[row]], int(label_lengths[row])
        steps = np.diff(path, prepend=0)
        assert set(steps) <= {0, 1, 2}
        assert all(path[steps == 2] % 2 == 1)
        assert path[-1] in (2 * number, 2 * number - 1)
        assert set(path[path % 2 == 1]) == {2 * label - 1 for label in range(1, number + 1)}
        assert (states[row, lengths[row] :] == path[-1]).all()


def test_what_cannot_run_is_named(monkeypatch):
    shapes = jax.eval_shape(lambda: for_paths_of(4096))
    call = partial(ctc_viterbi, blank_id=0, implementation="mosaic_tpu")
    with pytest.raises(ValueError, match="mosaic_tpu on cpu: it is for TPUs; expected reference"):
        jax.eval_shape(call, *shapes)
    monkeypatch.setattr(implementations, "traced_for", lambda: TracedFor("tpu", 1))
    with pytest.raises(ValueError, match="4096 labels: expected at most 4095 for mosaic_tpu, or reference"):
        jax.eval_shape(call, *shapes)


def for_paths_of(num_labels, *, rows=2, frames=300, symbols=50):
    number = jnp.zeros(rows, jnp.int32)
    return jnp.zeros((rows, frames, symbols)), number, jnp.zeros((rows, num_labels), jnp.int32), number


@pytest.mark.slow
@pytest.mark.parametrize(("device", "implementation"), [("v5e", "mosaic_tpu"), ("h100", "triton"), ("a100", "triton")])
@pytest.mark.parametrize(("rows", "frames", "num_labels"), [(8, 1500, 200), (2, 300, mosaic_tpu.MOST_LABELS)])
def test_it_compiles_for_accelerators(device, implementation, rows, frames, num_labels):
    shapes = jax.eval_shape(lambda: for_paths_of(num_labels, rows=rows, frames=frames, symbols=500))
    call = partial(ctc_viterbi, blank_id=0, implementation=implementation)
    text = compiled_for(device, call, *shapes).as_text()
    assert text.count("custom-call(") >= 2
    assert "while" not in text


@pytest.mark.slow
@pytest.mark.parametrize(("device", "implementation"), [("v5e", "mosaic_tpu"), ("h100", "triton")])
def test_it_compiles_in_vmap(device, implementation):
    """Lists of hypotheses are aligned in `vmap`, for which jax-triton has no rule."""
    log_probs, lengths, labels, label_lengths = jax.eval_shape(lambda: for_paths_of(20))
    lists = jax.ShapeDtypeStruct((3, *labels.shape), labels.dtype)

    def call(log_probs, lengths, lists, label_lengths):
        best = partial(ctc_viterbi, log_probs, lengths, blank_id=0, implementation=implementation)
        return jax.vmap(lambda labels: best(labels, label_lengths))(lists)

    text = compiled_for(device, call, log_probs, lengths, lists, label_lengths).as_text()
    assert text.count("custom-call(") >= 2
