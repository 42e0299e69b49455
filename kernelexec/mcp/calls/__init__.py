"""One call of a client: its session, its progress, the questions of its cell, and its task."""
