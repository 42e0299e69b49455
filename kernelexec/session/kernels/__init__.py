"""The kernels of one session: a supervisor for each language, escalation of interrupts, and the verdict on state."""
