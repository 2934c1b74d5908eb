"""lhotse's side of `race_lhotse.py`, in the environment of scripts/setup_reference.sh; prints a line of JSON.

Uses DynamicBucketingSampler with K2SpeechRecognitionDataset (padded audio) in torch's DataLoader, like icefall.
    prepare MANIFEST CUTS   converts our JSONL to lhotse's cuts
    plan CUTS               seconds to the first batch of the sampler and of an epoch; padding and shapes
    read CUTS               seconds to the first batch of audio, and audio seconds per second after --skip batches
"""

import argparse
import json
import time
from pathlib import Path

START = time.perf_counter()

from lhotse import CutSet, MonoCut, Recording, SupervisionSegment  # noqa: E402
from lhotse.audio import AudioSource  # noqa: E402
from lhotse.dataset import DynamicBucketingSampler, K2SpeechRecognitionDataset  # noqa: E402
from lhotse.dataset.input_strategies import AudioSamples  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

IMPORT_S = time.perf_counter() - START
RATE_HZ = 16000


def prepare(manifest: Path, cuts: Path) -> None:
    with CutSet.open_writer(cuts) as writer, manifest.open(encoding="utf-8") as file:
        for line in file:
            writer.write(cut_of(json.loads(line), manifest.parent.parent))


def cut_of(fields: dict, root: Path) -> MonoCut:
    num_samples = round(fields["duration"] * RATE_HZ)
    seconds, name = num_samples / RATE_HZ, fields["id"]
    source = AudioSource("file", [0], str(root / fields["audio_path"]))
    recording = Recording(name, [source], RATE_HZ, num_samples, seconds)
    words = SupervisionSegment(name, name, 0.0, seconds, text=fields["text"], speaker=fields["speaker"])
    return MonoCut(name, 0.0, seconds, 0, recording=recording, supervisions=[words])


def sampler_of(cuts: CutSet, given: argparse.Namespace) -> DynamicBucketingSampler:
    return DynamicBucketingSampler(cuts, max_duration=given.batch_seconds, num_buckets=given.buckets, shuffle=True)


def plan(given: argparse.Namespace) -> dict:
    start = time.perf_counter()
    sampler = sampler_of(CutSet.from_jsonl_lazy(given.cuts), given)
    first_s, shapes, audio, padded, num = None, set(), 0.0, 0.0, 0
    for batch in sampler:
        first_s = first_s or time.perf_counter() - start
        durations = [cut.duration for cut in batch]
        shapes.add((len(durations), round(max(durations) * RATE_HZ)))
        audio, padded, num = audio + sum(durations), padded + len(durations) * max(durations), num + 1
    return {
        "first_s": first_s, "epoch_s": time.perf_counter() - start, "batches": num, "shapes": len(shapes),
        "padding": 1 - audio / padded, "batch_s": padded / num,
    }  # fmt: skip


def read(given: argparse.Namespace) -> dict:
    start = time.perf_counter()
    # 20 repetitions: the sampler shuffles in a buffer, which an endless repetition would fill with copies of the files.
    sampler = sampler_of(CutSet.from_jsonl_lazy(given.cuts).repeat(20), given)
    dataset = K2SpeechRecognitionDataset(input_strategy=AudioSamples(), return_cuts=False)
    first_s, samples, begun, num = None, 0, 0.0, 0
    while True:
        for batch in DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=given.workers):
            first_s = first_s or time.perf_counter() - start
            num += 1
            if num == given.skip:
                begun, samples = time.perf_counter(), 0
                continue
            samples += int(batch["supervisions"]["num_samples"].sum())
            if num > given.skip and time.perf_counter() - begun > given.seconds:
                rate = samples / RATE_HZ / (time.perf_counter() - begun)
                return {"first_s": first_s, "audio_s_per_s": rate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "plan", "read"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--batch-seconds", type=float, default=240.0)
    parser.add_argument("--buckets", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--skip", type=int, default=20)
    given = parser.parse_args()
    given.cuts = given.paths[-1]
    if given.what == "prepare":
        prepare(*given.paths)
        return
    print(json.dumps({"import_s": IMPORT_S} | {"plan": plan, "read": read}[given.what](given)), flush=True)


if __name__ == "__main__":
    main()
