"""The container engine: the only door to Docker. Its errors leave here as errors of ours.

Functions that ask the engine raise ``EngineUnavailable`` if it does not answer, ``EngineRefused`` if it refuses, and
``ContainerGone`` or ``ImageMissing`` if the container or the image does not exist; they may have done a part then.

Nothing is imported here: local kernels use ``labels`` without the library ``docker``.
"""
