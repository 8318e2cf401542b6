"""What can be the address of a machine."""

import re

_ADDRESS = re.compile(r"[\w.:%\[\]-]+")  # a host name, or an IP address, with or without a zone


def why_no_address(text: str) -> str:
    """Why nobody can be reached at `text`, with the remedy; "" for what looks like a host name or an IP address."""
    if _ADDRESS.fullmatch(text):
        return ""
    return "it is not a host name or IP address; write that of machine 0, such as 10.0.0.1, as the others reach it."
