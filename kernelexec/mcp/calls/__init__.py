"""Tool calls: their sessions, progress, elicitation and tasks."""
