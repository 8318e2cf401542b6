"""stdout and stderr of a run that outlives whoever reads them: a terminal that is closed, a pipe that is broken."""

from __future__ import annotations

import io
import os
import sys


def outlast_readers() -> None:
    """From now on what nobody takes any more from stdout and stderr is lost, and is no error.

    Everything writes there: callbacks, progress bars of libraries, warnings. None of that is worth the end of a run.
    """
    if os.name != "posix":  # a console of Windows is no file, and ends the process with it
        return
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # not what somebody has put in its place, who may want to know
        if stream is getattr(sys, f"__{name}__") and not isinstance(stream, LastingStream):
            setattr(sys, name, LastingStream(stream))


class LastingStream(io.TextIOWrapper):
    """Writes what `stream` would; where that fails, the text is lost. `stream` must live as long as this one."""

    def __init__(self, stream: io.TextIOWrapper):
        super().__init__(
            stream.buffer,
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)
        except ValueError:
            if not self.closed:
                raise
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            pass
        except ValueError:
            if not self.closed:
                raise
