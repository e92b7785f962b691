"""Ranks of which the one that is named fails, and the others never come to an end."""

from __future__ import annotations

import os
import sys
import time

if os.environ["RANK"] == sys.argv[1]:
    raise OSError("on purpose")
time.sleep(600)
