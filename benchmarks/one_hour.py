"""Compares transcription of long audio with that of its parts: `python benchmarks/one_hour.py RUN --data MANIFEST …`.

Recordings of the manifests are joined, with pauses of 0.3 to 1 s, to files of `--minutes` minutes. Each file is
transcribed whole, in windows, in its own process, and the recordings are transcribed one by one in another. Prints the
numbers of equal and different words, seconds, speed as a multiple of real time, and the peak memory of each process.
`--shifts-s` adds silence before the file (multiples of 0.08 s, since a part of a frame would change every frame), which
moves the seams of the windows. Words that then differ depend on a seam or on the context of their window; those that
depend on a seam are near it. Errors relative to the texts of the manifests show which result is right.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from rapidfuzz.distance import Levenshtein

RATE_HZ = 16000
PAUSE_S = (0.3, 1.0)
NEAR_S = 0.5
"""Maximum distance in seconds of a difference from a possible seam that counts as near it."""


def side(run: str, work: str) -> None:
    """Runs in its own process: transcribes the files in `work` (JSON), writes words and figures to standard output."""
    from asr_jax.data.manifests.utterances import Utterance
    from asr_jax.inference.trained import load_trained
    from asr_jax.inference.transcription import Transcriber

    utterances = [Utterance(str(place), path, "", length_s) for place, (path, length_s) in enumerate(json.loads(work))]
    trained = load_trained(Path(run))
    transcriber = Transcriber(trained, trained.decoder())
    agreeing = watch_seams()
    transcriber.prepare(utterances)
    transcriber.decoder.wait()
    before, start = peak_mb(), time.perf_counter()
    found = [each.transcript for each in transcriber(utterances)]
    took_s = time.perf_counter() - start
    assert all(found), "every recording can be read"
    words = [[(word.text, word.start_s, word.end_s) for word in each.words] for each in found if each]
    windows = {"size_s": transcriber.windows.size / RATE_HZ, "step_s": transcriber.windows.step / RATE_HZ}
    figures = {"took_s": took_s, "peak_mb": peak_mb(), "before_mb": before, "agreeing": agreeing}
    print(json.dumps({"words": words, "windows": windows, **figures}))


def watch_seams() -> list[int]:
    """Stores, for every later seam, the minimum number of equal frames of both windows on either side of it."""
    from asr_jax.transcripts import seams

    plain, agreeing = seams.seam, list[int]()

    def watched(left: Any, right: Any, *, blank_id: int) -> int:
        cut = plain(left, right, blank_id=blank_id)
        first, end = max(left.first_frame, right.first_frame), left.end_frame
        other = np.flatnonzero(left.between(first, end).path != right.between(first, end).path) + first
        agreeing.append(int(min([cut - 1 - other[other < cut].max(initial=first - 1), *(other[other >= cut] - cut)])))
        return cut

    seams.seam = watched
    return agreeing


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_process(run: str, work: list[tuple[str, float]]) -> dict[str, Any]:
    command = [sys.executable, __file__, run, "--side"]
    done = subprocess.run(command, input=json.dumps(work), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def join(utterances: list[Any], minutes: float, path: Path, *, shift_s: float, seed: int) -> list[Any]:
    """Writes recordings until the file is long enough, repeatedly if there are too few; returns the written ones."""
    from asr_jax.data.manifests.locations import Location

    rng, written, num = np.random.default_rng(seed), [], 0
    with soundfile.SoundFile(path, "w", RATE_HZ, 1, format="FLAC", subtype="PCM_16") as file:
        file.write(quiet(round(shift_s * RATE_HZ), np.random.default_rng(seed)))  # the rest is independent of it
        while num < minutes * 60 * RATE_HZ:
            utterance = utterances[len(written) % len(utterances)]
            samples = Location.parse(utterance.location).audio(rate_hz=RATE_HZ)
            pause = quiet(round(rng.uniform(*PAUSE_S) * RATE_HZ), rng)
            file.write(samples)
            file.write(pause)
            num += len(samples) + len(pause)
            written.append(utterance)
    return written


def quiet(num: int, rng: np.random.Generator) -> np.ndarray:
    """Noise of one bit, like the silence of a recorder."""
    return rng.integers(-1, 2, num).astype(np.int16)


def compare(ours: list[Any], theirs: list[str], windows: dict[str, float]) -> dict[str, Any]:
    """Compares words of a whole file, which have times, with other words; counts differences, and those near seams."""
    texts, near, counts = [word for word, _, _ in ours], 0, dict.fromkeys(("replace", "delete", "insert"), 0)
    for part in Levenshtein.opcodes(theirs, texts):
        if part.tag == "equal":
            continue
        number = max(part.src_end - part.src_start, part.dest_end - part.dest_start)
        counts[part.tag] += number
        place = min(part.dest_start, len(ours) - 1)
        near += number * is_near_seam(ours[place][1], windows)
    return {
        "words": len(theirs), "equal": len(theirs) - counts["replace"] - counts["delete"],
        "other": counts["replace"], "only piecewise": counts["delete"], "only whole": counts["insert"],
        "near seams": near,
    }  # fmt: skip


def is_near_seam(time_s: float, windows: dict[str, float]) -> bool:
    """Whether a seam can be near this time: in the middle third of an overlap, or at most NEAR_S beside it."""
    overlap_s = windows["size_s"] - windows["step_s"]
    since = (time_s - windows["step_s"] - overlap_s / 2) / windows["step_s"]
    return abs(since - max(round(since), 0)) * windows["step_s"] < overlap_s / 6 + NEAR_S


def share_near_seams(windows: dict[str, float]) -> float:
    return min((windows["size_s"] - windows["step_s"]) / 3 + 2 * NEAR_S, windows["step_s"]) / windows["step_s"]


def measure(run: str, utterances: list[Any], minutes: float, folder: Path, *, shifts_s: list[float], seed: int) -> None:
    lines = []
    for shift_s in shifts_s:
        path = folder / f"{minutes:g}-{shift_s:g}.flac"
        written = join(utterances, minutes, path, shift_s=shift_s, seed=seed)
        whole = in_process(run, [(str(path), soundfile.info(path).duration)])
        seconds = soundfile.info(path).duration
        path.unlink()
        figures = f"{whole['took_s']:.1f} s, {seconds / whole['took_s']:.0f} × real time, "
        figures += f"peak {whole['peak_mb']:.0f} MB ({whole['before_mb']:.0f} before)"
        print(f"{minutes:g} min, shifted by {shift_s:g} s: {figures}", flush=True)
        few = sum(number < 3 for number in whole["agreeing"])
        print(f"  {len(whole['agreeing'])} seams, {few} of them with fewer than 3 equal frames on one side")
        lines.append((shift_s, whole))
    piecewise = in_process(run, [(utterance.location, utterance.duration_s) for utterance in written])
    figures = f"{piecewise['took_s']:.1f} s, peak {piecewise['peak_mb']:.0f} MB ({piecewise['before_mb']:.0f} before)"
    print(f"  {len(written)} pieces one by one: {figures}")
    texts = [word for words in piecewise["words"] for word, _, _ in words]
    reference = [word for utterance in written for word in utterance.text.split()]
    print(f"  piecewise: {errors(reference, texts)}")
    for shift_s, whole in lines:
        (words,) = whole["words"]
        print(f"  whole, shifted by {shift_s:g} s: {errors(reference, [word for word, _, _ in words])}")
        print(f"    compared with piecewise: {compare(words, texts, whole['windows'])}")
        if whole is not lines[0][1]:
            first = [word for word, _, _ in lines[0][1]["words"][0]]
            print(f"    compared with unshifted: {compare(words, first, whole['windows'])}")
    share = share_near_seams(lines[0][1]["windows"])
    print(f"  {share:.0%} of the time is near a seam; windows {lines[0][1]['windows']}", flush=True)


def errors(reference: list[str], words: list[str]) -> str:
    edits = Levenshtein.distance(reference, words)
    return f"{edits} errors of {len(reference)} words, {100 * edits / len(reference):.2f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a trained run")
    parser.add_argument("--data", nargs="+", metavar="MANIFEST")
    parser.add_argument("--minutes", nargs="+", type=float, default=[15, 30, 60])
    parser.add_argument(
        "--shifts-s",
        nargs="+",
        type=float,
        default=[0.0, 1.36],
        help="silence before the file in seconds; must be whole frames",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side(options.run, sys.stdin.read())
        return
    from asr_jax.data.manifests.reading import read_utterances

    utterances = list(read_utterances(options.data, role="validation"))
    np.random.default_rng(options.seed).shuffle(utterances)
    with tempfile.TemporaryDirectory() as folder:
        for minutes in options.minutes:
            measure(options.run, utterances, minutes, Path(folder), shifts_s=options.shifts_s, seed=options.seed)


if __name__ == "__main__":
    main()
