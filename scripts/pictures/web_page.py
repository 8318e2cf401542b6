"""The picture of the web page of a run, as a phone shows it: python scripts/pictures/web_page.py RUN_FOLDER [PICTURE]

Chromium makes it, which is no package of Python: `chromium` has to be found on the PATH.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from modules.config.installation import ROOT
from modules.page.access import Access, new_token
from modules.page.page_html import run_path
from modules.page.PageServer import PageServer

PICTURE = ROOT / "docs" / "images" / "web_page.png"
WIDTH, HEIGHT, SCALE = 500, 1040, 2  # Chromium has no narrower window
LOAD_MILLISECONDS = 10_000


def main() -> None:
    run, picture = Path(sys.argv[1]).resolve(), Path(sys.argv[2] if len(sys.argv) > 2 else PICTURE)
    token = new_token()
    with PageServer("127.0.0.1", 0, [run.parent], Access(token)) as server, tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}{run_path(0, run.name)}?token={token}"
        shot = Path(folder, "shot.png")
        options = (
            "--headless=new",
            "--no-sandbox",
            "--hide-scrollbars",
            f"--force-device-scale-factor={SCALE}",
            f"--window-size={WIDTH},{HEIGHT + 140}",  # of which the frame of the window takes some
            f"--user-data-dir={folder}/profile",
            f"--virtual-time-budget={LOAD_MILLISECONDS}",
            f"--screenshot={shot}",
        )
        subprocess.run(["chromium", *options, address], check=True, stderr=subprocess.DEVNULL)
        server.shutdown()
        _save(shot, picture)


def _save(shot: Path, picture: Path) -> None:
    """In the size of the other pictures, with few colors, which makes a small file."""
    from PIL import Image

    with Image.open(shot) as image:
        cut = image.convert("RGB").crop((0, 0, SCALE * WIDTH, SCALE * HEIGHT))
    cut.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).quantize(128).save(picture, optimize=True)


if __name__ == "__main__":
    main()
