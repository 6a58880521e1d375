"""What `Client`, `AsyncClient`, the embedded `Log` and its `aio` have in common [U-20, U-24].

    base          the operations that are made of others: reading to the head, and the objects below
    topic         a topic with its name filled in
    queue         a queue with its name filled in; worker: jobs one after another, leases kept alive meanwhile
    transaction   records staged out of sight, committed when a block is left

Everything here is written against the operations alone, so it works the same whoever carries them out.
"""
