"""What can be chosen of the launch of a kernel; each class has the values that are tried, and no others are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self


@dataclass(frozen=True)
class LaunchSettings:
    """Settings of one launch."""

    CHOICES: ClassVar[Mapping[str, tuple[int, ...]]]

    def with_given(self, given: Mapping[str, Any]) -> Self:
        """These settings with those of a file. Raises ValueError for a name or value that is not among the choices."""
        for name, value in given.items():
            if type(value) is not int or value not in self.CHOICES.get(name, ()):
                raise ValueError(f"{name:.40} = {value!r:.40} is not one of {self.CHOICES.get(name, ())}")
        return replace(self, **given)

    def neighbours(self) -> Iterator[Self]:
        """Settings that differ in one value."""
        for field in fields(self):
            for value in self.CHOICES[field.name]:
                if value != getattr(self, field.name):
                    yield replace(self, **{field.name: value})


@dataclass(frozen=True)
class RowSettings(LaunchSettings):
    """Of a product of one row. outputs: of a program. inputs: inputs, or words of codes, that it reads at a time, of
    each of its outputs.
    """

    CHOICES: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "outputs": (1, 2, 4, 8),
        "inputs": (256, 512, 1024, 2048, 4096),
        "warps": (2, 4, 8),
    }

    outputs: int
    inputs: int
    warps: int = 4


@dataclass(frozen=True)
class TileSettings(LaunchSettings):
    """Of a product of several rows with codes. outputs: of a program. words: of each output that it reads at a time.
    programs: over which the splits of a matrix's words are divided.
    """

    CHOICES: ClassVar[Mapping[str, tuple[int, ...]]] = {
        "outputs": (32, 64, 128),
        "words": (16, 32, 64),
        "warps": (2, 4, 8),
        "stages": (2, 3, 4, 5),
        "programs": (132, 264, 528, 1056),
    }

    outputs: int
    words: int
    warps: int
    stages: int
    programs: int


@dataclass(frozen=True)
class AttentionSettings(LaunchSettings):
    """Of attention. n: keys at a time. ahead: how many times n keys are being read while others are used."""

    CHOICES: ClassVar[Mapping[str, tuple[int, ...]]] = {"n": (16, 32, 64, 128), "warps": (2, 4, 8), "ahead": (1, 2, 3)}

    n: int
    warps: int
    ahead: int
