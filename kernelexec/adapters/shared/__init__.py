"""The parts that adapters share; they import no framework."""
