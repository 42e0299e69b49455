"""The kernel itself: ipykernel's and IPython's classes with the launcher's behaviour."""
