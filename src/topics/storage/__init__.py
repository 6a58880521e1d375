"""How a topic's records and the store's metadata lie on disk and in memory: shards, segments, tags, snapshots (06)."""
