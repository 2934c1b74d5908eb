"""Trains small models on strings of digits, exports them, and compares other programs with `transcribe`.

    python -m benchmarks.exports --data DIR --out RUNS [--models NAMES] [--json OUT]

DIR has the manifests of benchmarks.delay_penalty. Each model is trained for some minutes. Of 50 test recordings of all
lengths, it compares the log-probabilities of onnxruntime with those of the run, and the texts of sherpa-onnx, with
weights in float32 and in int8, with those of `transcribe`. Of all test recordings, it compares error rates. Real-time
factors of sherpa-onnx are of one recording at a time on one thread, ours of batches on all cores. Trainings are kept in
RUNS; a second call trains only what is missing. This file is also the config of the trainings:
`MODEL=quartznet python -m asr_jax.train --config benchmarks/exports.py`.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from asr_jax.api import load
from asr_jax.audio import presets
from asr_jax.audio.io import read_audio
from asr_jax.config import Experiment, Init, Training, Validation
from asr_jax.core.options import parse
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.exporting.parts import Parts
from asr_jax.exporting.targets import export
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer import Paraformer
from asr_jax.heads.transducer import Transducer
from asr_jax.inference.endpoints import Endpoints
from asr_jax.inference.trained import Trained, load_trained
from asr_jax.metrics.errors import word_errors
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.encoder import Context
from asr_jax.models.quartznet import QuartzNet
from asr_jax.models.sanm import SANM
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.decoders.parallel_decoder import SANMDecoder
from asr_jax.nn.recurrent.prediction import StatelessPrediction
from asr_jax.observe.tables import print_table
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.search.transducer_beam import TransducerSearch
from asr_jax.text.tokenizers import TokenizerSettings

NUM_COMPARED = 50
"""Number of test recordings, spread over all lengths, whose texts and log-probabilities are compared."""
ZIPFORMER = Zipformer.tiny(batches_per_update=15.0, dropout_start=0.15, dropout_end=0.1)
STREAMING = replace(
    ZIPFORMER, causal=True, contexts=(Context(16, 64), Context(8, 64), Context(32, 64), Context(64, 64), Context())
)
STATELESS: dict[str, HeadSettings] = {
    "transducer": Transducer(prediction=StatelessPrediction(64), joint_dim=128, activation="tanh", dropout=0.0),
    "ctc": CTC(dropout=0.1, scale=0.5),
}
MODELS = {
    "zipformer": Model(ZIPFORMER),
    "transducer": Model(ZIPFORMER, heads=STATELESS, primary="transducer"),
    "streaming_zipformer": Model(STREAMING),
    "streaming_transducer": Model(STREAMING, heads=STATELESS, primary="transducer"),
    "conformer": Model(Conformer.tiny(), front_end=presets.nemo()),
    "fastconformer": Model(Conformer.tiny(subsampling_factor=8, kernel_size=9), front_end=presets.nemo(), augment=()),
    "squeezeformer": Model(Squeezeformer.tiny(), front_end=presets.squeezeformer(), augment=()),
    "quartznet": Model(QuartzNet.tiny(num_mels=64, dropout=0.0), front_end=presets.quartznet(), augment=()),
    "w2v_bert": Model(W2VBert.tiny(layer_drop=0.0), front_end=presets.w2v_bert()),
    "wav2vec2": Model(Wav2Vec2.tiny(layer_drop=0.0), front_end=presets.wav2vec2_normalised(), augment=()),
    "paraformer": Model(
        SANM.tiny(),
        heads={
            "paraformer": Paraformer(
                decoder=SANMDecoder(num_layers=2, num_attention_layers=2, num_heads=4, feedforward_dim=192)
            ),
            "ctc": CTC(scale=0.3),
        },
        primary="paraformer",
        front_end=presets.funasr(),
    ),
}
BEAM = TransducerDecoding(kind="beam", max_symbols=1, search=TransducerSearch(beam_width=4))
"""Search that is sherpa-onnx's modified beam search."""
FIRST = {"transducer": "zipformer", "streaming_transducer": "streaming_zipformer"}
"""Models that begin with the encoder and the CTC head of another. From random weights, 1,000 updates are too few."""
SCHEDULES = {
    "fastconformer": (3e-3, 1500),
    "squeezeformer": (3e-3, 1500),
    "quartznet": (3e-3, 1500),
    "w2v_bert": (1e-3, 2500),
    "wav2vec2": (1e-3, 3000),
}
"""Peak learning rates and numbers of updates of the models that learn too little from 1,000 updates at 3e-3."""
MODEL = os.environ.get("MODEL", "zipformer")


