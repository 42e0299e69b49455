"""Open executors as other processes of their user reach them: the socket of an executor, and its clients."""
