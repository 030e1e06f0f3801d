"""BTF made by hand, for tests of what reads it (Documentation/bpf/btf.rst)."""

import struct

_INT, _ARRAY, _STRUCT, _UNION, _VAR, _DATASEC = 1, 3, 4, 5, 14, 15
_MAGIC = 0xEB9F


class Types:
    """Types, numbered from 1 in the order in which they are added."""

    def __init__(self) -> None:
        """Begin with none."""
        self._types: list[bytes] = []
        self._sizes = [0]
        self._strings = b"\0"

    def integer(self, size: int) -> int:
        """Add an integer; `size` is in bytes."""
        return self._add("int", _INT, 0, size, struct.pack("<I", size * 8))

    def array(self, element: int, count: int) -> int:
        """Add an array of so many elements."""
        number = self._add("", _ARRAY, 0, 0, struct.pack("<3I", element, element, count))
        self._sizes[number] = self._sizes[element] * count
        return number

    def struct(self, name: str, members: list[tuple[str, int]], *, union: bool = False) -> int:
        """Add a struct of members one after the other, or a union; a member without a name is a struct or union."""
        content, offset = b"", 0
        for member, kind in members:
            content += struct.pack("<3I", self._string(member), kind, offset * 8)
            offset += 0 if union else self._sizes[kind]
        size = max((self._sizes[kind] for _, kind in members), default=0) if union else offset
        return self._add(name, _UNION if union else _STRUCT, len(members), size, content)

    def section(self, name: str, variables: list[tuple[str, int, int]]) -> int:
        """Add a section of variables: name, type, and the offset in bytes."""
        content = b""
        for variable, kind, offset in variables:
            number = self._add(variable, _VAR, 0, kind, struct.pack("<I", 0))
            content += struct.pack("<3I", number, offset, self._sizes[kind])
        return self._add(name, _DATASEC, len(variables), 0, content)

    def data(self) -> bytes:
        """Return the content of a section `.BTF`."""
        types, header = b"".join(self._types), 24
        places = (0, len(types), len(types), len(self._strings))
        return struct.pack("<HBB5I", _MAGIC, 1, 0, header, *places) + types + self._strings

    def size(self, number: int) -> int:
        """Return the size of a type, bytes."""
        return self._sizes[number]

    def _add(self, name: str, kind: int, count: int, size: int, content: bytes) -> int:
        self._types.append(struct.pack("<3I", self._string(name), kind << 24 | count, size) + content)
        self._sizes.append(size)
        return len(self._types)

    def _string(self, text: str) -> int:
        if not text:
            return 0
        at = len(self._strings)
        self._strings += text.encode() + b"\0"
        return at
