"""Output on its way to the iopub socket: streams, captured descriptors, the crash buffer."""
