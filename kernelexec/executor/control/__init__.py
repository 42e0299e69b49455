"""Open executors for other processes of the same user: the socket of an executor, and the clients."""
