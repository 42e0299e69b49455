"""The way of one cell: submitted, queued, approved, run, judged, and kept as a result."""
