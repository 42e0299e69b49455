"""Settings in the words of other programs: ``code_execution_config``, arguments of ``docker run``, YAML, MassGen."""
