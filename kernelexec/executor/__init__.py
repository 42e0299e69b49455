"""The executor: the owner of named sessions, a pool, a door for other processes, and the facade for blocking callers."""
