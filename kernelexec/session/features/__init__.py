"""Everything that a session offers besides running cells, one module for each feature."""
