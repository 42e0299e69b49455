"""The hooks of every session: statistics and the notebook writer."""
