"""Differences between ranks are told with the setting, the values and the ranks."""

from __future__ import annotations

import pytest
import torch

from lightning_hier.comm.agreement import gather_json, raise_everywhere


def test_one_process_agrees_with_itself() -> None:
    cpu = torch.device("cpu")
    assert gather_json({"a": (1, 2)}, cpu) == [{"a": [1, 2]}]
    with raise_everywhere(cpu):
        pass
    with pytest.raises(ValueError, match="^no good$"), raise_everywhere(cpu):
        raise ValueError("no good")
