import contextlib
import os
from pathlib import Path

import pytest

from modules.session.log_file import log_file
from modules.session.TerminalCallbacks import TerminalCallbacks


def test_a_line_is_on_the_disk_at_once_and_earlier_ones_stay(tmp_path):
    for line in ("first", "second \udcff"):
        with log_file(tmp_path / "log") as file:
            print(line, file=file)
            assert (tmp_path / "log").read_text().endswith(f"{line}\n".replace("\udcff", "\\udcff"))
    assert (tmp_path / "log").read_text().startswith("first\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
def test_a_full_disk_fails_neither_the_lines_nor_the_end():
    with log_file(Path("/dev/full")) as file:
        TerminalCallbacks(file).on_status("a line that is lost")
        with contextlib.suppress(OSError):
            file.write("as is this\n")
