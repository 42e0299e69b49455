"""Content blocks: the outcome of a cell as text, images and tables that clients show to a model."""
