"""lhotse's side of `sampling_modes.py`, in the environment of scripts/setup_reference.sh; prints a line of JSON.

Goes through an epoch of DynamicBucketingSampler. Without --bins, batches have at most --seconds of padded audio, and
lhotse estimates the edges of --buckets. With --bins, an utterance goes to the first bin with room for its duration and
its labels, and a batch has the rows of its bin: lhotse's FixedBucketBatchSizeConstraint, with both measures.
"""

import argparse
import json
import time
from pathlib import Path

from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioSource
from lhotse.dataset import DynamicBucketingSampler
from lhotse.dataset.sampling.dynamic_bucketing import FixedBucketBatchSizeConstraint

RATE_HZ = 16000


def cut_of(number: int, fields: dict) -> MonoCut:
    samples, name = fields["samples"], f"u{number}"
    recording = Recording(name, [AudioSource("file", [0], "none.flac")], RATE_HZ, samples, samples / RATE_HZ)
    words = SupervisionSegment(name, name, 0.0, samples / RATE_HZ, custom={"labels": fields["labels"]})
    return MonoCut(name, 0.0, samples / RATE_HZ, 0, recording=recording, supervisions=[words])


def labels_of(cut: MonoCut) -> int:
    return cut.supervisions[0].custom["labels"]


class ByDurationAndLabels(FixedBucketBatchSizeConstraint):
    """Bins of durations and labels; each has its number of rows."""

    def measure_length(self, example: MonoCut) -> tuple[float, int]:
        return example.duration, labels_of(example)

    def select_bucket(self, buckets: list, example: MonoCut | None = None, example_len: tuple | None = None) -> int:
        seconds, labels = example_len or self.measure_length(example)
        return next(k for k, (longest, most) in enumerate(buckets) if seconds <= longest and labels <= most)


def sampler_of(cuts: CutSet, given: argparse.Namespace) -> DynamicBucketingSampler:
    if not given.bins:
        return DynamicBucketingSampler(cuts, max_duration=given.seconds, num_buckets=given.buckets, shuffle=True)
    bins = sorted(json.loads(given.bins))
    edges = [(seconds, labels) for seconds, labels, _ in bins]
    constraint = ByDurationAndLabels(edges, [rows for *_, rows in bins])
    return DynamicBucketingSampler(cuts, constraint=constraint, duration_bins=edges, shuffle=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path, help="JSONL with samples and labels of each utterance")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--buckets", type=int, required=True)
    parser.add_argument("--bins", default="", help="JSON list of seconds, labels and rows")
    given = parser.parse_args()
    cuts_file = given.manifest.with_name("cuts.jsonl")
    with CutSet.open_writer(cuts_file) as writer:
        for number, line in enumerate(given.manifest.read_text().splitlines()):
            writer.write(cut_of(number, json.loads(line)))
    begun, sampling_s = time.perf_counter(), 0.0
    shapes, batches, utterances, real, room = set(), 0, 0, [0.0, 0.0], [0.0, 0.0]
    batch_of = iter(sampler_of(CutSet.from_jsonl_lazy(cuts_file), given))
    while True:
        batch = next(batch_of, None)
        sampling_s += time.perf_counter() - begun
        if batch is None:
            break
        sizes = [(round(cut.duration * RATE_HZ), labels_of(cut)) for cut in batch]
        longest, most = (max(of_cuts) for of_cuts in zip(*sizes, strict=True))
        shapes.add((len(sizes), longest, most))
        batches, utterances = batches + 1, utterances + len(sizes)
        for k, largest in enumerate((longest, most)):
            real[k] += sum(size[k] for size in sizes)
            room[k] += len(sizes) * largest
        begun = time.perf_counter()
    found = {
        "padding_share": 1 - real[0] / room[0], "padding_u_share": 1 - real[1] / room[1],
        "batch_s": real[0] / RATE_HZ / batches, "batch_utterances": utterances / batches, "batches": batches,
        "shapes": len(shapes), "us_per_batch": 1e6 * sampling_s / batches,
    }  # fmt: skip
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
