"""Senones: the states of phones, which are the classes of acoustic models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SILENCE = "sil"


@dataclass(frozen=True)
class SenoneMap:
    """Numbering of the states of phones: ``id = phone_index * states_per_phone + state``.

    Attributes:
        phones: names of the phones. The first one is silence (``"sil"``).
        states_per_phone: number of states of each phone.

    Raises:
        ValueError: silence is not the first phone, a phone is listed twice, or
            ``states_per_phone`` is below 1.
    """

    phones: tuple[str, ...]
    states_per_phone: int = 3

    def __post_init__(self) -> None:
        """Check phones and states."""
        if not self.phones or self.phones[0] != SILENCE:
            raise ValueError(f"the first phone must be {SILENCE!r}, got {self.phones[:1]}")
        if len(set(self.phones)) != len(self.phones):
            twice = sorted({phone for phone in self.phones if self.phones.count(phone) > 1})
            raise ValueError(f"each phone must be named once, these are named twice: {twice}")
        if self.states_per_phone < 1:
            raise ValueError(f"states_per_phone must be at least 1, got {self.states_per_phone}")

    @classmethod
    def from_phones(cls, phones: Iterable[str], states_per_phone: int = 3) -> SenoneMap:
        """Create a numbering with silence first and the other phones in alphabetical order."""
        others = sorted(set(phones) - {SILENCE})
        return cls((SILENCE, *others), states_per_phone)

    def __len__(self) -> int:
        """Return the number of senones."""
        return len(self.phones) * self.states_per_phone

    def of(self, phone: str) -> tuple[int, ...]:
        """Return the senones of a phone, in the order of its states.

        Raises:
            KeyError: there is no such phone.
        """
        if phone not in self.phones:
            raise KeyError(f"unknown phone {phone!r}, the phones are {' '.join(self.phones)}")
        first = self.phones.index(phone) * self.states_per_phone
        return tuple(range(first, first + self.states_per_phone))

    def name(self, senone: int) -> str:
        """Return the name of a senone, ``phone.state``, with states numbered from 1.

        Raises:
            IndexError: there is no such senone.
        """
        if not 0 <= senone < len(self):
            raise IndexError(f"senone must be from 0 to {len(self) - 1}, got {senone}")
        phone, state = divmod(senone, self.states_per_phone)
        return f"{self.phones[phone]}.{state + 1}"
