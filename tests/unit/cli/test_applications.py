"""The commands by their applications, which are imported when they are called."""

from __future__ import annotations

import pytest
import typer

from kernelexec.cli.application import ENTRIES, PANELS, load_application

APPLICATIONS = sorted({entry.application for entry in ENTRIES.values()})


@pytest.mark.parametrize("reference", APPLICATIONS)
def test_an_application_has_the_commands_of_the_table(reference: str) -> None:
    application = load_application(reference)
    group = typer.main.get_group(application)
    commands = {application.info.name: group} if isinstance(application.info.name, str) else group.commands
    assert set(commands) == {name for name, entry in ENTRIES.items() if entry.application == reference}
    listed = {name for entries in PANELS.values() for name in entries}
    assert {name for name, command in commands.items() if not command.hidden} == listed & set(commands)


@pytest.mark.parametrize("summary", [entry.summary for entry in ENTRIES.values()])
def test_a_summary_is_one_short_sentence(summary: str) -> None:
    assert summary.endswith(".")
    assert len(summary) <= 72
