"""The bytes between kernel and driver: ZMTP, signed messages, and the sockets below."""
