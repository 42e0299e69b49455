"""The lasting records of a session: journal, notebook and log."""
