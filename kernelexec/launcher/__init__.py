"""The launcher: all code that runs inside a kernel's process. It imports the standard library and ipykernel only."""
