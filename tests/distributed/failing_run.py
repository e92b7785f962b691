"""A program whose given rank fails, and whose other ranks do not end."""

from __future__ import annotations

import os
import sys
import time

if os.environ["RANK"] == sys.argv[1]:
    raise OSError("on purpose")
time.sleep(600)
