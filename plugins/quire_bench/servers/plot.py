"""Draws curves into an image file. Needs matplotlib, which is an extra."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quire.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Panel:
    """One pair of axes: y values by label of the curve. log: a logarithmic y axis."""

    label: str
    curves: dict[str, Sequence[float]]
    log: bool = False


@dataclass(frozen=True)
class Picture:
    """Panels over the same x values."""

    title: str
    x_label: str
    x: Sequence[float]
    panels: Sequence[Panel]

    def save(self, file: Path) -> None:
        """Draws into a file that `picture_file` has checked. Raises ConfigError if it cannot be written."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.6 * len(self.panels), 4.2), layout="constrained")
        figure.suptitle(self.title)
        for axes, panel in zip(figure.subplots(1, len(self.panels), squeeze=False)[0], self.panels, strict=True):
            self._draw(axes, panel)
        try:
            figure.savefig(file, dpi=144)
        except OSError as error:
            raise ConfigError(f"--plot {file} cannot be written: {error.strerror}.") from error

    def _draw(self, axes: Axes, panel: Panel) -> None:
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

        for label, y in panel.curves.items():
            axes.plot(self.x, y, marker="o", label=label)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(panel.label)
        axes.set_xlim(left=0)
        if panel.log:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(bottom=0)
        axes.grid(True, alpha=0.3)
        if len(panel.curves) > 1:
            axes.legend()


def picture_file(text: str) -> Path:
    """The name of an image file, checked before the measurement."""
    file = Path(text)
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        needs = "needs matplotlib, which is not installed: pip install matplotlib"
        raise argparse.ArgumentTypeError(needs) from error
    known = sorted(FigureCanvasBase.get_supported_filetypes())
    if file.suffix.lstrip(".").lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} must end with one of {', '.join('.' + name for name in known)}")
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: there is no folder {str(file.parent)!r}")
    return file
