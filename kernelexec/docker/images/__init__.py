"""Images of kernels: their recipes, how the engine builds them, and what an image contains."""
