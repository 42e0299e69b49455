"""Jupyter's own applications: installed kernelspecs, and kernels of other programs' managers."""