@dataclass(frozen=True, kw_only=True)
class ExportBenchmark:
    """Options of `benchmarks.exports`."""

    data: Path
    """Folder with train.jsonl, validation.jsonl and test.jsonl."""
    out: Path
    """Folder of the trainings."""
    models: tuple[str, ...] = tuple(MODELS)
    """Names of the models."""
    json: Path | None = None
    """File to write the figures to, in JSON."""


def experiment(init_from: str = "") -> Experiment:
    primary = ("ctc",) if MODEL == "paraformer" else ()
    peak_lr, num_updates = SCHEDULES.get(MODEL, (3e-3, 1000))
    return Experiment(
        name=f"exports_{MODEL}",
        model=MODELS[MODEL],
        init=Init(path=init_from, new=("heads_transducer/.*",) if init_from else ()),
        data=Data(
            train=("data/digit_strings/train.jsonl",),
            validation=("data/digit_strings/validation.jsonl",),
            tokenizer=TokenizerSettings(kind="words"),
            batching=Batching.planned(num_buckets=3, seconds=40.0, row_multiple=4),
            speeds=(0.9, 1.0, 1.1),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=peak_lr, warmup_updates=150, decay="cosine")),
        training=Training(
            num_updates=num_updates, ema=EMA(0.98), validation=Validation(every=500, heads=primary), log_every=100
        ),
    )


def main(arguments: Sequence[str]) -> None:
    options = parse(ExportBenchmark, arguments, prog="python -m benchmarks.exports", about=__doc__)
    rows = []
    for name in options.models:
        train(options, name)
        rows.append({"model": name} | measured(options, name))
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    columns = (
        "model",
        "kind",
        "log_probs",
        "other_texts",
        "other_texts_int8",
        "other_texts_of_one_level",
        "wer",
        "wer_int8",
        "rtf",
        "rtf_int8",
        "rtf_ours",
    )
    print_table([{column: row.get(column, "") for column in columns} for row in rows], title="exports")


def train(options: ExportBenchmark, name: str) -> None:
    """Trains a model; a training that is complete ends at once."""
    first = FIRST.get(name)
    if first:
        train(options, first)
    command = [sys.executable, "-m", "asr_jax.train", "--config", __file__, "--run-dir", options.out / name]
    command += ["--data.train", options.data / "train.jsonl", "--data.validation", options.data / "validation.jsonl"]
    command += ["--init-from", options.out / first] if first else []
    subprocess.run([*map(str, command)], check=True, env={**os.environ, "MODEL": name})


def measured(options: ExportBenchmark, name: str) -> dict[str, Any]:
    """Returns the figures of a model."""
    run, row = options.out / name, dict[str, Any]()
    trained = load_trained(run, precision="f32")
    test = sorted(read_utterances([options.data / "test.jsonl"]), key=lambda each: each.duration_s)
    compared = [test[place] for place in np.linspace(0, len(test) - 1, NUM_COMPARED).astype(int)]
    samples = {each.id: read_audio(each.location, rate_hz=16000) for each in test}
    texts, row["rtf_ours"] = texts_of_run(run, test)
    row["wer"] = error_rate(test, texts)
    if name.startswith("streaming"):
        return row | streams(run, trained, compared, samples, options.out / f"{name}_sherpa")
    row |= onnx(trained, compared, samples, options.out / f"{name}_onnx")
    beams = texts_of_run(run, test, BEAM)[0] if trained.model.recognising == "transducer" else {}
    row |= sherpa(trained, compared[-1], test, compared, samples, (texts, beams), options.out / f"{name}_sherpa")
    if row["kind"] == "omnilingual_asr_ctc":
        row["other_texts_of_one_level"] = of_one_level(run, compared, samples, options.out / f"{name}_sherpa")
    print(json.dumps(row), flush=True)
    return row


