"""Private directories of executors and kernels, their processes and ports, and the handover to the next owner."""
