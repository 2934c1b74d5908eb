"""Copies speech in FLAC: `python -m benchmarks.flac_copy MANIFESTS FOLDER [--share S]`.

MANIFESTS is a folder of JSON lines whose `audio_path` is relative to the folder that contains it. FOLDER gets
`manifests/` and `audio/`, with samples at 16 kHz.
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import soundfile

from asr_jax.core.files import write_whole
from asr_jax.data.manifests.locations import Location

RATE_HZ = 16000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifests", type=Path, help="folder of manifests")
    parser.add_argument("folder", type=Path, help="new folder")
    parser.add_argument("--share", type=float, default=1.0, help="share of each set, evenly spaced: %(default)s")
    given = parser.parse_args()
    copied(given.manifests, given.folder, share=given.share)


def copied(manifests: Path, folder: Path, *, share: float = 1.0) -> None:
    """Copies manifests and their audio.

    Args:
        folder: New folder.
        share: Share of the utterances of each manifest that are copied, evenly spaced.
    """
    (folder / "manifests").mkdir(parents=True)
    for manifest in sorted(manifests.glob("*.jsonl")):
        audio = folder / "audio" / manifest.stem
        audio.mkdir(parents=True)

        def copy(line: str, audio: Path = audio) -> str:
            entry = json.loads(line)
            samples = Location(str(manifests.parent / entry["audio_path"])).audio(rate_hz=RATE_HZ)
            path = audio / f"{Path(entry['audio_path']).stem}.flac"
            soundfile.write(path, samples, RATE_HZ, subtype="PCM_16")
            return json.dumps(entry | {"audio_path": str(path.relative_to(folder))})

        lines = manifest.read_text(encoding="utf-8").splitlines()
        lines = [line for i, line in enumerate(lines) if int((i + 1) * share) > int(i * share)]
        with ThreadPoolExecutor() as pool:
            lines = list(pool.map(copy, lines))
        write_whole(folder / "manifests" / manifest.name, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
