"""Speech synthesis by espeak-ng, with the time of every phone.

The library and its voices are in the PyPI package ``espeakng-loader``. Its C interface, declared in
``espeak-ng/speak_lib.h``, is called by ctypes.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import espeakng_loader
import numpy as np

from examples.acoustic.lexicon import SILENCE

_SYNCHRONOUS = 2  # AUDIO_OUTPUT_SYNCHRONOUS: the callback runs in the caller's thread
_PHONEME_EVENTS = 1
_DO_NOT_EXIT = 0x8000  # errors are returned, and do not end the process
_UTF8 = 1
_BUFFER_MS = 60_000
_EVENT_END_OF_LIST = 0
_EVENT_PHONEME = 7
_PARAMETERS = {"words_per_minute": 1, "pitch": 3}
_BY_CHARACTER = 1


class _EventId(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8)]


class _Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position_ms", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _EventId),
    ]


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class PhoneInterval(NamedTuple):
    """A phone from ``start_s`` to ``end_s``, in the word at position ``word``, or in none."""

    phone: str
    start_s: float
    end_s: float
    word: int | None


class _PhonemeEvent(NamedTuple):
    name: str
    sample: int
    text_position: int


@dataclass(frozen=True)
class Speech:
    """Synthesised speech.

    Attributes:
        samples: (n,) int16, samples.
        rate_hz: sample rate.
        phones: intervals of all phones, including silence.
    """

    samples: np.ndarray
    rate_hz: int
    phones: tuple[PhoneInterval, ...]


class Espeak:
    """Speech synthesiser. Objects with the same seed and the same calls produce the same samples.

    Each object loads its own copy of the library, because espeak has counters in static memory that
    cannot be reset.

    Args:
        seed: seed of the noise in voices.

    Raises:
        RuntimeError: the library cannot be initialised.
    """

    def __init__(self, seed: int = 0) -> None:
        # The loaded copy remains valid without its file. Windows does not delete the file.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            self._library = ctypes.CDLL(shutil.copy(espeakng_loader.get_library_path(), folder))
        data = str(espeakng_loader.get_data_path()).encode()
        options = _PHONEME_EVENTS | _DO_NOT_EXIT
        self.rate_hz = self._library.espeak_Initialize(_SYNCHRONOUS, _BUFFER_MS, data, options)
        if self.rate_hz <= 0:
            raise RuntimeError(f"espeak-ng could not start, it returned {self.rate_hz}")
        self._library.espeak_Synth.argtypes = [
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_uint,
            ctypes.c_int,
            ctypes.c_uint,
            ctypes.c_uint,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(seed))
        self._chunks: list[np.ndarray] = []
        self._events: list[_PhonemeEvent] = []
        self._callback = self._make_callback()  # an attribute, because C has only a pointer to it
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(
        self, words: Sequence[str], *, voice: str, words_per_minute: int, pitch: int
    ) -> Speech:
        """Synthesise a sentence.

        Args:
            words: words of the sentence, without spaces.
            voice: name of a voice of espeak, with a variant after ``+``: ``"en-us+f3"``.
            words_per_minute: speed, from 80 to 450.
            pitch: pitch, from 0 to 100.

        Raises:
            ValueError: there is no such voice, or espeak has a joint pronunciation for several
                words of the sentence.
        """
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {voice!r}; try 'en-us' or 'en-us+f3'")
        for name, value in (("words_per_minute", words_per_minute), ("pitch", pitch)):
            self._library.espeak_SetParameter(_PARAMETERS[name], value, 0)
        self._chunks.clear()
        self._events.clear()
        text = " ".join(words).encode()
        self._library.espeak_Synth(text, len(text) + 1, 0, _BY_CHARACTER, 0, _UTF8, None, None)
        samples = np.concatenate([np.zeros(0, np.int16), *self._chunks])
        phones = _intervals(self._events, samples, words, self.rate_hz)
        return Speech(samples, self.rate_hz, phones)

    def _make_callback(self) -> Callable[..., int]:
        def receive(wave: Any, count: int, events: Any) -> int:
            if wave and count:
                self._chunks.append(np.ctypeslib.as_array(wave, (count,)).copy())
            position = 0
            while events[position].type != _EVENT_END_OF_LIST:
                event = events[position]
                if event.type == _EVENT_PHONEME:
                    name = bytes(event.id.string).decode()
                    self._events.append(_PhonemeEvent(name, event.sample, event.text_position))
                position += 1
            return 0

        return _Callback(receive)


def phone_name(mnemonic: str) -> str:
    """Return the phone of a mnemonic of espeak, without stress and without allophones.

    Pauses are silence. Marks without sound are the empty string.
    """
    if mnemonic.startswith("_"):
        return SILENCE
    bare = mnemonic.lstrip("',%=;")
    # 't#', the flap of "water" in American English, is a phone.
    return bare if bare == "t#" else re.sub(r"(?<=.)[-#\[2-9]+$", "", bare)


def _intervals(
    events: Sequence[_PhonemeEvent], samples: np.ndarray, words: Sequence[str], rate_hz: int
) -> tuple[PhoneInterval, ...]:
    """Convert events to intervals that cover all samples."""
    positions = np.cumsum([1, *(len(word) + 1 for word in words)])[:-1].tolist()
    word_at = {position: word for word, position in enumerate(positions)}
    sounding = np.flatnonzero(samples)
    marks: list[tuple[str, int, int | None]] = []
    if events and events[0].sample > 0:
        marks.append((SILENCE, 0, None))
    for event in events:
        phone = phone_name(event.name)
        if phone == SILENCE:
            marks.append((SILENCE, event.sample, None))
        elif phone:
            start = _with_closure(event.sample, marks, sounding)
            marks.append((phone, start, word_at.get(event.text_position)))
    with_phones = {word for phone, _, word in marks if phone != SILENCE}
    if with_phones != set(range(len(words))):
        without_phones = [word for i, word in enumerate(words) if i not in with_phones]
        raise ValueError(
            f"espeak-ng does not speak {' '.join(words)!r} word by word (words without phones: "
            f"{without_phones}); change the sentence"
        )
    ends = [start for _, start, _ in marks[1:]] + [len(samples)]
    return tuple(
        PhoneInterval(phone, start / rate_hz, end / rate_hz, word)
        for (phone, start, word), end in zip(marks, ends, strict=True)
    )


def _with_closure(
    start: int, marks: Sequence[tuple[str, int, int | None]], sounding: np.ndarray
) -> int:
    """Return the start of a phone, including the closure before a stop.

    The event of a stop is at its burst. The samples of the closure before it are zero. They belong
    to the stop, except after a pause.
    """
    if not marks or marks[-1][0] == SILENCE:
        return start
    before = int(np.searchsorted(sounding, start)) - 1
    return max(marks[-1][1], int(sounding[before]) + 1 if before >= 0 else 0)
