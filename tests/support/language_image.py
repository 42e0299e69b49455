"""Images that only tests need, each built once for an engine: one with kernels of other languages, one with next to nothing."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

from kernelexec.docker.client import Engine

_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_SPECS: dict[str, dict[str, object]] = {
    "deno": {
        "argv": ["deno", "jupyter", "--kernel", "--conn", "{connection_file}"],
        "display_name": "deno",
        "language": "typescript",
        "env": {"DENO_DIR": "/tmp/deno", "DENO_NO_UPDATE_CHECK": "1"},
    },
    "bash": {
        "argv": ["python", "-m", "bash_kernel", "-f", "{connection_file}"],
        "display_name": "bash",
        "language": "bash",
        "env": {"PS1": "$"},
    },
    "polite": {
        "argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "polite",
        "language": "python",
        "interrupt_mode": "message",
    },
    "missing": {"argv": ["/no/such/program"], "display_name": "missing", "language": "broken"},
    "portless": {"argv": ["sleep", "600"], "display_name": "portless", "language": "broken"},
}
_RECIPE = """
FROM {base}
USER 0
COPY context /tmp/context
RUN if [ -f /tmp/context/ca.crt ]; then export PIP_CERT=/tmp/context/ca.crt; fi \\
 && python3 -m pip install -q --no-cache-dir --root-user-action ignore deno==2.9.8 bash_kernel==0.10.0 \\
 && kernels=$(python3 -c 'import sys; print(sys.prefix)')/share/jupyter/kernels \\
 && mkdir -p "$kernels" && cp -r /tmp/context/kernels/. "$kernels" && rm -r /tmp/context
LABEL kernelexec-test=languages
"""


_STATIC = """
FROM {base} AS built
USER 0
RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends busybox-static \\
 && mkdir -p /small/bin && cp /bin/busybox /small/bin && /bin/busybox --install -s /small/bin \\
 && ln -sf busybox /small/bin/busybox.static && for name in /small/bin/*; do \\
      if [ -L "$name" ]; then ln -sf /bin/busybox "$name"; fi; done
FROM scratch
COPY --from=built /small /
LABEL kernelexec-test=static
"""


def language_image(base: str) -> str:
    """The name of the image; it is built where the engine has none of just these contents."""
    files = {f"kernels/{name}/kernel.json": json.dumps(spec).encode() for name, spec in _SPECS.items()}
    if _AUTHORITIES.exists():
        files["ca.crt"] = _AUTHORITIES.read_bytes()
    return _built("languages", _RECIPE, base, files)


def static_image(base: str) -> str:
    """The name of an image that has a shell and its commands in one static program, and no Python and no C library."""
    return _built("static", _STATIC, base, {})


def _built(name: str, recipe: str, base: str, files: dict[str, bytes]) -> str:
    with Engine() as engine:
        content = json.dumps([recipe, _SPECS, str(engine.api.inspect_image(base)["Id"])])
        image = f"kernelexec-test/{name}:{hashlib.sha256(content.encode()).hexdigest()[:16]}"
        if engine.api.images(image):
            return image
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "Dockerfile").write_text(recipe.format(base=base))
        (Path(directory) / "context").mkdir()
        for path, written in files.items():
            target = Path(directory) / "context" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(written)
        command = ["docker", "build", "-q", "--network", "host", "-t", image, directory]
        environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, check=False)
        assert done.returncode == 0, done.stderr
    return image
