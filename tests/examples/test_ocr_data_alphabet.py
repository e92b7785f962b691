"""Tests of alphabets: conversion of texts to numbers and back, normalisation to the keyboard."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.ocr.alphabet import BLANK, KEYBOARD, Alphabet
from examples.ocr.line import frames_needed


def test_the_keyboard_has_95_characters_and_the_model_96_outputs() -> None:
    assert (len(KEYBOARD), KEYBOARD[0], KEYBOARD[-1]) == (95, " ", "~")
    assert len(Alphabet()) == 96
    assert Alphabet().encode(" ~") == [1, 95]


@given(st.text(st.sampled_from(KEYBOARD)))
def test_decoding_undoes_encoding_and_skips_padding(text: str) -> None:
    alphabet = Alphabet()
    numbers = alphabet.encode(text)
    assert BLANK not in numbers
    assert alphabet.decode([*numbers, 0, 0]) == text
    assert frames_needed(numbers) == len(text) + sum(a == b for a, b in pairwise(text))


@pytest.mark.parametrize(
    ("written", "on_keyboard"),
    [
        ("“It’s”\u00a0 here\t– there — ‘so’", "\"It's\" here - there - 'so'"),
        ("ﬁnd the œuvre of Æsop", "find the oeuvre of AEsop"),
        ("21½ or ¾, 1⁄3", "21 1/2 or 3/4, 1/3"),
        ("Élève à Noël; e\u0301te\u0301", "Eleve a Noel; ete"),
        ("«Straße» … 5 m³", '"Strasse" ... 5 m3'),
        ("漢", "漢"),
    ],
)
def test_normalising_to_the_keyboard(written: str, on_keyboard: str) -> None:
    assert Alphabet().normalise(written) == on_keyboard
