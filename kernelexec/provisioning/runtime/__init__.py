"""Private directories: an executor's, a kernel's, their processes and ports, and the hand-over to the next owner."""
