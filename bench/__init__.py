"""Benchmarks: one file per question, each figure a ratio against something measured in the same run [P-1].

python -m bench                          run all of them and render bench/report.html
python -m bench wal_append --quick       one of them, small
python -m bench compare v0.1.0           this tree against another commit, alternating
"""
