"""What is inside a bzImage: its release, and the ELF kernel that QEMU can enter directly.

Entering the ELF file (PVH) spares the guest its own decompression, some seconds of wall time a boot.
Formats: Documentation/arch/x86/boot.rst; arch/x86/boot/header.S; Xen's docs/misc/pvh.markdown.
"""

import gzip
import io
import lzma
import struct
from collections.abc import Callable

import zstandard
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import NoteSegment

from heddle_lab.errors import HeddleError

_PVH_ENTRY = 18
"""XEN_ELFNOTE_PHYS32_ENTRY"""


def release(image: bytes, name: str) -> str:
    """Return what `uname -r` will say.

    Args:
        image: the file's content.
        name: the file's name, for the error.

    Raises:
        HeddleError: it is no bzImage.
    """
    if image[0x202:0x206] != b"HdrS":
        raise HeddleError(f"{name}: not an x86 bzImage")
    (offset,) = struct.unpack_from("<H", image, 0x20E)
    text = image[0x200 + offset : 0x200 + offset + 256]
    return text.split(b"\0", 1)[0].split(b" ", 1)[0].decode("ascii", "replace")


def pvh_kernel(image: bytes) -> bytes | None:
    """Return the ELF kernel of a bzImage, none if it is packed in an unknown way or has no PVH entry."""
    kernel = _unpack(_payload(image))
    return kernel if kernel and _has_pvh_entry(kernel) else None


def _payload(image: bytes) -> bytes:
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    return image[(sectors + 1) * 512 + offset :][:length]


def _unpack(payload: bytes) -> bytes | None:
    # The build appends the unpacked size, which is no part of the compressed stream.
    packers: dict[bytes, Callable[[bytes], bytes]] = {
        b"\x28\xb5\x2f\xfd": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
        b"\x1f\x8b": lambda data: gzip.GzipFile(fileobj=io.BytesIO(data)).read(int.from_bytes(data[-4:], "little")),
        b"\xfd7zXZ\0": lambda data: lzma.LZMADecompressor().decompress(data),
    }
    for magic, unpack in packers.items():
        if payload.startswith(magic):
            return unpack(payload)
    return None


def _has_pvh_entry(kernel: bytes) -> bool:
    try:
        return any(
            str(note["n_name"]) == "Xen" and int(note["n_type"]) == _PVH_ENTRY
            for segment in ELFFile(io.BytesIO(kernel)).iter_segments("PT_NOTE")
            if isinstance(segment, NoteSegment)
            for note in segment.iter_notes()
            if str(note["n_type"]).isdigit()  # known types of other owners have names here
        )
    except ELFError:
        return False
