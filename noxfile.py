"""Sessions of the tests and checks, each in an environment of its own: ``nox -s unit``."""

from __future__ import annotations

import nox

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
PARALLEL = ("-n", "auto")

nox.options.sessions = ["lint", "types", "unit"]


def install(session: nox.Session, *groups: str, extras: str = "notebooks") -> None:
    """Install the package with extras, and dependency groups."""
    requirements = [requirement for group in groups for requirement in nox.project.dependency_groups(PROJECT, group)]
    session.install("--editable", f".[{extras}]", *requirements)


@nox.session(python=PYTHONS)
def unit(session: nox.Session) -> None:
    """Test without processes and engines."""
    install(session, "test")
    session.run("python", "-m", "pytest", "-q", "tests/unit", *session.posargs)


@nox.session(python=PYTHONS)
def local(session: nox.Session) -> None:
    """Test all that needs no container engine."""
    install(session, "test")
    session.run("python", "-m", "pytest", "-q", "-m", "not engine", *PARALLEL, *session.posargs)


@nox.session(python=PYTHONS)
def container(session: nox.Session) -> None:
    """Test all that needs a container engine, with the images of .ci/engine."""
    install(session, "test")
    session.run("python", "-m", "pytest", "-q", "-m", "engine", *PARALLEL, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    session.install(*nox.project.dependency_groups(PROJECT, "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, those of the public API included."""
    install(session, "test", "types")
    session.run("mypy")


@nox.session
def clients(session: nox.Session) -> None:
    """Run MCP clients of other frameworks, each in an environment of its own, with a model of this machine."""
    install(session, "test")
    session.run("python", "-m", "tests.clients", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the API reference into build/reference, or into another directory."""
    install(session, "docs", extras="mcp,ag2,autogen,smolagents")
    session.run("bash", ".ci/reference", *session.posargs, env={"PYTHON": "python"}, external=True)
