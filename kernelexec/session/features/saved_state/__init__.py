"""The state of a session, saved and brought back: variables in files, and whole kernels as stopped copies."""
