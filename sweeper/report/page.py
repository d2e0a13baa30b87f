"""The page that every figure is drawn on: palette, fonts, title, caption, legend; and a figure as a file's bytes.

Figures are made without pyplot, so nothing is kept open and no window system is asked for.  Colours are of Okabe and
Ito's palette (Color Universal Design, 2008), which people with colour-blindness tell apart.  Margins are fixed and the
legend lies outside the axes, so text cannot run into text whatever the numbers are.
"""

import io
import textwrap
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from sweeper.report.words import printable
from sweeper.trial import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLACK",
    "BLUE",
    "GREEN",
    "KINDS",
    "ORANGE",
    "VERMILLION",
    "drawable",
    "house_style",
    "legend",
    "new_page",
    "render",
    "shorten",
]

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"

# Kinds from the bottom of a bar to its top: first what stays whatever the batch is.
KINDS: tuple[tuple[Kind, str, str], ...] = (
    ("weights", BLUE, ""),
    ("buffers", BLACK, ""),
    ("gradients", SKY, "//"),
    ("optimizer", GREEN, "\\\\"),
    ("inputs", YELLOW, ".."),
    ("activations", ORANGE, ""),
    ("workspace", PURPLE, "xx"),
)

# A user's matplotlibrc must not change a run's files: everything drawn with goes back to matplotlib's defaults, then to
# these.  With TeX or mathtext on, a model's name would be typeset.
_STYLED = ("axes.", "figure.", "font.", "grid.", "hatch.", "legend.", "lines.", "patch.", "path.", "savefig.", "svg.",
           "text.", "xaxis.", "xtick.", "yaxis.", "ytick.")  # fmt: skip
_HOUSE = {
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "svg.fonttype": "none",
    "svg.hashsalt": "sweeper",
    "hatch.linewidth": 0.6,
    "axes.unicode_minus": False,
}
_HEIGHT, _LEFT, _RIGHT = 5.2, 0.92, 0.24  # inches: of the page, and of what lies left and right of the axes


def render(figure: "Figure", form: Literal["png", "svg"], *, dpi: int = 150) -> bytes:
    """Return ``figure`` as a file's bytes; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with house_style():
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(buffer, format=form, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


def house_style() -> AbstractContextManager[Any]:
    import matplotlib

    style: Any = {name: value for name, value in matplotlib.rcParamsDefault.items() if name.startswith(_STYLED)}
    style.update(_HOUSE)
    return matplotlib.rc_context(style)


def new_page(
    subject: str, headline: str, caption: str | None, stamp: str | None, *, width: float = 8
) -> "tuple[Figure, Axes]":
    """Axes under two lines of title, a caption below, the word ``stamp`` behind them; ``width`` is inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    figure = Figure(figsize=(width, _HEIGHT), facecolor="white")
    FigureCanvasAgg(figure)
    left = _LEFT / width
    axes = figure.add_axes((left, 0.185, 1 - left - _RIGHT / width, 0.63), facecolor="white")
    room = (1 - left - 0.12 / width) * figure.bbox.width
    for text, up, size, weight in ((subject, 0.955, 10.0, "normal"), (headline, 0.91, 13.0, "bold")):
        title = figure.text(left, up, drawable(text), fontsize=size, fontweight=weight, va="center")
        if (wide := title.get_window_extent().width) > room:
            title.set_fontsize(size * room / wide)
    if caption:
        wrapped = textwrap.fill(drawable(caption), int(14 * width))
        figure.text(left, 0.015, wrapped, fontsize=8, va="bottom", color="#333333")
    if stamp is not None:
        axes.text(
            0.5, 0.5, stamp, transform=axes.transAxes, ha="center", va="center",
            fontsize=44, color="#E8E8E8", rotation=20, zorder=0,
        )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=9))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return figure, axes


def drawable(text: str) -> str:
    """``text`` with the characters that the font does not have written as escapes; matplotlib would warn and box."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    known = get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap()
    escaped = (c if ord(c) in known else c.encode("unicode_escape").decode() for c in printable(text))
    return "".join(escaped)


def shorten(name: str, length: int) -> str:
    """The ends of a long name: a path's file and factory are at its end."""
    return name if len(name) <= length else f"{name[: length // 4]}...{name[-(length - length // 4 - 3) :]}"


def legend(figure: "Figure", axes: "Axes", *, columns: int = 4) -> None:
    """All in one row where that is ``columns`` and one at most, else in rows of ``columns``."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=((_LEFT - 0.08) / figure.get_figwidth(), 0.895),
        ncols=len(labels) if len(labels) <= columns + 1 else columns, frameon=False, fontsize=8, columnspacing=1.2,
        handlelength=2.4, borderaxespad=0.2,
    )  # fmt: skip
