"""Scenarios of dictionaries, files and texts, and their errors."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import sluice


def test_dictionaries_files_and_texts_are_equal(scenario: dict[str, Any], tmp_path: pathlib.Path) -> None:
    parsed = sluice.Scenario(scenario)
    assert (parsed.title, parsed.drives, parsed.paths) == ("mixed", ["drive0"], ["drive0"])
    assert parsed.file is None
    file = tmp_path / "a.toml"
    file.write_text(parsed.text)
    for source in (file, str(file), parsed.text):
        again = sluice.Scenario(source)
        assert (again.text, again.drives, again.seed) == (parsed.text, parsed.drives, parsed.seed)
    assert sluice.Scenario(file).file == file


def test_numbers_of_numpy_and_paths_are_values(tmp_path: pathlib.Path) -> None:
    drive = {"preset": "femu-default", "geometry": {"chunks": np.int32(16)}, "data": "file", "path": tmp_path / "d"}
    text = sluice.Scenario({"drive": drive}).text
    assert "chunks = 16" in text and str(tmp_path / "d") in text


def test_a_wrong_key_names_the_nearest() -> None:
    with pytest.raises(sluice.ScenarioError, match="no key `presett`") as raised:
        sluice.Scenario({"drive": {"presett": "femu-default"}})
    error = raised.value
    assert error.line == 2 and error.column == 1
    assert error.help is not None and error.help.startswith("did you mean `preset`?")
    assert isinstance(error, ValueError)


def test_an_error_of_a_file_has_its_path_and_line(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('[drive]\npreset = "femu-defualt"\n')
    with pytest.raises(sluice.ScenarioError) as raised:
        sluice.open(file)
    assert (raised.value.file, raised.value.line) == (file, 2)
    with pytest.raises(sluice.ScenarioError) as raised:
        sluice.Scenario(tmp_path / "missing.toml")
    assert (raised.value.file, raised.value.line) == (tmp_path / "missing.toml", None)
    with pytest.raises(sluice.ScenarioError, match="not valid TOML"):
        sluice.Scenario("drive = [")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"drive": {"preset": {1, 2}}}, "drive.preset: .* and no set"),
        ({"drive": {"preset": None}}, "drive.preset: .* and no NoneType"),
        ({"job": [{"bs": b"4k"}]}, r"job\[0\].bs: .* and no bytes"),
        ({1: 2}, "keys of a scenario are strings"),
        (7, "a scenario is a dict, a path or TOML text, and no int"),
        (None, "and no NoneType"),
    ],
)
def test_a_wrong_type_names_its_key(source: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        sluice.Scenario(source)


def test_values_outside_of_toml_are_refused() -> None:
    with pytest.raises(ValueError, match="seed: integers of a scenario have 64 bits"):
        sluice.Scenario({"seed": 1 << 70})
    nested: dict[str, Any] = {}
    nested["drive"] = nested
    with pytest.raises(ValueError, match="nested more than 32 levels"):
        sluice.Scenario(nested)
    with pytest.raises(sluice.ScenarioError, match="cannot be"):
        sluice.Scenario({"drive": {"preset": "femu-default", "geometry": {"chunks": "many"}}})
