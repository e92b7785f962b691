"""What augmentation may do to a line, and what it must leave."""

from __future__ import annotations

import numpy as np
import pytest

from examples.ocr.alphabet import Alphabet
from examples.ocr.augmentation import Augmentation
from examples.ocr.batching import BatchIndex
from examples.ocr.dataset import LineDataset
from examples.ocr.line import Line
from tests.examples.line_images import inked

IMAGE = np.asarray(inked(width=200, height=60))


def _augmented(epoch: int, position: int = 0, **settings: float) -> np.ndarray:
    return Augmentation(**settings)(IMAGE, epoch=epoch, position=position)


def test_drawn_from_seed_epoch_and_position_alone() -> None:
    first = _augmented(3, 4)
    assert np.array_equal(first, _augmented(3, 4))
    for other in (_augmented(4, 4), _augmented(3, 5), _augmented(3, 4, seed=1)):
        assert first.shape != other.shape or not np.array_equal(first, other)


def test_size_and_greys_stay_in_bounds() -> None:
    for epoch in range(60):
        image = _augmented(epoch)
        assert image.dtype == np.uint8
        assert image.shape[0] == 60
        assert 180 <= image.shape[1] <= 220
        # Paper stays much lighter than ink.
        assert np.median(image) > 150
        assert np.percentile(image, 2) < np.median(image) - 60


def test_ink_is_neither_lost_nor_cut_off() -> None:
    ink = (IMAGE < 128).sum()
    for epoch in range(40):
        kept = (_augmented(epoch, fade=0, noise=0, blur=0) < 128).sum()
        assert 0.6 * ink < kept < 1.35 * ink


def test_without_any_bound_the_line_stays_as_it_is() -> None:
    off = {"slant": 0, "stretch": 0, "shrink": 0, "fade": 0, "blur": 0, "noise": 0}
    assert np.array_equal(_augmented(0, **off), IMAGE)


def test_room_for_the_text_is_kept() -> None:
    augmentation = Augmentation(stretch=0.5)
    widths = [
        augmentation(IMAGE, epoch=epoch, position=0, min_width=190).shape[1] for epoch in range(30)
    ]
    assert min(widths) == 190
    too_narrow = augmentation(IMAGE, epoch=0, position=0, min_width=900)
    assert too_narrow.shape[1] >= 200


def test_the_data_set_asks_for_that_room() -> None:
    # 20 repeated characters need 39 outputs, of 5 pixels each.
    lines = [Line(key="a", text="a" * 20, image=IMAGE)]
    dataset = LineDataset(lines, Alphabet(), Augmentation(stretch=0.5), pixels_per_frame=5)
    widths = [int(dataset[BatchIndex(epoch, (0,))].widths) for epoch in range(30)]
    assert min(widths) == 195
    plain = LineDataset(lines, Alphabet())
    assert int(plain[BatchIndex(0, (0,))].widths) == 200


@pytest.mark.parametrize("settings", [{"noise": -1}, {"stretch": 0.7}, {"fade": 1.0}])
def test_bounds_out_of_range(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must be from 0 to"):
        Augmentation(**settings)
