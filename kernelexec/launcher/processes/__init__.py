"""Processes started by cells: commands, background commands, the session's shell, the tree below the kernel, and the end."""
