"""Ctrl-C, said in one line [U-12]."""

from __future__ import annotations

from topics.errors import TopicsError


class Interrupted(TopicsError):
    """Ctrl-C; the message says how far a command came."""

    code = "interrupted"
