"""A command that shares its module with others."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple


class Verb(NamedTuple):
    """What a row of the table of commands needs."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
