"""The start of a kernel: its kernelspec, its environment, its secrets, and one-shot tasks."""
