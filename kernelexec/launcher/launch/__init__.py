"""Programs of the launcher: the kernel application, and the processes that start, fork, guard or confine kernels."""
