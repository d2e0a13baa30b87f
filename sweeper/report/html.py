"""A run as a short piece of HTML for notebooks: the answer, the table, the figure.  Nothing outside it is loaded."""

import base64
from html import escape
from pathlib import Path

from sweeper import axes
from sweeper.record import Record
from sweeper.report import figures, words
from sweeper.report.job import described
from sweeper.report.text import columns

__all__ = ["short_form"]

_CELL = "padding:2px 10px;text-align:{align}"
_OUT_OF_MEMORY = "color:#B3261E;font-weight:bold"


def short_form(record: Record, folder: Path) -> str:
    """Return one ``<div>``; every name and message in it is escaped."""
    model, *choices = described(record.header.spec, record.axis)
    how, device = ", ".join(choices), words.device_label(record)
    title = escape(f"{words.printable(f'{model} ({how})')} on {device}")
    lines = [f"<p><strong>{escape(words.answer(record).text)}</strong><br>{title}</p>"]
    if proof := words.proof(record):
        lines.append(f"<p>{escape(proof)}</p>")
    if record.curve:
        lines.append(_table(record))
    notes = [f"<li>{escape(s.label)}: {escape(words.printable(s.text))}</li>" for s in words.statements(record)]
    if notes:
        lines.append(f"<ul>{''.join(notes)}</ul>")
    image = base64.b64encode(figures.render(figures.memory(record), "png", dpi=110)).decode()
    label = axes.words(record.axis).label
    alt = escape(f"peak memory against {words.printable(label)}: {words.headline(record)}", quote=True)
    lines.append(f'<img alt="{alt}" style="max-width:100%" src="data:image/png;base64,{image}">')
    lines.append(f"<p>{escape(words.printable(str(folder)))}</p>")
    return "<div>\n" + "\n".join(lines) + "\n</div>"


def _table(record: Record) -> str:
    found = columns(record)
    heads = "".join(f"<th>{escape(column.heading).replace(chr(10), '<br>')}</th>" for column in found)
    rows = []
    for point, cells in zip(record.curve, zip(*(column.cells for column in found), strict=True), strict=True):
        style = f' style="{_OUT_OF_MEMORY}"' if point.outcome == "oom" else ""
        cell_styles = (_CELL.format(align="left" if column.left else "right") for column in found)
        body = "".join(f'<td style="{s}">{escape(cell)}</td>' for s, cell in zip(cell_styles, cells, strict=True))
        rows.append(f"<tr{style}>{body}</tr>")
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
