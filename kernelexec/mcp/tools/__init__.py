"""The tools of the server, one module for each group, and their descriptions."""
