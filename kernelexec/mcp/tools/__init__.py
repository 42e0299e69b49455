"""The tools of the server, one module for each kind, and their descriptions."""
