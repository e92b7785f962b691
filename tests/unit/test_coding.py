"""Words, bitmap and dense signs carry the same values, and the cheapest one is taken."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_hier.algorithms import coding
from lightning_hier.algorithms.coding import Coding
from lightning_hier.algorithms.threshold import add_signs_, segments, select_words
from tests.signs import dense_signs

signs_of_a_worker = st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=70)


def _words(signs: list[int]) -> Tensor:
    return select_words(torch.tensor(signs, dtype=torch.float32), 0.5)[0]


@given(signs=signs_of_a_worker)
def test_bitmap_brings_the_signs_back(signs: list[int]) -> None:
    bitmap = coding.words_to_bitmap(_words(signs), len(signs))
    assert bitmap.dtype == torch.int32
    assert bitmap.numel() == coding.bitmap_words(len(signs)) == -(-len(signs) // 16)
    decoded = torch.zeros(len(signs))
    coding.add_bitmap_signs_(decoded, bitmap)
    assert decoded.tolist() == signs


@given(
    workers=st.integers(1, 40).flatmap(
        lambda n: st.lists(
            st.lists(st.sampled_from([-1, 0, 1]), min_size=n, max_size=n), min_size=1, max_size=5
        )
    ),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
def test_every_coding_gives_the_same_sums(workers: list[list[int]], dtype: torch.dtype) -> None:
    numel = len(workers[0])
    by_words, by_bitmap = torch.zeros(2, numel, dtype=dtype)
    dense = torch.zeros(numel, dtype=coding.dense_dtype(len(workers)))
    for signs in workers:
        add_signs_(by_words, _words(signs))
        coding.add_bitmap_signs_(by_bitmap, coding.words_to_bitmap(_words(signs), numel))
        dense += dense_signs(_words(signs), numel, dense.dtype)
    expected = torch.tensor(workers).sum(0)
    assert torch.equal(by_words.long(), expected)
    assert torch.equal(by_bitmap.long(), expected)
    assert torch.equal(dense.long(), expected)


@given(
    signs=st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=150),
    longest=st.integers(1, 40),
)
def test_segments_of_a_long_tensor_come_together_again(signs: list[int], longest: int) -> None:
    """As a tensor of more elements than an index can hold is sent, only with a shorter index."""
    values = torch.tensor(signs, dtype=torch.float32)
    by_words, by_bitmap = torch.zeros(2, len(signs))
    for part in segments(len(signs), longest):
        words, _ = select_words(values[part], 0.5)
        add_signs_(by_words[part], words)
        bitmap = coding.words_to_bitmap(words, part.stop - part.start)
        coding.add_bitmap_signs_(by_bitmap[part], bitmap)
    assert by_words.tolist() == signs
    assert by_bitmap.tolist() == signs


def _wire_bytes(form: Coding, most_sent: int, numel: int, group_size: int) -> float:
    """What one rank passes on, for one tensor."""
    if form is Coding.DENSE:
        itemsize = coding.dense_dtype(group_size).itemsize
        return 2 * (group_size - 1) / group_size * numel * itemsize
    words = most_sent if form is Coding.WORDS else coding.bitmap_words(numel)
    return 4 * words * (group_size - 1)


@given(numel=st.integers(1, 100_000), share=st.floats(0.0001, 1.0), group_size=st.integers(2, 200))
def test_choice_puts_the_fewest_bytes_on_the_wire(
    numel: int, share: float, group_size: int
) -> None:
    most_sent = max(1, round(numel * share))
    chosen = coding.choose_coding(most_sent, numel, group_size)
    forms = (Coding.WORDS, Coding.BITMAP, Coding.DENSE)
    cheapest = min(_wire_bytes(form, most_sent, numel, group_size) for form in forms)
    assert _wire_bytes(chosen, most_sent, numel, group_size) == pytest.approx(cheapest)


def test_sparse_selection_goes_as_words_and_nothing_as_nothing() -> None:
    assert coding.choose_coding(0, 10_000, 4) is Coding.NOTHING
    assert coding.choose_coding(100, 10_000, 4) is Coding.WORDS
    assert coding.choose_coding(5_000, 10_000, 4) is Coding.BITMAP
    assert coding.choose_coding(5_000, 10_000, 64) is Coding.DENSE


def test_sum_of_signs_fits_its_type() -> None:
    for group_size in (1, 127, 128, 5000):
        assert torch.iinfo(coding.dense_dtype(group_size)).max >= group_size
    assert coding.dense_dtype(127) is torch.int8
