"""Operations of an agent on files in its workspace."""
