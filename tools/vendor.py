"""The console's foreign files: fetched, adapted, and checked against one list.

    python -m tools.vendor            fetch every file of the list in its version, and write its checksum down
    python -m tools.vendor --check    fetch as well, but only compare: nothing was changed on the way

`src/topics/server/console/vendor/vendor.json` is the list: file, package, version, licence, where in the package it
lies, and the checksum of what is served. To take a newer version, change it there and run this. Packages come by
`npm pack`, which verifies what it downloads; nothing of them is run. Two things are adapted, so that browsers need
neither a build step nor anything else: a module names its neighbour by file, and the pointer to a source map goes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "src/topics/server/console/vendor"
LIST = FOLDER / "vendor.json"
LICENCES = FOLDER / "LICENCES.txt"
_SOURCE_MAP = re.compile(rb"\n?//# sourceMappingURL=\S+\s*$")
_BARE = re.compile(rb"""(from\s*)(["'])preact\2""")


def adapted(raw: bytes) -> bytes:
    """What is served of a file as it was published."""
    return _BARE.sub(rb'\1"./preact.js"', _SOURCE_MAP.sub(b"", raw)).rstrip() + b"\n"


def fetched(package: str, version: str, scratch: Path) -> Path:
    """A package, unpacked."""
    options = ["--silent", "--ignore-scripts", "--pack-destination", str(scratch)]
    command = ["npm", "pack", f"{package}@{version}", *options]
    name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
    folder = scratch / f"{package}-{version}"
    with tarfile.open(scratch / name) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package"


def refresh(*, check: bool) -> list[str]:
    """Fetch everything; what differs from the list, or from what lies there."""
    rows: list[dict[str, Any]] = json.loads(LIST.read_text(encoding="utf-8"))
    differs = []
    licences: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for row in rows:
            folder = fetched(row["package"], row["version"], Path(scratch))
            body = adapted((folder / row["member"]).read_bytes())
            digest = hashlib.sha256(body).hexdigest()
            if row.get("sha256") != digest or not (FOLDER / row["file"]).exists():
                differs.append(row["file"])
            licence = json.loads((folder / "package.json").read_text(encoding="utf-8"))["license"]
            row |= {"sha256": digest, "licence": licence}
            licences[f"{row['package']} {row['version']}"] = (folder / "LICENSE").read_text(encoding="utf-8").strip()
            if not check:
                (FOLDER / row["file"]).write_bytes(body)
    if not check:
        LIST.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
        told = (f"{name}\n\n{text}\n" for name, text in licences.items())
        LICENCES.write_text("\n\n".join(told), encoding="utf-8")
    return differs


def main() -> int:
    """Refresh, or check."""
    parser = argparse.ArgumentParser(prog="python -m tools.vendor", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    args = parser.parse_args()
    differs = refresh(check=args.check)
    for name in differs:
        print(f"{'differs' if args.check else 'wrote'}: {name}", file=sys.stderr)
    return int(args.check and bool(differs))


if __name__ == "__main__":
    raise SystemExit(main())
