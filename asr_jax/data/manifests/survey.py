"""Survey of a corpus: its sets, audio and texts, what looks wrong, duplicates, and splits that it lacks."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from asr_jax.audio.io import AudioError, AudioInfo
from asr_jax.audio.mono import Remarks
from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.data.manifests.columns import NameColumn
from asr_jax.data.manifests.durations import tolerated_s
from asr_jax.data.manifests.held_out import about_duplicates, audio_keys, text_keys, with_held_out
from asr_jax.data.manifests.inputs import described
from asr_jax.data.manifests.layouts import ROLES, find_sets, left_out
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.progress import in_threads
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import Utterances, read_once
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.text.inspection import Finding, Texts, inspect_texts

DECODED = 300
"""Number of utterances whose audio is decoded; of the others, the headers are read."""
TELEPHONE_HZ = 8000
FEW = 20
"""Number of utterances of a set below which its error rate says little."""
STRANGE_RATE = 3.0
"""Factor from the median of characters per second at which a text may belong to other audio."""
FOLDERS = 5
"""Least number of folders that are taken for speakers."""
QUIET_DB = -50.0
"""Level relative to full scale below which a recording is quiet."""


@dataclass(frozen=True)
class Survey:
    """A corpus as it was found, with three sets that have no speaker and no recording in common if that is possible."""

    formats: tuple[str, ...]
    """A line for each path that was read, with its format."""
    sets: dict[str, Utterances]
    """Training, validation and test set without what cannot be used; test may be empty."""
    split: str
    """Sentence on the split. Empty: the sets are as given."""
    texts: Texts
    rates: dict[int, float]
    """Share of the utterances by sample rate in Hz, most frequent first."""
    chars_per_s: tuple[float, float]
    """Smallest and largest usual number of characters per second. Other texts may belong to other audio."""
    findings: tuple[Finding, ...]

    @property
    def train(self) -> Utterances:
        return self.sets["train"]

    @property
    def is_telephone(self) -> bool:
        """Whether nearly all audio has nothing above 4 kHz."""
        return sum(share for rate, share in self.rates.items() if rate <= TELEPHONE_HZ) > 0.9


def survey(path: str, *, seed: int, unpack_to: Path) -> Survey:
    """Surveys a folder or a manifest: reads it, opens all audio, inspects all texts, and splits sets that are missing.

    Args:
        seed: Number from 0 that determines which speakers or utterances are in the sets that are split off.
        unpack_to: Folder for audio within tables, which is written to files.

    Raises:
        UserError: If there are fewer than three utterances, or as `find_sets`.
    """
    files, formats = find_sets(path), list[str]()
    parts, rejected, role_of = list[Utterance](), list[Rejected](), list[str]()
    for role in ROLES:
        if files[role]:
            options = ReadOptions(may_reject=True)
            read = read_once(files[role], role=role, unpack_to=str(unpack_to / f"{role}.bytes"), options=options)
            rejected += read.rejected
            parts += read
            role_of += [role] * len(read)
            formats += [f"{role}: {line}" for line in described(files[role], role)]
    num_read, headers = len(parts) + len(rejected), in_threads(_header, parts, "headers")
    rejected += [each for each in headers if isinstance(each, Rejected)]
    usable = [place for place, each in enumerate(headers) if isinstance(each, AudioInfo)]
    findings = [
        *(left_out(path, files) if os.path.isdir(path) else ()),
        *_about_rejected(rejected, num_read),
        *_about_durations([(parts[k], headers[k]) for k in usable]),
    ]
    texts = inspect_texts([parts[k].text for k in usable], [parts[k].id for k in usable])
    findings += texts.findings
    without = {usable[place] for place in texts.without_letters}
    kept = [k for k in usable if k not in without or parts[k].labels]
    damaged, of_audio = _about_audio([parts[k] for k in kept])
    findings += of_audio
    kept = [k for place, k in enumerate(kept) if place not in damaged]
    rates = Counter(info.rate_hz for k in kept if isinstance(info := headers[k], AudioInfo))
    rate_of = {rate: number / max(len(kept), 1) for rate, number in rates.most_common()}
    findings += _about_rates(rate_of)
    utterances = [_with_duration(parts[k], headers[k]) for k in kept]
    if len(utterances) < 3:
        raise UserError(
            f"{path} has {counted(len(utterances), 'utterance')} that can be used: expected at least 3, for three sets"
            + "".join(f"\n  {finding.line}" for finding in findings)
        )
    limits, of_limits = _about_chars_per_s(utterances)
    speakers, of_speakers = _speakers(utterances, path)
    audio, words = audio_keys(utterances), text_keys(utterances, speakers)
    roles = np.array([role_of[k] for k in kept], object)
    roles, split, of_split = with_held_out(roles, utterances, speakers, (audio, words), seed=seed)
    duplicates, is_copy = about_duplicates(roles, utterances, speakers, audio, words)
    columns = Utterances.of(utterances)
    if not any(each.speaker for each in utterances) and any(speakers):
        columns = replace(columns, columns=replace(columns.columns, speakers=NameColumn.of(speakers)))
    sets: dict[str, Utterances] = {role: columns.select(np.flatnonzero((roles == role) & ~is_copy)) for role in ROLES}
    few = tuple(f"{role} {len(each):,}" for role, each in sets.items() if 0 < len(each) < FEW)
    findings += [*of_limits, *of_speakers, *of_split, *duplicates]
    if few:
        findings.append(Finding("few", 0, "few utterances in a set; error rates of so few say little", few))
    return Survey(tuple(formats), sets, split, texts, rate_of, limits, tuple(findings))


def _header(utterance: Utterance) -> AudioInfo | Rejected:
    place = Location.parse(utterance.location)
    if place.shape is not None:
        return AudioInfo(utterance.duration_s, 0, 1)
    try:
        return place.info()
    except AudioError as error:
        return Rejected(utterance.id, utterance.location, error.reason, "audio")


def _with_duration(utterance: Utterance, info: AudioInfo | Rejected) -> Utterance:
    """Returns the utterance with the duration of its audio, if the manifest has none or a wrong one."""
    assert isinstance(info, AudioInfo)
    is_right = abs(info.duration_s - utterance.duration_s) <= tolerated_s(utterance.duration_s)
    return utterance if is_right else replace(utterance, duration_s=info.duration_s)


def _about_rejected(rejected: Sequence[Rejected], num_read: int) -> Iterator[Finding]:
    files, fixes = defaultdict[str, list[str]](list), dict[str, str]()
    for each in rejected:
        file, reason = re.findall(r"^(?:(/.*?): )?(?:.*and the audio: )?(.*)", each.reason, re.DOTALL)[0]
        reason, _, fix = reason.partition("; ")
        reason = re.split("[:(]", reason)[0].strip()
        files[reason].append(file or each.location)
        fixes.setdefault(reason, f"; {fix}" if fix else "")
    for reason, names in files.items():
        what = f"utterances that cannot be used ({reason}), of {num_read:,} in all"
        yield Finding("rejected", len(names), f"{what}; they are left out{fixes[reason]}", tuple(names[:3]))


def _about_durations(pairs: Iterable[tuple[Utterance, AudioInfo | Rejected]]) -> Iterator[Finding]:
    differing = [
        f"{each.id} {each.duration_s:.2f} s, audio {info.duration_s:.2f} s"
        for each, info in pairs
        if isinstance(info, AudioInfo) and abs(info.duration_s - each.duration_s) > tolerated_s(each.duration_s)
    ]
    if differing:
        message = "utterances with another duration in the manifest than their audio; that of the audio is used"
        yield Finding("durations", len(differing), message, tuple(differing[:3]))


def _about_rates(rates: dict[int, float]) -> Iterator[Finding]:
    if len(rates) > 1:
        which = tuple(f"{rate:,} Hz {share:.1%}" for rate, share in rates.items())
        message = "sample rates; all audio is resampled to one rate"
        if min(rates) <= TELEPHONE_HZ < max(rates):
            message = (
                "sample rates; the audio of 8,000 Hz has nothing above 4 kHz, so the model meets two kinds of sound, "
                "and its error rates should be measured for each"
            )
        yield Finding("rates", len(rates), message, which, is_wrong=False)


def _about_audio(utterances: Sequence[Utterance]) -> tuple[set[int], list[Finding]]:
    """Decodes some utterances, evenly spread; returns the places of damaged ones, and findings."""
    places = np.unique(np.linspace(0, len(utterances) - 1, DECODED).astype(int)).tolist() if utterances else []
    chosen, wrong = [utterances[place] for place in places], set[int]()
    damaged, clipped, quiet = list[str](), list[str](), list[str]()
    for place, utterance, found in zip(places, chosen, in_threads(_decoded, chosen, "audio"), strict=True):
        name = f"{utterance.id} in {utterance.location}"
        if isinstance(found, str):
            damaged.append(f"{name}: {found.partition(';')[0]}")
            wrong.add(place)
            continue
        level_db, num_clipped = found
        clipped += [name] * (num_clipped > 20)
        quiet += [name] * (level_db < QUIET_DB)
    of = f", of {len(chosen):,} that were decoded of {len(utterances):,}"
    kinds = (
        ("damaged", damaged, f"damaged recordings{of}; they are left out, and training rejects others"),
        ("clipped", clipped, f"recordings with samples at full scale (clipped){of}"),
        ("quiet", quiet, f"recordings that are silent or below {QUIET_DB:g} dB{of}; is it the right channel?"),
    )
    return wrong, [Finding(kind, len(names), what, tuple(names[:3])) for kind, names, what in kinds if names]


def _decoded(utterance: Utterance) -> str | tuple[float, int]:
    """Level in dB of full scale and number of clipped samples, or the reason why the audio cannot be read."""
    place = Location.parse(utterance.location)
    if place.shape is not None:
        return 0.0, 0
    try:
        samples = place.audio(rate_hz=16000, remarks=Remarks()).astype(np.float64)
    except AudioError as error:
        return error.reason
    power = float(np.mean(samples**2)) / 2**30
    return 10 * float(np.log10(max(power, 1e-12))), int((np.abs(samples) >= 32767).sum())


def _about_chars_per_s(utterances: Sequence[Utterance]) -> tuple[tuple[float, float], list[Finding]]:
    """Limits of usual rates, and texts outside of them."""
    duration_s = np.array([each.duration_s for each in utterances])
    num_chars = np.array([len(each.text) for each in utterances])
    rate = num_chars / np.maximum(duration_s, 0.1)
    log = np.log(np.maximum(rate, 1e-3))
    spread = 1.4826 * float(np.median(np.abs(log - np.median(log))))
    factor = float(np.exp(max(5 * spread, np.log(STRANGE_RATE))))
    low, high = float(np.exp(np.median(log))) / factor, float(np.exp(np.median(log))) * factor
    found = []
    for kind, places, message in (
        ("slow", np.flatnonzero(rate < low), f"texts of fewer than {low:.2g} characters per second"),
        ("fast", np.flatnonzero(rate > high), f"texts of more than {high:.3g} characters per second"),
    ):
        examples = tuple(
            f"{utterances[k].id} {duration_s[k]:.1f} s {utterances[k].text[:40]!r}" for k in places[:3].tolist()
        )
        advice = "; they may belong to other audio or be incomplete"
        found += [Finding(kind, len(places), message + advice, examples)] if len(places) else []
    return (low, high), found


def _speakers(utterances: Sequence[Utterance], path: str) -> tuple[list[str], list[Finding]]:
    """Speaker of each utterance; if none is known, its folder, if there are several. Empty: not known."""
    names = [each.speaker for each in utterances]
    if any(names):
        missing = [each.id for each in utterances if not each.speaker]
        finding = Finding("no_speaker", len(missing), "utterances without a speaker", tuple(missing[:3]))
        return names, [finding] if missing else []
    folders = [os.path.dirname(Location.parse(each.location).path) for each in utterances]
    number = len(set(folders))
    if not FOLDERS <= number < len(utterances) / 2:
        message = "no speakers are known; the same voices may be in all sets, and error rates of new voices be higher"
        return names, [Finding("no_speakers", 0, message, is_wrong=False)]
    message = "folders that are taken for speakers, since no speakers are known"
    return [os.path.relpath(folder, path) for folder in folders], [Finding("folders", number, message, is_wrong=False)]


def hours_by_speaker(utterances: Utterances) -> Float64[np.ndarray, " K"]:
    """Hours of each known speaker, most first."""
    columns, rows = utterances.columns, utterances.rows
    hours = np.bincount(columns.speakers.of_row[rows], np.nan_to_num(columns.duration_s[rows]) / 3600)
    known = [number for number, name in enumerate(columns.speakers.names[: len(hours)]) if name and hours[number]]
    return np.sort(hours[known])[::-1]


def durations(sets: Iterable[Utterances]) -> Float64[np.ndarray, " R"]:
    """Durations in seconds of the utterances of some sets."""
    return np.concatenate([each.columns.duration_s[each.rows] for each in sets])
