"""Checkpoints: stopped copies of the kernel, from which it can go on."""
