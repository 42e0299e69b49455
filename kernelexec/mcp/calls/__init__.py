"""Tool calls: their sessions, progress and elicitation."""
