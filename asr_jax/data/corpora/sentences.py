"""Sentences and voices of the embedded corpus: commands for a home, a telephone, a clock and a route, in 67 words."""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import soxr
from jaxtyping import Int16

from asr_jax.core.settings import NonNegativeInt, above, settings
from asr_jax.data.corpora import espeak

PHRASES = {
    "digit": "zero, one, two, three, four, five, six, seven, eight, nine",
    "tens": "twenty, thirty, forty, fifty",
    "device": "lights, heating, radio",
    "opening": "door, window",
    "room": "kitchen, bedroom, garden, office",
    "name": "anna, david, maria, peter",
    "day": "monday, tuesday, wednesday, thursday, friday, saturday, sunday",
    "month": "january, june, october",
    "part": "morning, evening",
    "when": "on {day}, on {day} {part}, at {digit} {tens}, at {digit} o'clock",
    "side": "left, right",
    "compass": "north, south",
    "place": "station, office",
    "state": "on, off",
    "move": "open, close",
    "control": "play, stop",
    "reach": "call, text",
    "thing": "left, open, on the radio",
}

SENTENCES = (
    "{digit} {digit} {digit}",
    "{digit} {digit} {digit} {digit}",
    "{digit} {digit} {digit} {digit} {digit}",
    "{reach} {digit} {digit} {digit} {digit}",
    "{reach} {name} {when}",
    "please {reach} {name} at home {when}",
    "turn {state} the {room} {device} {when}",
    "turn the {device} {state} {when}",
    "{move} the {room} {opening} {when}",
    "please {move} the {opening} {when}",
    "{control} music in the {room} {when}",
    "please {control} the music {when}",
    "set the {room} timer at {tens} {digit} minutes",
    "set the alarm {when}",
    "what's {thing} {when}",
    "{day} {month} {tens} {digit}",
    "{month} {digit} at {digit} {tens}",
    "go home {when}",
    "go {compass} {tens} {digit} minutes then {side}",
    "go {compass} then {side} at {place} {digit}",
)

UNREPEATABLE = ("Alicia", "Demonic", "f2", "f3", "f5", "sandro", "victor", "whisper", "whisperf")
"""Variants that are not used, because their samples differ between runs."""

VOICES = {
    "train": (
        "Alex, croak, fast, grandpa, john, m1, m2, m3, m4, m5, m6, max, Mike, pedro, RicishayMax, robosoft8",
        "adam, announcer, benjamin, edward, edward2, klatt3, klatt4, klatt5, klatt6, mike2, Reed, robosoft, "
        "robosoft2, robosoft3",
        "m8, quincy, RicishayMax2, RicishayMax3, robosoft4, robosoft5, robosoft6, robosoft7",
        "Diogo, Henrique, Hugo, michel, miguel",
        "iven, iven2, iven3, iven4",
        "aunty, f4, linda",
        "m7, Mario, Nguyen",
        "gustave, Michael",
        "klatt, klatt2",
        "rob, robert",
        *("Andrea", "Andy", "Annie", "AnxiousAndy", "boris", "caleb", "david", "Denis", "f1", "grandma", "Jacky"),
        *("kaukovalta", "Marco", "Mr serious", "pablo", "paul", "shelby", "Storm", "Tweaky", "UniRobot"),
    ),
    "validation": ("antonio", "Gene, Gene2", "marcelo", "travis"),
    "test": ("anika, anikaRobot", "belinda", "ed", "ian", "Lee", "norbert", "steph, steph2, steph3", "zac"),
}
"""Groups of similar voices (variants), by split. A group is never divided.

Many variants are near twins. The distance between two of them is the root mean square difference of their mean log-mel
spectra (80 bins, eight sentences, level removed), at the two of five pitches where they are most alike, because the
corpus varies the pitch. Variants nearer than 2.6 dB are joined, also through others. No variant is joined or kept apart
by less than 0.1 dB, and another accent moves the same voice by 0.5 to 2.6 dB. Of the 42 groups, those of five and more
variants are for training. Of the others in alphabetical order, the third of every five is for test, the fifth of every
ten is for validation, and the rest are for training. No group is chosen by ear or by result. A slow test computes this
table again.
"""

