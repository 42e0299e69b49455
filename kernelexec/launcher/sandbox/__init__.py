"""Layers that confine this process: Landlock, seccomp, capabilities."""
