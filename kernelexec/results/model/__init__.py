"""What a model is told about a cell."""
