"""Saved local values are restored, also where writing other values fails."""

from __future__ import annotations

import pytest
import torch

from lightning_hier.comm.blocks.local_values import SavedTensors


def test_values_are_restored_where_writing_others_fails() -> None:
    own, saved = torch.ones(3), SavedTensors()
    with pytest.raises(RuntimeError, match="lost"), saved.overwriting([own]):
        own.zero_()
        raise RuntimeError("lost")
    assert own.tolist() == [1.0] * 3 and not saved.used


def test_values_stay_saved_where_it_does_not() -> None:
    own, saved = torch.ones(3), SavedTensors()
    with saved.overwriting([own]):
        own.zero_()
    assert own.tolist() == [0.0] * 3 and saved.used
    saved.restore()
    assert own.tolist() == [1.0] * 3 and not saved.used


def test_writes_are_found_unless_they_are_taken_back() -> None:
    own, other, saved = torch.ones(3), torch.ones(2), SavedTensors()
    with saved.overwriting([own, other], watch=True):
        own.zero_()
    own.data.fill_(4.0)
    own.data.zero_()
    assert saved.written() == []
    own.data[1] = -0.0
    assert saved.written() == [own]
    saved.keep([own])
    saved.restore()
    assert own.tolist() == [0.0] * 3 and other.tolist() == [1.0] * 2
