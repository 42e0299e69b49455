"""Output on disk: a quota cut at characters, pages that cover everything once, lines found by a pattern, full disks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHILD = """
import resource, sys
from pathlib import Path
from kernelexec.workspace import SpillFile
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
spill = SpillFile(Path(sys.argv[1]), 1000)
for piece in ("\u65e5\u65e5", "\u65e5\u65e5", "\u65e5"):
    spill.write(piece)
spill.close()
text, offset = "", 0
while offset is not None:
    page = spill.page(offset, 4, 15)
    text, offset = text + page.text, page.next_offset
print(ascii((spill.failed, spill.stored_bytes, text, spill.grep(".", 0, 100, 15).next_offset)))
"""


def test_a_full_disk_ends_the_writing_and_what_is_there_can_be_read(tmp_path: Path) -> None:
    reported = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path / "s")], capture_output=True, text=True, check=True)
    assert reported.stdout.strip() == ascii((True, 10, "\u65e5" * 3, None))
