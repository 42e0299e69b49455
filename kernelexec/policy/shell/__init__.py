"""The language of bash, read for the commands that a script runs."""
