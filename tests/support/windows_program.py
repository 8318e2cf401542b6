"""A small Windows program that says how it was started: a stand-in for python.exe where no compiler is at hand."""

from __future__ import annotations

import struct

IMAGE_BASE, SECTION_RVA, HEADER_BYTES, SECTION_BYTES = 0x140000000, 0x1000, 0x200, 0x1000
FUNCTIONS = ("GetStdHandle", "GetCommandLineW", "GetCurrentDirectoryW", "WriteFile", "ExitProcess")
BUFFER_CHARACTERS = 512

# Where things lie in the section, which is code and data in one.
CODE, IMPORTS, ADDRESSES, NAMES, NEWLINE, BUFFER = 0, 0x200, 0x280, 0x300, 0x3F0, 0x400


def telling_program(exit_code: int) -> bytes:
    """A 64-bit program that writes its command line and its folder to standard output and ends with `exit_code`.

    Each is a line in UTF-16, little-endian, with a line feed.
    """
    section = bytearray(SECTION_BYTES)
    code = _code(exit_code)
    section[CODE : CODE + len(code)] = code
    names, places = _names()
    section[NAMES : NAMES + len(names)] = names
    table = struct.pack(f"<{len(places)}QQ", *places, 0)
    section[ADDRESSES : ADDRESSES + len(table)] = table
    # one library: no lookup table of its own, no time stamp, no forwarder, its name, the table that the loader fills
    entry = struct.pack("<5I", 0, 0, 0, SECTION_RVA + NAMES, SECTION_RVA + ADDRESSES)
    section[IMPORTS : IMPORTS + len(entry)] = entry
    section[NEWLINE : NEWLINE + 4] = "\n\0".encode("utf-16-le")
    return _headers().ljust(HEADER_BYTES, b"\0") + bytes(section)


def _code(exit_code: int) -> bytes:
    """x64 with the calling convention of Windows; rbx: standard output, rsi: the text for `write`."""
    code = bytearray()
    writes: list[int] = []  # where a call to `write` waits for its address

    def relative(operation: str, place: int) -> None:
        code.extend(bytes.fromhex(operation))
        code.extend(struct.pack("<i", place - (len(code) + 4)))

    def call(name: str) -> None:
        relative("ff15", ADDRESSES + 8 * FUNCTIONS.index(name))  # call [rip + ...]

    def write() -> None:
        writes.append(len(code) + 1)
        relative("e8", 0)

    code.extend(bytes.fromhex("4883ec48"))  # sub rsp, 0x48
    code.extend(bytes.fromhex("b9f5ffffff"))  # mov ecx, STD_OUTPUT_HANDLE
    call("GetStdHandle")
    code.extend(bytes.fromhex("4889c3"))  # mov rbx, rax
    call("GetCommandLineW")
    code.extend(bytes.fromhex("4889c6"))  # mov rsi, rax
    write()
    relative("488d35", NEWLINE)  # lea rsi, [rip + ...]
    write()
    code.extend(b"\xb9" + struct.pack("<I", BUFFER_CHARACTERS))  # mov ecx, ...
    relative("488d15", BUFFER)  # lea rdx, [rip + ...]
    call("GetCurrentDirectoryW")
    relative("488d35", BUFFER)
    write()
    relative("488d35", NEWLINE)
    write()
    code.extend(b"\xb9" + struct.pack("<I", exit_code))
    call("ExitProcess")
    for place in writes:
        code[place : place + 4] = struct.pack("<i", len(code) - (place + 4))
    code.extend(bytes.fromhex("4883ec38 4889f2 4531c0"))  # sub rsp, 0x38; mov rdx, rsi; xor r8d, r8d
    # until word [rsi + r8] is 0: add r8, 2
    code.extend(bytes.fromhex("6642833c0600 7406 4983c002 ebf2"))
    # mov rcx, rbx; lea r9, [rsp + 0x30]; mov qword [rsp + 0x20], 0
    code.extend(bytes.fromhex("4889d9 4c8d4c2430 48c744242000000000"))
    call("WriteFile")
    code.extend(bytes.fromhex("4883c438 c3"))  # add rsp, 0x38; ret
    return bytes(code)


def _names() -> tuple[bytes, list[int]]:
    """The names of the library and its functions, and where the latter lie when loaded."""
    names, places = bytearray(b"kernel32.dll\0\0"), []
    for name in FUNCTIONS:
        places.append(SECTION_RVA + NAMES + len(names))
        names += b"\0\0" + name.encode() + b"\0"
        names += b"\0" * (len(names) % 2)
    return bytes(names), places


def _headers() -> bytes:
    dos = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40)
    # x64, one section, an optional header of 240 bytes; executable, large addresses
    file = b"PE\0\0" + struct.pack("<HHIIIHH", 0x8664, 1, 0, 0, 0, 240, 0x22)
    optional = struct.pack("<HBBIIIII", 0x20B, 14, 0, SECTION_BYTES, 0, 0, SECTION_RVA + CODE, SECTION_RVA)
    optional += struct.pack("<QII", IMAGE_BASE, 0x1000, HEADER_BYTES)
    optional += struct.pack("<HHHHHHI", 6, 0, 0, 0, 6, 0, 0)
    optional += struct.pack("<IIIHH", SECTION_RVA + SECTION_BYTES, HEADER_BYTES, 0, 3, 0)  # 3: in a terminal
    optional += struct.pack("<QQQQII", 0x100000, 0x1000, 0x100000, 0x1000, 0, 16)
    directories = struct.pack("<II", 0, 0) + struct.pack("<II", SECTION_RVA + IMPORTS, 40)
    places = (SECTION_BYTES, SECTION_RVA, SECTION_BYTES, HEADER_BYTES)
    section = struct.pack("<8sIIIIIIHHI", b".text", *places, 0, 0, 0, 0, 0xE0000060)  # code, to be written in too
    return dos + file + optional + directories.ljust(16 * 8, b"\0") + section
