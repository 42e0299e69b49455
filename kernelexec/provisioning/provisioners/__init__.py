"""The provisioners, which jupyter_client loads by their entry points."""
