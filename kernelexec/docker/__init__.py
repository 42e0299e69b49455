"""The container engine: the only door to Docker. Its errors leave here as errors of ours.

Functions with a request to the engine raise ``EngineUnavailable`` without an answer, ``EngineRefused`` after a refusal, and
``ContainerGone`` or ``ImageMissing`` for a missing container or image. A part of the work may be done by then.

Nothing is imported here: local kernels use ``labels`` without the library ``docker``.
"""
