"""The bytes between a kernel and its driver: ZMTP, CURVE, signed messages and the sockets that carry them."""
