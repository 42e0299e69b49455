"""Operations of an agent on the files of a workspace."""
