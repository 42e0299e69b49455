"""The commands by their applications, which are imported when they are called."""

from __future__ import annotations

import pytest
import typer

from kernelexec.cli.application import APPLICATIONS, load_application


@pytest.mark.parametrize(("reference", "names"), APPLICATIONS.items(), ids=list(APPLICATIONS))
def test_an_application_has_the_commands_of_its_row(reference: str, names: tuple[str, ...]) -> None:
    application = load_application(reference)
    group = typer.main.get_group(application)
    assert names == ((application.info.name,) if isinstance(application.info.name, str) else tuple(group.commands))
