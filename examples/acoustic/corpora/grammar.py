"""Context-free grammar of the sentences of the synthetic corpus."""

from __future__ import annotations

import numpy as np

START = "SENTENCE"

# Upper-case symbols are non-terminals with their expansions. Lower-case symbols are words.
RULES: dict[str, tuple[str, ...]] = {
    "SENTENCE": (
        "SWITCH",
        "SWITCH PLACE",
        "please SWITCH PLACE",
        "SETTING",
        "please SETTING",
        "SETTING and SWITCH",
        "NOTE",
        "NOTE and NOTE",
        "CALL",
        "please CALL",
        "CALL and then SWITCH",
        "CODE",
        "TIMER",
    ),
    # Without "in the" and "on the", which espeak pronounces as one word.
    "SWITCH": ("turn the DEVICE on", "turn the DEVICE off", "open the DOOR", "shut the DOOR"),
    "SETTING": ("set the LIGHT PLACE to COLOUR", "set the HEAT PLACE to TENS UNIT degrees"),
    "PLACE": ("inside the ROOM", "near the DOOR"),
    "NOTE": ("NAME needs NUMBER THINGS", "NAME bought NUMBER COLOUR THINGS"),
    "CALL": ("call NAME", "call NAME in NUMBER minutes", "call NAME at TENS UNIT"),
    "CODE": ("the code is DIGIT DIGIT DIGIT DIGIT", "my number is DIGIT DIGIT DIGIT DIGIT DIGIT"),
    "TIMER": ("start a timer for NUMBER minutes", "stop the timer"),
    "DEVICE": ("LIGHT", "HEAT", "radio", "music"),
    "LIGHT": ("lamp", "light"),
    "HEAT": ("heater", "oven"),
    "DOOR": ("window", "door", "garage", "gate"),
    "ROOM": ("kitchen", "bedroom", "garden", "hall", "cellar"),
    "COLOUR": ("red", "green", "blue", "yellow", "white", "purple"),
    "NAME": ("anna", "peter", "maria", "thomas", "julia", "george", "sarah", "victor"),
    "THINGS": ("apples", "books", "chairs", "shirts", "fish", "cups"),
    "NUMBER": ("UNIT", "TENS", "TENS UNIT"),
    "DIGIT": ("zero", "UNIT"),
    "UNIT": ("two", "three", "four", "five", "six", "seven", "eight", "nine"),
    "TENS": ("twenty", "thirty", "forty", "fifty"),
}


def sample_sentence(draw: np.random.Generator) -> tuple[str, ...]:
    """Draw a sentence. All expansions of a symbol are equally probable."""
    return tuple(_expand(START, draw))


def _expand(symbol: str, draw: np.random.Generator) -> list[str]:
    if symbol not in RULES:
        return [symbol]
    expansions = RULES[symbol]
    expansion = expansions[int(draw.integers(len(expansions)))]
    return [word for part in expansion.split() for word in _expand(part, draw)]
