"""What the members of bodies and answers are, said once beside their types; OpenAPI and the reference page read it.

    from_seq: Annotated[int, about("exclusive lower bound", U64)] = 0

Bounds given here describe and do not check: whoever handles the request checks, and says what is wrong in its own
words. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Meta

U64: Final = {"minimum": 0, "maximum": 2**64 - 1}
U32: Final = {"minimum": 0, "maximum": 2**32 - 1}
I32: Final = {"minimum": -(2**31), "maximum": 2**31 - 1}
PRODUCER: Final = {
    "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": 128, "description": "of the writer; 128 bytes at most"},
        "epoch": {"type": "integer", **U64, "description": "of one life of the writer"},
        "index": {"type": "integer", **U64, "description": "grows by one with every write"},
    },
    "required": ["id", "epoch", "index"],
}
SELECTOR: Final = {
    "prefixItems": [{"const": "tag"}, {"enum": ["Eq", "Glob"]}, {"type": "string"}],
    "minItems": 3,
    "maxItems": 3,
}
TOPIC_NAME: Final = {"pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"}
ROUTER_NAME: Final = {"pattern": "^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"}


def about(description: str = "", bounds: Mapping[str, Any] | None = None) -> Meta:
    """For `Annotated`: a description, and members of its JSON schema."""
    more = dict(bounds or {})
    if description:
        more["description"] = description
    return Meta(extra_json_schema=more)
