"""Settings in the formats of other programs: ``code_execution_config``, arguments of ``docker run``, YAML, MassGen."""
