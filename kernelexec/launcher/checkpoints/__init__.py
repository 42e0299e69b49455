"""Checkpoints: stopped copies of the kernel, from which a kernel can go on."""
