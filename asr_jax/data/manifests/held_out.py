"""Held-out sets without speakers and recordings of the training set, and recordings that occur several times."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Bool, Int

from asr_jax.core.paths import digest_of, state_of
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.progress import in_threads
from asr_jax.data.manifests.splits import drawn
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.inspection import Finding

SHARE, MOST_HELD_OUT_S = 0.1, 3600.0
"""Share of the audio of a set that is split off, and its most seconds."""
DRAWS = 20
"""Number of random splits that are tried for a set. The split whose size is nearest to the set's share is used."""
LONG_TEXT = 20
"""Least characters of texts whose equality, with equal durations, means the same recording."""
FEW_SPEAKERS = 5
"""Number of speakers of a set below which their error rates say little about others."""


def audio_keys(utterances: Sequence[Utterance]) -> list[Hashable]:
    """Equal keys for equal audio: bytes of files of equal size are compared, and parts of files."""
    places = [Location.parse(each.location) for each in utterances]
    parts = [(place.first_byte, place.num_bytes, place.start_s, place.length_s, place.channel) for place in places]
    sizes = [place.num_bytes or state_of(place.path)[0] for place in places]
    alike = Counter(zip(sizes, (part[2:] for part in parts), strict=True))

    def key(number: int) -> Hashable:
        place, part = places[number], parts[number]
        if alike[sizes[number], part[2:]] == 1:
            return number
        return digest_of(place.path, place.first_byte, place.num_bytes) or place.path, part[2:]

    return in_threads(key, range(len(places)), "files of equal size")


def text_keys(utterances: Sequence[Utterance], speakers: Sequence[str]) -> list[Hashable]:
    """Equal keys for long texts of equal durations by one speaker."""
    return [
        (each.text, speakers[number], round(each.duration_s * 1000)) if len(each.text) >= LONG_TEXT else number
        for number, each in enumerate(utterances)
    ]


def _joined(keys: Sequence[Sequence[Hashable]]) -> Int[np.ndarray, " R"]:
    """Group of each utterance: equal for utterances that share a key, directly or by way of others."""
    parent = list(range(len(keys[0])))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = place = parent[parent[place]]
        return place

    for column in keys:
        first: dict[Hashable, int] = {}
        for place, key in enumerate(column):
            parent[root(place)] = root(first.setdefault(key, place))
    return np.array([root(place) for place in range(len(parent))])


def with_held_out(
    roles: np.ndarray,
    utterances: Sequence[Utterance],
    speakers: Sequence[str],
    copies: tuple[Sequence[Hashable], Sequence[Hashable]],
    *,
    seed: int,
) -> tuple[np.ndarray, str, list[Finding]]:
    """Splits a validation set, and a test set if both are missing, from the training set.

    Args:
        roles: Name of the set of each utterance in the manifests.
        speakers: Name of the speaker of each utterance; empty if it is not known.
        copies: Results of `audio_keys` and `text_keys`.
        seed: Number from 0 that determines the split.

    Returns:
        Sets of the utterances, a sentence on the split (empty if nothing was split off), and findings.
    """
    wanted = [role for role in ("test", "validation") if not (roles == role).any()]
    if wanted == ["test"]:
        message = "there is no test set; validation also chooses the checkpoint, so its error rates are a little low"
        return roles, "", [Finding("no_test", 0, message, is_wrong=False)]
    if not wanted:
        return roles, "", []
    seconds = np.array([each.duration_s for each in utterances])
    total = float(seconds[roles == "train"].sum())
    share = min(SHARE, MOST_HELD_OUT_S / max(total, 1.0))
    rng, said, findings = np.random.default_rng(seed), "by speaker", list[Finding]()
    names: list[Hashable] = [name or place for place, name in enumerate(speakers)]
    tries = [(said, _joined([names, *copies]))] if len(set(filter(None, speakers))) > 2 else []
    tries.append(("by utterance", _joined(copies)))
    tries.append(("by utterance, with copies", np.arange(len(utterances))))
    for said, groups in tries:
        found, largest = roles.copy(), 2 * share if said != "by utterance, with copies" else 1.0
        for role in wanted:
            rest = np.flatnonzero(found == "train")
            of_rest = share * total / seconds[rest].sum()
            masks = [drawn(groups[rest], seconds[rest], of_rest, rng) for _ in range(DRAWS)]
            found[rest[min(masks, key=lambda mask: abs(seconds[rest[mask]].sum() - share * total))]] = role
        held: list[float] = [float(seconds[found == role].sum() / total) for role in wanted]
        if all(0 < each <= max(largest, 2 / len(utterances)) for each in held) and (found == "train").any():
            break
    if said != "by speaker" and any(speakers):
        message = "speakers are too few or too unequal to keep them apart; the same voices are in all sets"
        findings.append(Finding("speakers_shared", len(set(filter(None, speakers))), message))
    for role in wanted:
        of_set = {name for name, of in zip(speakers, found, strict=True) if name and of == role}
        if of_set and len(of_set) < FEW_SPEAKERS:
            message = f"speakers of the {role} set; error rates of so few voices are uncertain"
            findings.append(Finding("few_speakers", len(of_set), message, tuple(sorted(of_set)), is_wrong=False))
    what = " and ".join(reversed(wanted))
    return found, f"{what} split {said}, each about {share:.1%} of the audio, seed {seed}", findings


def about_duplicates(
    roles: np.ndarray,
    utterances: Sequence[Utterance],
    speakers: Sequence[str],
    audio: Sequence[Hashable],
    words: Sequence[Hashable],
) -> tuple[list[Finding], Bool[np.ndarray, " R"]]:
    """Findings on equal recordings, speakers and texts; and the training utterances that are also in another set."""
    findings, is_copy = list[Finding](), np.zeros(len(utterances), bool)
    kinds = (("audio", audio, "the same audio"), ("text", words, "the same long text and duration"))
    for kind, keys, what in kinds:
        groups = defaultdict[Hashable, list[int]](list)
        for place, key in enumerate(keys):
            groups[key].append(place)
        several = [places for places in groups.values() if len(places) > 1]
        across = [places for places in several if len({roles[place] for place in places}) > 1]
        within = [places for places in several if len({roles[place] for place in places}) == 1]
        is_copy[[place for places in across for place in places if roles[place] == "train"]] = True
        for found, where, advice in (
            (across, "in several sets", "; training leaves out its copies"),
            (within, "within a set", ""),
        ):
            examples = tuple(" = ".join(f"{utterances[k].id} ({roles[k]})" for k in places[:3]) for places in found[:3])
            message = f"recordings with {what} {where}{advice}"
            findings += [Finding(f"same_{kind}", len(found), message, examples)] if found else []
    for other in ("validation", "test"):
        held, train = (np.flatnonzero(roles == role).tolist() for role in (other, "train"))
        shared = sorted({speakers[k] for k in held} & {speakers[k] for k in train} - {""})
        known = {utterances[k].text for k in train}
        same = [utterances[k] for k in held if len(utterances[k].text) >= LONG_TEXT and utterances[k].text in known]
        if shared:
            message = f"speakers of the {other} set that are also in training; error rates of new voices are higher"
            findings.append(Finding("speakers_shared", len(shared), message, tuple(shared[:3])))
        if same:
            message = f"{other} texts that are also in training; error rates of new texts are higher"
            examples = tuple(f"{each.id} {each.text[:40]!r}" for each in same[:3])
            findings.append(Finding("texts_shared", len(same), message, examples, is_wrong=False))
    return findings, is_copy & (roles == "train")
