"""Jobs over whole stores (10 §5): `topics pipeline JOB`, or a job's module from Python.

    work       one run of a job: where, with which Spark, whom to tell; run records [K-40]
    place      a store as jobs see it: a directory or a server
    spread     Spark tasks that are Python functions over Arrow; nothing but DataFrames is used, so Connect works, too
    archive    lake tables: rows and write (what is in them), lake (what all targets share), parquet, delta, iceberg,
               journal and erase (deletes), verify (proof)
    scrub, stats, compact, backfill, rebuild

A job's module has `plan(work)`, what would be done, and `run(work)`, which does it. Drivers and tasks import no server.
"""
