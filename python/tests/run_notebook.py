"""Executes a notebook: python run_notebook.py NOTEBOOK FOLDER. Fails if a cell does, or if it draws nothing."""

from __future__ import annotations

import sys

import nbformat
from nbclient import NotebookClient

path, folder = sys.argv[1:]
notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
if any(cell.get("outputs") for cell in notebook.cells):
    sys.exit(f"{path}: clear its outputs before committing it")
lines = sum(len(cell.source.splitlines()) for cell in notebook.cells if cell.cell_type == "code")
if lines > 20:
    sys.exit(f"{path}: {lines} lines of code, more than 20")
NotebookClient(notebook, timeout=120, resources={"metadata": {"path": folder}}).execute()
outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
if not any("image/png" in output.get("data", {}) for output in outputs):
    sys.exit(f"{path}: it draws no plot")
