"""The records of a session that stay: its journal, its notebook and its log."""
