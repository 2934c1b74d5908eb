"""Emission latency of a recognised set against the times of its spoken words."""

from collections.abc import Mapping, Sequence
from typing import Any

from asr_jax.data.batching.dataset import PlannedData
from asr_jax.inference.recognition import Recognition
from asr_jax.metrics.latency import TimedWord, latencies, latency_report, num_words


def latency_of(
    data: PlannedData,
    found: Recognition,
    spoken: Mapping[str, Sequence[TimedWord]],
    *,
    normaliser: str,
    frame_s: float,
) -> dict[str, Any]:
    """Returns the statistics of `metrics.latency.latency_report` and the numbers behind them.

    These are `words` (spoken words that are recognised right, which the statistics count), `spoken_words` (all spoken
    words), `utterances`, and `without_alignment` (utterances whose words have no times, which do not count).

    Args:
        frame_s: Duration in seconds of a frame of the encoder's output.
    """
    transcripts = {data.index.utterances[row].id: found.transcripts[row] for row in sorted(found.transcripts)}
    aligned = {name: each for name, each in transcripts.items() if name in spoken}
    counted = [
        latency
        for name, transcript in aligned.items()
        for latency in latencies(
            spoken[name],
            [
                TimedWord(word.text, word.start_s, word.end_s if word.emitted_s is None else word.emitted_s)
                for word in transcript.words
            ],
            normaliser,
        )
    ]
    return latency_report(counted, frame_s=frame_s) | {
        "words": len(counted),
        "spoken_words": sum(num_words(spoken[name], normaliser) for name in aligned),
        "utterances": len(aligned),
        "without_alignment": len(transcripts) - len(aligned),
    }
