"""Installed kernelspecs: which one a language means, what starts its kernel, and how it is reached."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpec

from kernelexec import InvalidRequest, KernelStartFailed
from kernelexec.provisioning.launch.kernelspec import PROVISIONER, KernelspecCatalog, create_guarded_spec, create_provisioner
from tests.support.kernelspecs import write


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "user"))
    return tmp_path


def found(wanted: str) -> tuple[str, str]:
    spec = KernelspecCatalog.on_this_machine().find(wanted)
    assert spec is not None
    return spec.name, spec.label


def test_a_name_comes_before_a_language(specs: Path) -> None:
    write(specs, "a", ["a"], "b")
    write(specs, "b", ["b"], "c")
    write(specs, "d", ["d"], "Q")
    write(specs, "e", ["e"], "Q")
    assert found("b") == ("b", "c")
    assert found("c") == ("b", "c")
    assert found("a") == ("a", "a")
    assert found("q") == ("d", "q")
    assert found("e") == ("e", "e")
    assert KernelspecCatalog.on_this_machine().find("x") is None


def test_a_label_finds_its_kernelspec_again(specs: Path) -> None:
    for number, language in enumerate(["b", "k0", "B", "", "python"]):
        write(specs, f"k{number}", ["x"], language)
    for number in range(5):
        _, label = found(f"k{number}")
        assert found(label)[0] == f"k{number}"


UNUSABLE: tuple[tuple[list[str], dict[str, Any], str], ...] = (
    ([], {}, "argv is empty"),
    (["a\0"], {}, "argv holds a NUL"),
    (["a"], {"A": 5}, "env must hold"),
    (["a"], {"A": "\0"}, "env must hold"),
)


@pytest.mark.parametrize(("argv", "env", "reported"), UNUSABLE)
def test_a_kernelspec_that_starts_nothing_is_refused_with_the_reason(
    specs: Path, argv: list[str], env: dict[str, Any], reported: str
) -> None:
    write(specs, "broken", argv, "x", env=env)
    with pytest.raises(InvalidRequest, match=f"kernelspec 'broken' in {specs}.*{reported}"):
        KernelspecCatalog.on_this_machine().find("broken")


def test_installed_kernels_are_listed_with_their_languages(specs: Path) -> None:
    write(specs, "deno", ["deno"], "typescript")
    write(specs, "bash", ["bash"], "bash")
    assert KernelspecCatalog.on_this_machine().describe()[:2] == ("bash", "deno (typescript)")


def test_a_kernelspec_that_is_broken_harms_no_other(specs: Path) -> None:
    write(specs, "deno", ["deno"], "typescript")
    (specs / "kernels" / "broken").mkdir()
    (specs / "kernels" / "broken" / "kernel.json").write_text("{")
    assert found("typescript") == ("deno", "typescript")


def test_placeholders_are_filled_in(specs: Path) -> None:
    write(specs, "k", ["python", "{connection_file}", "{resource_dir}/x", "{kernel_name}", "{prefix}", "{other}"], "l")
    spec = KernelspecCatalog.on_this_machine().find("k")
    assert spec is not None
    directory = str(specs / "kernels" / "k")
    assert spec.argv(Path("/c")) == [sys.executable, "/c", f"{directory}/x", "k", sys.prefix, "{other}"]


TRANSPORTS = {
    "python": (["python3.12", "-m", "x"], {}, "ipc"),
    "a path": (["/opt/bin/python", "x"], {}, "ipc"),
    "a program": (["deno"], {}, "tcp"),
    "said ipc": (["xcpp"], {"kernelexec": {"transport": "ipc"}}, "ipc"),
    "said tcp": (["python"], {"kernelexec": {"transport": "tcp"}}, "tcp"),
    "said nonsense": (["python"], {"kernelexec": "tcp"}, "ipc"),
}


@pytest.mark.parametrize("case", TRANSPORTS.values(), ids=TRANSPORTS)
def test_the_transport_follows_from_the_kernelspec(specs: Path, case: tuple[list[str], dict[str, object], str]) -> None:
    argv, metadata, transport = case
    write(specs, "k", argv, "l", metadata=metadata)
    spec = KernelspecCatalog.on_this_machine().find("k")
    assert spec is not None
    assert spec.transport == transport


def test_our_guard_and_provisioner_serve_every_kernelspec(specs: Path) -> None:
    stanza = {"kernel_provisioner": {"provisioner_name": "local-provisioner"}}
    write(specs, "k", ["k", "-f", "{connection_file}"], "l", env={"A": "1"}, interrupt_mode="message", metadata=stanza)
    spec = KernelspecCatalog.on_this_machine().find("k")
    assert spec is not None
    guarded = create_guarded_spec(spec, Path("/c"), guard=(sys.executable, "--guard"))
    assert guarded.argv == [sys.executable, "--guard", "k", "-f", "/c"]
    assert (guarded.env, guarded.interrupt_mode) == ({"A": "1"}, "message")
    assert type(create_provisioner("id", guarded)).__module__ == "kernelexec.provisioning.provisioners.local"
    assert guarded.metadata["kernel_provisioner"]["provisioner_name"] == PROVISIONER


def test_a_provisioner_that_is_not_installed_is_named() -> None:
    spec = KernelSpec(metadata={"kernel_provisioner": {"provisioner_name": "kernelexec-elsewhere", "config": {}}})
    with pytest.raises(KernelStartFailed, match="'kernelexec-elsewhere' is not installed: reinstall kernelexec"):
        create_provisioner("id", spec)
