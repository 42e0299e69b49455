"""Adapters of sessions to agent frameworks: one small module per framework, which is imported on use.

``ag2`` and ``autogen`` contain code executors for AG2 0.9 and autogen-core 0.7. They share ``shared.blocks``: code blocks in
messages, running them in a session, and the caller's functions that cells can import.
"""
