"""An archive with this package and what its tasks import, for clusters where it is not installed [K-41].

Spark unpacks it beside every executor (`spark.archives`), where it is in front of everything else that Python finds.
The machines must run the driver's platform and version of Python: wheels are copied as they are installed here. Driver
only.
"""

from __future__ import annotations

import os
import zipfile
from importlib import metadata
from typing import Final

from topics.spark.failure import SourceError

NAME: Final = "topics_env"
NEEDED: Final = ("crc32c", "msgspec", "numpy", "pyarrow", "xxhash")
WHERE_THERE: Final = ("topics-kernel", "obstore", "lz4", "zstandard")
OWN: Final = ("topics", "pyspark_topics")


def build(out: str) -> int:
    """Write the archive; how many files are in it. It appears when it is complete."""
    temporary = f"{out}.tmp"
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    seen = set()
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for source, name in _files():
            if name not in seen and os.path.isfile(source):
                seen.add(name)
                archive.write(source, name)
    os.replace(temporary, out)
    return len(seen)


def conf(archive: str) -> dict[str, str]:
    """What makes Spark use it."""
    return {"spark.archives": f"{os.path.abspath(archive)}#{NAME}", "spark.executorEnv.PYTHONPATH": NAME}


def _files() -> list[tuple[str, str]]:
    """What goes in, and under which name."""
    found = [pair for package in OWN for pair in _package(package)]
    for name in (*NEEDED, *WHERE_THERE):
        try:
            files = metadata.distribution(name).files or []
        except metadata.PackageNotFoundError as error:
            if name in NEEDED:
                raise SourceError("missing_extra", f"{name} is not installed", "pip install 'topics[spark]'") from error
            continue
        found += [(str(one.locate()), str(one)) for one in files if not str(one).startswith("..")]
    return [pair for pair in found if "__pycache__" not in pair[1]]


def _package(name: str) -> list[tuple[str, str]]:
    import importlib

    module = importlib.import_module(name)
    root = os.path.dirname(os.path.abspath(str(module.__file__)))
    return [
        (os.path.join(folder, file), os.path.join(name, os.path.relpath(os.path.join(folder, file), root)))
        for folder, _, files in os.walk(root)
        for file in files
    ]
