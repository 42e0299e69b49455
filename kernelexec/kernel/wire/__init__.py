"""The bytes between a kernel and its driver: ZMTP, signed messages and the sockets that carry them."""
