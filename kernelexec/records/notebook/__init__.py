"""Cells in the notebook format: the notebook of a session, and files of cells."""
