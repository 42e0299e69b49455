"""The container engine: the only door to Docker. Its errors leave here as errors of ours.

Nothing is imported here: local kernels use ``labels`` without the library ``docker``.
"""
