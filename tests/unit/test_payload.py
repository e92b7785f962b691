"""Words and bitmaps carry the same values."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_hier.algorithms.kernels import payload
from tests.signs import select_words

signs_of_a_worker = st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=70)


def _words(signs: list[int]) -> Tensor:
    return select_words(torch.tensor(signs, dtype=torch.float32), 0.5)


def test_word_is_one_bit_of_sign_and_31_of_index() -> None:
    assert [word & 0xFFFFFFFF for word in _words([0, 3, -3]).tolist()] == [1, 2 | 1 << 31]


def test_highest_index_of_a_segment_survives_both_signs() -> None:
    last = 2**31 - 1
    words = torch.tensor([last, last - 2**31], dtype=torch.int64).int()
    index, negative = payload.split_words(words)
    assert index.tolist() == [last, last]
    assert negative.tolist() == [False, True]


@given(signs=signs_of_a_worker)
def test_bitmap_brings_the_signs_back(signs: list[int]) -> None:
    bitmap = payload.words_to_bitmap(_words(signs), len(signs))
    assert bitmap.dtype == torch.int32
    assert bitmap.numel() == payload.bitmap_words(len(signs)) == -(-len(signs) // 16)
    decoded = torch.zeros(len(signs))
    payload.add_bitmap_(decoded, bitmap)
    assert decoded.tolist() == signs


@given(
    workers=st.integers(1, 40).flatmap(
        lambda n: st.lists(
            st.lists(st.sampled_from([-1, 0, 1]), min_size=n, max_size=n), min_size=1, max_size=5
        )
    ),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
def test_both_encodings_give_the_same_sums(workers: list[list[int]], dtype: torch.dtype) -> None:
    numel = len(workers[0])
    by_words, by_bitmap = torch.zeros(2, numel, dtype=dtype)
    for signs in workers:
        payload.add_words_(by_words, _words(signs))
        payload.add_bitmap_(by_bitmap, payload.words_to_bitmap(_words(signs), numel))
    expected = torch.tensor(workers).sum(0)
    assert torch.equal(by_words.long(), expected)
    assert torch.equal(by_bitmap.long(), expected)


@given(numel=st.integers(0, 200), longest=st.integers(1, 70))
def test_segments_cut_without_gaps(numel: int, longest: int) -> None:
    parts = list(payload.segments(numel, longest))
    covered = [index for part in parts for index in range(part.start, part.stop)]
    assert covered == list(range(numel))
    assert all(0 < part.stop - part.start <= longest for part in parts)


def test_segment_fits_the_31_bits_of_an_index() -> None:
    assert [(p.start, p.stop) for p in payload.segments(2**31 + 5)] == [
        (0, 2**31),
        (2**31, 2**31 + 5),
    ]


@given(
    signs=st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=150),
    longest=st.integers(1, 40),
)
def test_segments_of_a_long_tensor_come_together_again(signs: list[int], longest: int) -> None:
    """As a tensor of more elements than an index can hold is sent, only with a shorter index."""
    by_words, by_bitmap = torch.zeros(2, len(signs))
    for part in payload.segments(len(signs), longest):
        words = _words(signs[part])
        payload.add_words_(by_words[part], words)
        payload.add_bitmap_(by_bitmap[part], payload.words_to_bitmap(words, part.stop - part.start))
    assert by_words.tolist() == signs
    assert by_bitmap.tolist() == signs
