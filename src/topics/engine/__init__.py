"""The engine: topics, records and queues over `topics.storage`; one owner thread runs all of it [A-1]."""
