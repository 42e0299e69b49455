"""The kernels of one session: one supervisor for each language, the escalation of interrupts, and the verdict on state."""
