"""Output in an encoding that lacks a character is no failure [U-10].

What cannot be written is spelled as JSON does, `\\u00fc`: right in JSON, and readable elsewhere. That also goes for
bytes of the command line that are no text. Runs on the main thread.
"""

from __future__ import annotations

import codecs
import io
import json
import sys


def tolerate() -> None:
    """Have stdout and stderr take everything."""
    codecs.register_error("topics", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="topics")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(json.dumps(c)[1:-1] for c in error.object[error.start : error.end]), error.end