def texts_of_run(
    run: Path, test: Sequence[Utterance], decoding: TransducerDecoding | None = None
) -> tuple[dict[str, str], float]:
    """Returns the texts of `transcribe` and its real-time factor, without compilation."""
    model = load(run, precision="f32", decoding=decoding)
    paths = [each.location for each in test]
    model.transcribe(paths)
    began = time.perf_counter()
    found = model.transcribe(paths)
    seconds = time.perf_counter() - began
    texts = {each.id: transcript.text for each, transcript in zip(test, found, strict=True)}
    return texts, seconds / sum(each.duration_s for each in test)


def error_rate(test: Sequence[Utterance], texts: dict[str, str]) -> float:
    counts = [word_errors(each.text, texts[each.id]) for each in test]
    return sum(each.errors for each in counts) / sum(each.words for each in counts)


def onnx(trained: Trained, compared: Sequence[Utterance], samples: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the largest difference of onnxruntime's log-probabilities from those of the run."""
    import jax
    import onnxruntime

    from asr_jax.core.batch import Batch

    subprocess.run(["rm", "-rf", str(folder)], check=True)
    for line in export(trained, folder, to="onnx", recording=compared[-1].location):
        print(line, flush=True)
    if not (folder / "model.onnx").exists():
        return {}
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    head, largest = trained.model.recognising, 0.0
    emit = jax.jit(lambda batch: trained.model.apply(trained.variables, batch, head=head, method="emit")[head])
    size = max(map(len, samples.values()))
    for each in compared:
        audio = np.zeros((1, size), np.int16)
        audio[0, : len(samples[each.id])] = samples[each.id]
        lengths = np.asarray([len(samples[each.id])], np.int32)
        nothing = np.zeros((1, 0), np.int32), np.zeros(1, np.int32), np.ones(1, np.float32), np.zeros(1, np.int32)
        frames = emit(Batch(audio, None, lengths, *nothing))
        given = {"audio": samples[each.id][None].astype(np.float32) / 32768, "audio_lengths": lengths.astype(np.int64)}
        found, length = session.run(None, given)
        assert length[0] == frames.lengths[0], each.id
        both = (np.asarray(values)[0, : length[0]] for values in (found, frames.values))
        largest = max(largest, float(np.abs(np.subtract(*both)).max(initial=0.0)))
    return {"log_probs": largest}


def sherpa(
    trained: Trained,
    recording: Utterance,
    test: Sequence[Utterance],
    compared: Sequence[Utterance],
    samples: dict[str, np.ndarray],
    texts: tuple[dict[str, str], dict[str, str]],
    folder: Path,
) -> dict[str, Any]:
    """Returns the figures of sherpa-onnx: other texts, error rates and real-time factors, in float32 and in int8."""
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    lines = list(export(trained, folder, to="sherpa-onnx", weights=("f32", "int8"), recording=recording.location))
    print(*lines, sep="\n", flush=True)
    kind = next(line for line in lines if "OfflineRecognizer.from_" in line).partition("from_")[2].partition("(")[0]
    row: dict[str, Any] = {"kind": kind}
    methods = ("greedy_search", "modified_beam_search") if kind == "transducer" else ("greedy_search",)
    for method in methods:
        for weights in ("", ".int8"):
            found, rtf = texts_of_sherpa(folder, kind, samples, weights=weights, method=method)
            end = weights.replace(".", "_") + ("_beam" if "beam" in method else "")
            row[f"wer{end}" if end else "wer_sherpa"] = error_rate(test, found)
            expected = texts["beam" in method]
            row[f"other_texts{end}"] = sum(found[each.id] != expected[each.id] for each in compared)
            row[f"rtf{end}"] = rtf
    row["bytes"] = {path.name: path.stat().st_size for path in sorted(folder.glob("*.onnx"))}
    return row


def of_one_level(run: Path, compared: Sequence[Utterance], samples: dict[str, np.ndarray], folder: Path) -> int:
    """Returns the number of other texts if all recordings have the level of the one that the files were tried with."""
    level, scaled = samples[compared[-1].id].std(), dict[str, np.ndarray]()
    for each in compared:
        audio = samples[each.id] - samples[each.id].mean()
        scaled[each.id] = np.clip(np.rint(audio * level / audio.std()), -32768, 32767).astype(np.int16)
    expected = load(run, precision="f32").transcribe([*scaled.values()], rate_hz=16000)
    found, _ = texts_of_sherpa(folder, "omnilingual_asr_ctc", scaled, weights="", method="greedy_search")
    return sum(text != transcript.text for text, transcript in zip(found.values(), expected, strict=True))


def texts_of_sherpa(
    folder: Path, kind: str, samples: dict[str, np.ndarray], *, weights: str, method: str
) -> tuple[dict[str, str], float]:
    """Returns the texts of sherpa-onnx and its real-time factor on one thread."""
    import sherpa_onnx

    first = {"transducer": "encoder", "paraformer": "paraformer"}.get(kind, "model")
    files = {first: str(folder / f"{'encoder' if kind == 'transducer' else 'model'}{weights}.onnx")}
    if kind == "transducer":
        files |= {part: str(folder / f"{part}.onnx") for part in ("decoder", "joiner")} | {"decoding_method": method}
    make = getattr(sherpa_onnx.OfflineRecognizer, f"from_{kind}")
    recogniser = make(**files, tokens=str(folder / "tokens.txt"), num_threads=1)
    texts, seconds = {}, 0.0
    for name, audio in samples.items():
        audio = audio.astype(np.float32) / 32768
        began = time.perf_counter()
        stream = recogniser.create_stream()
        stream.accept_waveform(16000, audio)
        recogniser.decode_stream(stream)
        texts[name] = stream.result.text.strip()
        seconds += time.perf_counter() - began
    return texts, seconds / sum(len(each) / 16000 for each in samples.values())


def streams(
    run: Path, trained: Trained, compared: Sequence[Utterance], samples: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Returns the figures of sherpa-onnx's streaming recogniser. Both sides get silence behind each recording."""
    import sherpa_onnx

    from asr_jax.exporting.sherpa_streaming import frames_of_window

    subprocess.run(["rm", "-rf", str(folder)], check=True)
    row: dict[str, Any] = {}
    lines = export(
        trained, folder, to="sherpa-onnx", weights=("f32", "int8"), recording=compared[-1].location, streaming=True
    )
    for line in lines:
        print(line, flush=True)
        if "from_" in line:
            row["kind"] = "streaming " + line.partition("from_")[2].partition("(")[0]
    parts = Parts(trained.model, trained.variables, "", samples[compared[0].id])
    tail = np.zeros(sum(frames_of_window(parts)[:2]) * 160)
    padded = {each.id: np.concatenate([samples[each.id], tail.astype(np.int16)]) for each in compared}
    model, expected = load(run, precision="f32"), {}
    for each in compared:
        stream = model.stream(endpoints=Endpoints(0.0, 0.0, 0.0))
        results = [*stream.feed(padded[each.id]), *stream.finish()]
        expected[each.id] = " ".join(result.transcript.text for result in results if result.is_final)
    for end in ("", ".int8"):
        if "transducer" in row["kind"]:
            files = {part: str(folder / f"{part}.onnx") for part in ("decoder", "joiner")}
            files["encoder"] = str(folder / f"encoder{end}.onnx")
        else:
            files = {"model": str(folder / f"model{end}.onnx")}
        make = getattr(sherpa_onnx.OnlineRecognizer, f"from_{row['kind'].removeprefix('streaming ')}")
        recogniser, texts, seconds = make(**files, tokens=str(folder / "tokens.txt"), num_threads=1), {}, 0.0
        for each in compared:
            began = time.perf_counter()
            stream = recogniser.create_stream()
            stream.accept_waveform(16000, padded[each.id].astype(np.float32) / 32768)
            stream.input_finished()
            while recogniser.is_ready(stream):
                recogniser.decode_stream(stream)
            texts[each.id] = recogniser.get_result(stream).strip()
            seconds += time.perf_counter() - began
        name = end.replace(".", "_")
        row[f"other_texts{name}"] = sum(texts[each.id] != expected[each.id] for each in compared)
        row[f"wer{name}" if end else "wer_sherpa"] = error_rate(compared, texts)
        row[f"rtf{name}"] = seconds / sum(len(each) / 16000 for each in padded.values())
    row["wer"] = error_rate(compared, expected)
    row["bytes"] = {path.name: path.stat().st_size for path in sorted(folder.glob("*.onnx"))}
    return row


if __name__ == "__main__":
    from asr_jax.cli.command_line import run_command

    run_command(main)
