"""The provisioners that start, watch and end kernel processes; jupyter_client loads them by entry point."""
