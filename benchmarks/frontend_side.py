"""Measures front-ends of other systems; `python -m asr_jax.benchmark frontend --peers` runs it in .venv-reference.

Reads {"seconds", "rows", "threads", "repeats"} as JSON from its argument and prints {name: seconds of a batch} as JSON.
Libraries that compute one utterance in one thread run in as many processes as there are threads.
"""

import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

RATE = 16000


def samples(rows: int, seconds: float) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, (rows, int(seconds * RATE))).astype(np.float32)


def best(call: Callable[[], Any], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times)


def of_process(job: tuple[str, int, float, int]) -> float:
    """Minimum time of some rows in one process, in seconds."""
    name, rows, seconds, repeats = job
    waves = samples(rows, seconds)
    return best(lambda: [ONE[name](wave) for wave in waves], repeats)


def kaldi_native_fbank(wave: np.ndarray) -> Any:
    import kaldi_native_fbank as knf

    options = knf.FbankOptions()
    options.frame_opts.dither, options.frame_opts.snip_edges, options.mel_opts.num_bins = 0, False, 80
    options.mel_opts.high_freq = -400
    computer = knf.OnlineFbank(options)
    computer.accept_waveform(RATE, wave)
    computer.input_finished()
    return [computer.get_frame(number) for number in range(computer.num_frames_ready)]


def librosa_mel(wave: np.ndarray) -> Any:
    import librosa

    mels = librosa.feature.melspectrogram(y=wave, sr=RATE, n_fft=512, hop_length=160, win_length=400, n_mels=80)
    return np.log(np.maximum(mels, 1e-10))


def torchaudio_kaldi(wave: np.ndarray) -> Any:
    import torch
    import torchaudio

    torch.set_num_threads(1)
    return torchaudio.compliance.kaldi.fbank(torch.from_numpy(wave)[None], num_mel_bins=80, high_freq=-400)


def seamless(wave: np.ndarray) -> Any:
    return extractor("SeamlessM4TFeatureExtractor")(wave, sampling_rate=RATE, return_tensors="np")


def whisper(wave: np.ndarray) -> Any:
    return extractor("WhisperFeatureExtractor")(wave, sampling_rate=RATE, return_tensors="np", padding=False)


def wav2vec2(wave: np.ndarray) -> Any:
    return extractor("Wav2Vec2FeatureExtractor")(wave, sampling_rate=RATE, return_tensors="np")


EXTRACTORS: dict[str, Any] = {}


def extractor(name: str) -> Any:
    import transformers

    if name not in EXTRACTORS:
        EXTRACTORS[name] = getattr(transformers, name)()
    return EXTRACTORS[name]


ONE = {
    "kaldi-native-fbank": kaldi_native_fbank, "librosa": librosa_mel, "torchaudio.compliance.kaldi": torchaudio_kaldi,
    "transformers Seamless (W2V-BERT)": seamless, "transformers Whisper": whisper, "transformers wav2vec 2.0": wav2vec2,
}  # fmt: skip


def torchaudio_batched(settings: dict[str, Any]) -> float:
    import torch
    import torchaudio

    torch.set_num_threads(settings["threads"])
    waves = torch.from_numpy(samples(settings["rows"], settings["seconds"]))
    mel = torchaudio.transforms.MelSpectrogram(RATE, n_fft=512, win_length=400, hop_length=160, n_mels=80)
    return best(lambda: torch.log(mel(waves).clamp_min(1e-10)), settings["repeats"])


def main() -> None:
    settings = json.loads(sys.argv[1])
    threads, rows = settings["threads"], settings["rows"]
    shares = [rows // threads + (number < rows % threads) for number in range(threads)]
    found = {}
    with multiprocessing.get_context("spawn").Pool(threads) as pool:
        for name in ONE:
            jobs = [(name, share, settings["seconds"], settings["repeats"]) for share in shares if share]
            found[name] = max(pool.map(of_process, jobs, chunksize=1))
    found["torchaudio.transforms (batched)"] = torchaudio_batched(settings)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
