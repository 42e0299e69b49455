"""Answers for models about cells."""
