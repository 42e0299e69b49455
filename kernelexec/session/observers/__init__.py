"""Hooks that every session has: its statistics and the writer of its notebook."""
