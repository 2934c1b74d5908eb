"""eSpeak NG in this process: its voices, and synthesis from text to samples.

The library and its voices come with the package `espeakng-loader`; nothing is installed on the system and no program is
started. eSpeak has one state per process, which carries over from one utterance to the next (a flutter continues at its
phase), and a second initialisation does not reset it. Therefore, the same samples are produced only by the same
sequence of utterances in a new process.

Source: espeak-ng 1.52 `src/include/espeak-ng/speak_lib.h`.
"""

import atexit
import ctypes
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int16

from asr_jax.core.errors import UserError, nearest
from asr_jax.core.installation import installing

RATE_HZ = 22050

ACCENTS = (
    "en",
    "en-us",
    "en-029",
    "en-gb-scotland",
    "en-gb-x-gbclan",
    "en-gb-x-gbcwmd",
    "en-gb-x-rp",
    "en-us-nyc",
)
"""Accents of English: British, American, Caribbean, Scottish, Lancastrian, West Midlands, received pronunciation, New
York."""

_SYNCHRONOUS, _DO_NOT_EXIT, _UTF8 = 2, 0x8000, 1
_RATE, _VOLUME, _PITCH, _RANGE = 1, 2, 3, 4
_LONGEST_PATH = 120
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def loader() -> Any:
    """Returns the module `espeakng_loader`.

    Raises:
        UserError: If it is not installed.
    """
    try:
        import espeakng_loader
    except ImportError as error:
        raise UserError(
            "the embedded corpus is synthesised by eSpeak NG, but the package espeakng-loader is not installed: "
            f"{installing('quickstart')} (or pip install espeakng-loader)"
        ) from error
    return espeakng_loader


def _short_path(data: Path) -> Path:
    """Returns `data` or a short link to it, because eSpeak truncates paths to 160 bytes and then finds no data."""
    if len(os.fsencode(data)) <= _LONGEST_PATH:
        return data
    folder = Path(tempfile.mkdtemp(prefix="espeak"))
    atexit.register(shutil.rmtree, folder, True)
    link = folder / data.name
    link.symlink_to(data, target_is_directory=True)
    return link


@dataclass(frozen=True)
class Manner:
    """Voice and manner in which a text is spoken."""

    accent: str
    """One of `ACCENTS`."""
    variant: str
    """Name of a voice variant."""
    words_per_minute: int
    """Speaking rate in words per minute, 80 to 450."""
    pitch: int
    """Pitch, 0 to 100; 50 is the variant's own."""
    pitch_range: int
    """Range of the pitch, 0 (monotone) to 100; 50 is the variant's own."""


class Espeak:
    """Engine of eSpeak NG. Create only one per process."""

    def __init__(self) -> None:
        found = loader()
        data = Path(found.get_data_path())
        self.variants = {path.name for path in (data / "voices" / "!v").iterdir()}
        try:
            self._library = ctypes.CDLL(str(found.get_library_path()))
        except OSError as error:
            raise UserError(f"the library of espeakng-loader cannot be loaded on this machine: {error}") from error
        rate_hz = self._library.espeak_Initialize(_SYNCHRONOUS, 0, os.fsencode(_short_path(data)), _DO_NOT_EXIT)
        if rate_hz != RATE_HZ:
            raise UserError(f"eSpeak NG returned {rate_hz} Hz, expected {RATE_HZ}: its data in {data} cannot be loaded")
        self._library.espeak_Info.restype = ctypes.c_char_p
        self.version: str = self._library.espeak_Info(None).decode()
        self._blocks: list[bytes] = []
        self._callback = _CALLBACK(self._receive)  # kept alive, because the library stores only its address
        self._library.espeak_SetSynthCallback(self._callback)

    def _receive(self, samples: int | None, count: int, _events: int | None) -> int:
        if samples and count > 0:
            self._blocks.append(ctypes.string_at(samples, 2 * count))
        return 0

    def speak(self, text: str, manner: Manner) -> Int16[np.ndarray, " S"]:
        """Speaks `text` as samples at 22,050 Hz, with the short silences that eSpeak adds at both ends.

        Raises:
            UserError: If eSpeak does not have the accent or the variant. eSpeak itself accepts unknown variants without
                an error.
        """
        accent, variant = manner.accent, manner.variant
        if variant not in self.variants:
            raise UserError(f"eSpeak NG {self.version} has no variant {variant!r}{nearest(variant, self.variants)}")
        if self._library.espeak_SetVoiceByName(f"{accent}+{variant}".encode()) != 0:
            raise UserError(f"eSpeak NG {self.version} has no accent {accent!r}{nearest(accent, ACCENTS)}")
        # Volume 60 of 100: a few variants clip at full volume; the caller sets the level.
        settings = {_RATE: manner.words_per_minute, _VOLUME: 60, _PITCH: manner.pitch, _RANGE: manner.pitch_range}
        for parameter, value in settings.items():
            self._library.espeak_SetParameter(parameter, value, 0)
        self._blocks.clear()
        data = text.encode() + b"\0"
        if self._library.espeak_Synth(data, ctypes.c_size_t(len(data)), 0, 0, 0, _UTF8, None, None) != 0:
            raise UserError(f"eSpeak NG {self.version} could not speak {text!r}")
        return np.frombuffer(b"".join(self._blocks), np.int16)
