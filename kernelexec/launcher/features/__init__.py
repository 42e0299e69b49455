"""Services of the kernel for its owner: variables, snapshots, tests, memory, virtual environments."""
