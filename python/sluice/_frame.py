"""`Frame`: a table of numpy columns."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


def _optional(module: str, method: str) -> Any:
    """Imports a package that only one method needs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = {"pyarrow": "arrow"}.get(module, module)
        raise ImportError(
            f"Frame.{method}() needs {module}: pip install {module}, or sluice[{extra}]"
        ) from error


class Frame:
    """A table of numpy columns of equal length, in a fixed order.

    >>> frame = Frame({"job": np.array(["a", "b"]), "ios": np.array([1, 2])})
    >>> frame["ios"].sum()
    np.int64(3)
    >>> frame.where(job="b")["ios"]
    array([2])
    >>> len(frame), frame.columns
    (2, ['job', 'ios'])
    """

    def __init__(self, columns: dict[str, NDArray[Any]]) -> None:
        if len({len(column) for column in columns.values()}) > 1:
            raise ValueError("columns of a frame have equal lengths")
        self._columns = dict(columns)

    @classmethod
    def _from_bytes(cls, columns: Iterable[tuple[str, str, bytes]]) -> Frame:
        """Makes a frame of (name, numpy type, bytes); the arrays are read-only views of the bytes."""
        return cls(
            {
                name: np.frombuffer(data, dtype) if data else np.empty(0, dtype)
                for name, dtype, data in columns
            }
        )

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def __len__(self) -> int:
        """Number of rows."""
        return len(next(iter(self._columns.values()), ()))

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names of the columns."""
        return iter(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Returns a column."""
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"no column {name!r}: {', '.join(self._columns)}") from None

    def where(self, **equal: object) -> Frame:
        """Returns the rows whose columns are equal to the given values."""
        keep = np.ones(len(self), dtype=bool)
        for name, value in equal.items():
            keep &= self[name] == value
        return Frame({name: column[keep] for name, column in self._columns.items()})

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """Returns the columns by name, without copying them."""
        return dict(self._columns)

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a pandas frame. Needs pandas."""
        frame: pandas.DataFrame = _optional("pandas", "to_pandas").DataFrame(self._columns)
        return frame

    def to_polars(self) -> polars.DataFrame:
        """Returns a polars frame. Needs polars."""
        frame: polars.DataFrame = _optional("polars", "to_polars").DataFrame(self._columns)
        return frame

    def to_arrow(self) -> pyarrow.Table:
        """Returns an Arrow table. Needs pyarrow."""
        return _optional("pyarrow", "to_arrow").table(self._columns)

    def __repr__(self) -> str:
        lines = [f"<sluice.Frame of {len(self)} rows>"]
        for name, column in self._columns.items():
            first = ", ".join(str(value) for value in column[:4])
            lines.append(f"  {name}: {first}{', ...' if len(column) > 4 else ''}")
        return "\n".join(lines)
