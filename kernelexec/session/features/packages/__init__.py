"""Packages of a session: requirements and their lock, installations, and those before the first cell."""
