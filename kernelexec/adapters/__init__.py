"""Sessions for other people's agents: one small module for each framework, which imports it when it is used.

``ag2`` and ``autogen`` hold code executors for AG2 and for autogen-core, made for the protocols of their releases 0.9 and 0.7.
They share ``markdown`` (code blocks in a message), ``blocks`` (what a block does in a session) and ``functions`` (functions of
the caller's that cells can import).
"""
