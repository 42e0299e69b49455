"""Images of kernels: their recipes, how the engine builds them, and the contents of an image."""
