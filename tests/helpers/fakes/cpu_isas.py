"""The instruction sets that the C++ ops are tested with: those of this machine, if it has a compiler."""

from quire_kernels.cpu import build, isa

HERE = {found.name: found for found in isa.available()} if build.compiler() else {}

WITHOUT_TILES = {name: found for name, found in HERE.items() if not found.tiles}
"""Those that keep matrices compact."""