SHARES = {"train": 0.84, "validation": 0.04, "test": 0.12}
"""Share of the utterances, by split."""

RATE_HZ = 16000
SHORTEST_S, LONGEST_S = 0.6, 3.5
MAX_LETTERS_PER_S = 20
"""Maximum rate in letters per second. People read at about 15. An encoder with 25 frames per second still has a frame
for every letter."""

_MEAN_S = 2.1


@settings
class Corpus:
    """Settings of the embedded corpus."""

    minutes: Annotated[float, above(0, most=6000)] = 64.0
    """Approximate speech in all three splits in minutes. It determines the number of utterances."""
    seed: NonNegativeInt = 0
    """Seed of the sentences, and of the combinations of the same voices and accents."""
    sentences: tuple[str, ...] = SENTENCES
    """Templates of sentences: words, and names of `PHRASES` in braces."""


@dataclass(frozen=True)
class Sentence:
    """Sentence of the corpus, and the manner in which it is spoken."""

    id: str
    split: str
    text: str
    manner: espeak.Manner
    peak_db: float
    """Peak level in dB relative to full scale."""


def plan(settings: Corpus) -> list[Sentence]:
    """Every utterance of the corpus in order, before synthesis."""
    utterances = []
    for stream, (split, share) in enumerate(SHARES.items()):
        rng = np.random.default_rng((settings.seed, stream))
        num = max(2, round(settings.minutes * 60 / _MEAN_S * share))
        utterances += [_drawn(rng, settings.sentences, split=split, name=f"{split}-{row:05d}") for row in range(num)]
    return utterances


def split_of(text: str) -> str:
    """The only split that may have this sentence, for any seed. A hash assigns six of eight sentences to train."""
    return {0: "test", 1: "validation"}.get(zlib.crc32(text.encode()) % 8, "train")


def waveform(engine: espeak.Espeak, utterance: Sentence) -> Int16[np.ndarray, " S"]:
    """Utterance at 16 kHz and at its level. It is spoken again at another rate if it is too short or too long."""
    manner = utterance.manner
    shortest_s = max(SHORTEST_S, len(utterance.text) / MAX_LETTERS_PER_S)
    for _ in range(10):
        spoken = engine.speak(utterance.text, manner)
        duration_s = len(spoken) / espeak.RATE_HZ
        if shortest_s <= duration_s <= LONGEST_S:
            break
        pace = manner.words_per_minute * (0.85 if duration_s < shortest_s else 1.15)
        manner = replace(manner, words_per_minute=round(pace))
    samples = soxr.resample(spoken.astype(np.float32), espeak.RATE_HZ, RATE_HZ)
    level = 32767 * 10 ** (utterance.peak_db / 20) / np.abs(samples).max()
    return np.rint(samples * level).astype(np.int16)


def voices_of(split: str) -> list[str]:
    """Variants of a split."""
    return [name for group in VOICES[split] for name in group.split(", ")]


def _drawn(rng: np.random.Generator, sentences: Sequence[str], *, split: str, name: str) -> Sentence:
    text = _sentence(rng, sentences)
    while split_of(text) != split:
        text = _sentence(rng, sentences)
    manner = espeak.Manner(
        accent=_one_of(espeak.ACCENTS, rng),
        variant=_one_of(voices_of(split), rng),
        words_per_minute=int(rng.integers(110, 181)),
        pitch=int(rng.integers(20, 81)),
        pitch_range=int(rng.integers(20, 81)),
    )
    return Sentence(name, split, text, manner, peak_db=float(rng.uniform(-20, -3)))


def _sentence(rng: np.random.Generator, sentences: Sequence[str]) -> str:
    text = _one_of(sentences, rng)
    while "{" in text:
        text = re.sub(r"{(.*?)}", lambda slot: _one_of(PHRASES[slot[1]].split(", "), rng), text)
    return text


def _one_of(things: Sequence[str], rng: np.random.Generator) -> str:
    return things[int(rng.integers(len(things)))]
