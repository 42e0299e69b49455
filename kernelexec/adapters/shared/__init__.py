"""The common parts of adapters, which import no framework."""
