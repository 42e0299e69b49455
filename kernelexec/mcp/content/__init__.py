"""Content blocks of answers: a cell's result as text, images and tables for a model."""
