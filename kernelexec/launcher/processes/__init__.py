"""Processes that cells start: commands, background commands, their end, and the audit of programs."""
