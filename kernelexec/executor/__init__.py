"""The executor: the owner of named sessions, its pool and its door for other processes, and the facade for blocking callers."""
