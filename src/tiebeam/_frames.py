"""Results as pandas DataFrames: `report.to_frame()` where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.errors import MissingExtra

if TYPE_CHECKING:
    import pandas


def frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pandas.DataFrame:
    """One row per mapping; the columns are there even if there are no rows."""
    try:
        import pandas
    except ImportError:
        raise MissingExtra("to_frame()", "frames") from None
    return pandas.DataFrame.from_records([[row.get(name) for name in columns] for row in rows], columns=list(columns))
