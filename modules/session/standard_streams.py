"""stdout and stderr of a run that outlives their reader, such as a closed terminal or a broken pipe."""

from __future__ import annotations

import io
import os
import sys


def outlast_readers() -> None:
    """From now on, output to stdout and stderr that can no longer be written is dropped without an error.

    Callbacks, libraries' progress bars and warnings all write there; none of them should end a run.
    """
    if os.name != "posix":  # a Windows console is not a file and ends its process when it is closed
        return
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # only the original stream: a replacement may want to see the error
        if stream is getattr(sys, f"__{name}__") and not isinstance(stream, LastingStream):
            setattr(sys, name, LastingStream(stream))


class LastingStream(io.TextIOWrapper):
    """Writes to `stream` and drops the text if that fails. `stream` must live as long as this object."""

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
