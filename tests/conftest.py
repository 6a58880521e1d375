"""Settings for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# Machines are noisy: a slow example is no failure. CI repeats the same examples on every run; elsewhere they are
# random, and a failure prints what replays it.
settings.register_profile(
    "topics", settings.get_profile("ci" if os.environ.get("CI") else "default"), deadline=None, print_blob=True
)
settings.load_profile("topics")
