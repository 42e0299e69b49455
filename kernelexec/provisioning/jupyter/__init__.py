"""Kernelspecs of Jupyter, and kernels of the managers of other programs."""
