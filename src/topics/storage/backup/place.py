"""Opening what a command line names: where backups are kept, and the cold tier they copy from."""

from __future__ import annotations

from topics.errors import StoreUnavailable
from topics.fs import Fs
from topics.storage.backup.depot import Depot, FolderDepot
from topics.storage.backup.pair import FetchCold
from topics.storage.tiers import place
from topics.storage.tiers.open import open_bucket, open_root
from topics.storage.tiers.store import ColdRoot, SegmentId, check_owner

PIECE_BYTES = 8 << 20


def open_depot(fs: Fs, where: str, argument: str) -> Depot:
    """A folder or a URL; a `SettingsError` naming the argument if it is neither."""
    meant = place.parse(where, argument)
    if isinstance(meant, str):
        return FolderDepot(fs, meant)
    bucket = open_bucket(meant, argument)
    from topics.storage.backup.objects import ObjectDepot

    return ObjectDepot(bucket)


def cold_fetcher(fs: Fs, where: str | None, store: str) -> FetchCold:
    """Reads data of the cold tier of a store; the tier is opened when the first segment needs it."""
    opened: list[ColdRoot] = []

    def fetch(topic_id: int, first: int, generation: int, length: int) -> bytes:
        if not opened:
            if where is None:
                raise StoreUnavailable("segments lie in a cold tier; say where with TOPICS_COLD_DIR")
            root = open_root(where, fs)
            check_owner(root, store)
            opened.append(root)
        tier, id = opened[0].topic(topic_id), SegmentId(first, generation)
        pieces = range(0, length, PIECE_BYTES)
        return b"".join(tier.read_range(id, "data", at, min(PIECE_BYTES, length - at)) for at in pieces)

    return fetch
