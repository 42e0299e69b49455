"""Adapters of sessions to agent frameworks: a small module per framework, imported on use.

``ag2`` and ``autogen`` contain code executors for AG2 0.9 and autogen-core 0.7. They share ``shared.blocks``: code blocks in
messages, running them in a session, and a module with the caller's functions for cells.
"""
