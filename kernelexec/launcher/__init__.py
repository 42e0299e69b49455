"""The launcher: all code in a kernel's process. Imports are limited to the standard library and ipykernel."""
