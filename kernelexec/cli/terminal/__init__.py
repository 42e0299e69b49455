"""The terminal: the filter of all text to it, and questions at it."""
