"""Opening a tier by the text that names it [S-302].

Nothing is asked of the tier here: one that is not reachable opens, and says so when it is used [S-318]. What can be
judged without it ends start-up [A-17]: text that is no place, a missing library, a profile without keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from topics.errors import SettingsError
from topics.fs import Fs, read_regular
from topics.settings import environment
from topics.storage.tiers import place, profile
from topics.storage.tiers.folder import FolderRoot
from topics.storage.tiers.store import ColdRoot

if TYPE_CHECKING:
    from topics.storage.tiers.bucket import Bucket, Patience


def open_root(
    where: str,
    fs: Fs,
    *,
    variable: str = "TOPICS_COLD_DIR",
    environ: Mapping[str, str] | None = None,
    patience: Patience | None = None,
) -> ColdRoot:
    """The tier at `where`, a folder or a URL; a `SettingsError` naming `variable` if there can be none.

    `fs` is where a folder lies, and where parts to be put are read from. `environ` is the process's own unless given:
    profiles of AWS are looked up with it.
    """
    meant = place.parse(where, variable)
    if isinstance(meant, str):
        return FolderRoot(fs, meant)
    bucket = open_bucket(meant, variable, environ=environ, patience=patience)
    from topics.storage.tiers.object import ObjectRoot

    return ObjectRoot(bucket, fs)


def open_bucket(
    meant: place.ObjectPlace,
    variable: str,
    *,
    environ: Mapping[str, str] | None = None,
    patience: Patience | None = None,
) -> Bucket:
    """The objects of a place; a `SettingsError` naming `variable` where the library for them is missing."""
    try:
        from topics.storage.tiers import bucket
    except ImportError as error:
        raise SettingsError(
            variable, f"{meant.scheme}:// needs the package obstore ({error}); pip install 'topics[s3]'"
        ) from None
    keys = None
    if meant.scheme == "s3":
        keys = profile.access_keys(environment() if environ is None else environ, _read)
    return bucket.connect(meant, variable, patience or bucket.Patience(), keys)


def _read(path: str) -> bytes | None:
    try:
        return read_regular(path, profile.FILE_BYTES_MAX).data
    except FileNotFoundError:
        return None
