"""Benchmarks: one file per question, each figure a ratio against something measured in the same run [P-1].

python -m bench                          run all of them and render bench/report.html
python -m bench wal_append --quick       one of them, small
python -m bench compare v0.1.0           this tree against another commit, alternating

What measures is this tree's, although a part of it lies among the sources: the client, the peers and the plots, which
`topics bench` has too. Where other sources are measured, those modules are loaded from here all the same, in this
process and in those it starts.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import topics.cli

OWN = ("load", "peers", "plot")


def _load_own() -> None:
    here = Path(__file__).resolve().parent.parent / "src/topics/cli"
    if Path(topics.cli.__file__ or "").resolve().parent == here:
        return
    for name in OWN:
        spec = spec_from_file_location(f"topics.cli.{name}", here / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = module_from_spec(spec)
        setattr(topics.cli, name, module)
        spec.loader.exec_module(module)


_load_own()
