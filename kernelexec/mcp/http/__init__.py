"""The HTTP transport: the application, its guard, authentication and metrics."""
