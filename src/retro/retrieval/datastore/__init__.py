"""The datastore: segments of chunks under a ledger with versions."""
