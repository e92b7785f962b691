"""Words and bitmaps carry the same values."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lightning_hier import GTC
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


def test_only_tensors_that_31_bits_can_index_are_compressed() -> None:
    config = GTC(dense_below=0)
    assert [config.compresses(n) for n in (0, 1, 2**31, 2**31 + 1)] == [False, True, True, False]
    assert not GTC(dense_below=8).compresses(7)
