"""Settings for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Machines are noisy: a slow example is no failure. CI repeats the same examples on every run; elsewhere they are
# random, and a failure prints what replays it.
settings.register_profile(
    "topics", settings.get_profile("ci" if os.environ.get("CI") else "default"), deadline=None, print_blob=True
)
settings.load_profile("topics")

# What takes longest, in two groups. A worker of xdist begins with one contiguous share of the tests and later takes
# over what another has left, from its end: with two workers each begins with a group, and short tests fill the rest.
HERE = Path(__file__).parent
LONG = (("spark", "console"), ("crash", "tiers", "model", "pages"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, so that no worker ends with one while the other has nothing left."""
    group = {folder: number for number, folders in enumerate(LONG) for folder in folders}
    parts: list[list[pytest.Item]] = [[], [], []]
    for item in items:
        parts[group.get(item.path.relative_to(HERE).parts[0], -1)].append(item)
    first, second, rest = parts
    half = max(len(items) // 2 - len(first), 0)
    items[:] = [*first, *rest[:half], *second, *rest[half:]]
