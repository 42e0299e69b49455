"""The features of a session in addition to cells, one module for each feature."""
