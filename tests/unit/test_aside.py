"""Local values that are put aside come back, also where writing others has failed."""

from __future__ import annotations

import pytest
import torch

from lightning_hier.comm.blocks.aside import Aside


def test_values_come_back_where_writing_others_fails() -> None:
    own, aside = torch.ones(3), Aside()
    with pytest.raises(RuntimeError, match="lost"), aside.putting([own]):
        own.zero_()
        raise RuntimeError("lost")
    assert own.tolist() == [1.0] * 3 and not aside.used


def test_values_stay_aside_where_it_does_not() -> None:
    own, aside = torch.ones(3), Aside()
    with aside.putting([own]):
        own.zero_()
    assert own.tolist() == [0.0] * 3 and aside.used
    aside.restore()
    assert own.tolist() == [1.0] * 3 and not aside.used
