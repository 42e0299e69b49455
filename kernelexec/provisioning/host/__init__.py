"""Kernels on this machine: fork servers, confinement, bubblewrap and interpreters."""
