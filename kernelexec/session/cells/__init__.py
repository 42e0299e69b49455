"""The execution of cells: submission, queue, approval, run and result."""
