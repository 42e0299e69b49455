"""Rules about cells and their texts: permission to run, safety of a repetition, secrets, and the diagnosis of failures."""
