"""Results as notebooks and terminals show them."""
