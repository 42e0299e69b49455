"""Rules about cells and their texts: which may run, which may run again, which values stay secret, and why a cell failed."""
