"""Searches of other programs over the three ONNX files of a transducer find the labels of the run's searches."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from exporting.small_models import RECURRENT, STATELESS
from exporting.test_export_targets import given
from exporting.test_sherpa import balanced, texts_of_sherpa, written
from exporting.untrained import untrained

from asr_jax.api import Run
from asr_jax.audio.io import read_audio
from asr_jax.exporting.targets import export
from asr_jax.heads.transducer import Transducer
from asr_jax.inference.trained import Trained
from asr_jax.models.base import Model
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.search.transducer_beam import TransducerSearch

BEAM = TransducerDecoding(kind="beam", max_symbols=1, search=TransducerSearch(beam_width=4))


def transducer(head: Transducer, recording: Path) -> Trained:
    """A quick encoder with icefall's features, whose frames have several best labels."""
    head = replace(head, decoding=TransducerDecoding(max_symbols=1))
    encoder = LSTMEncoder(dim=24, num_mels=80, layers_before=1, layers_after=1)
    return balanced(untrained(Model(encoder, heads={"transducer": head}, augment=())), read_audio(recording))


def greedy(folder: Path, samples: np.ndarray, blank_id: int) -> list[int]:
    """Decodes a recording frame by frame with onnxruntime, as docs/export.md describes the files."""
    encoder, decoder, joiner = (
        onnxruntime.InferenceSession(folder / f"{part}.onnx") for part in ("encoder", "decoder", "joiner")
    )
    frames, lengths = encoder.run(None, given(samples[None], [len(samples)]))
    found: list[int] = []
    inputs = {each.name: each.shape for each in decoder.get_inputs()}
    if "labels" in inputs:
        state = {"labels": np.full((1, inputs["labels"][1]), -1)}
        state["labels"][0, -1] = blank_id
        predicted, *after = decoder.run(None, state)
    else:
        state = {name: np.zeros((1, *inputs[name][1:]), np.float32) for name in ("hidden", "cell")}
        predicted, *after = decoder.run(None, {"label": np.asarray([blank_id]), **state})
    for frame in frames[0, : lengths[0]]:
        [logits] = joiner.run(None, {"encoder_out": frame[None], "decoder_out": predicted})
        label = int(logits[0].argmax())
        if label == blank_id:
            continue
        found.append(label)
        if "labels" in inputs:
            state = {"labels": np.append(state["labels"][:, 1:], [[label]], axis=1)}
            predicted, *after = decoder.run(None, state)
        else:
            state = dict(zip(("hidden", "cell"), after, strict=True))
            predicted, *after = decoder.run(None, {"label": np.asarray([label]), **state})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("head", [STATELESS, RECURRENT], ids=["stateless", "recurrent"])
def test_a_loop_over_frames_finds_the_labels_of_the_run(head: Transducer, tmp_path: Path) -> None:
    paths = written(tmp_path, 1.3, 2.1)
    trained = transducer(head, paths[0])
    list(export(trained, tmp_path / "out", to="onnx"))
    tokenizer, run = trained.tokenizer, Run(trained)
    for path in paths:
        labels = greedy(tmp_path / "out", read_audio(path), tokenizer.blank_id)
        assert len(set(labels)) > 2
        assert tokenizer.decode(labels).split() == run.transcribe(path).text.split()


@pytest.mark.slow
def test_beam_search_finds_the_texts_of_the_run(tmp_path: Path) -> None:
    """sherpa-onnx's modified beam search takes at most one label per frame, and orders by the score per label."""
    paths = written(tmp_path, 1.3, 2.1, 3.0)
    trained = transducer(STATELESS, paths[0])
    list(export(trained, tmp_path / "out", to="sherpa-onnx"))
    run = Run(trained, decoding=BEAM)
    expected = [each.text.split() for each in run.transcribe(paths)]  # in one batch: each shape is compiled
    found, greedily = (
        [text.split() for text in texts_of_sherpa(tmp_path / "out", "transducer", paths, method=method)]
        for method in ("modified_beam_search", "greedy_search")
    )
    assert found == expected != greedily
