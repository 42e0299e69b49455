"""What runs inside the kernel's process: the standard library and ipykernel only, nothing of the host's side."""
