"""Kernels in containers: creation, reuse, statistics, mounts and orphans."""
