"""The format's page: up to date, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedande_mpi.formatpage import EXAMPLE, format_markdown
from fedande_mpi.results import write_cell
from fedande_mpi.schema import DIMENSIONS, FIELDS, SIDECAR_DIMENSIONS, SIDECAR_FIELDS
from tests.result_files import filled, info, save_sidecar

PAGE = Path(__file__).resolve().parent.parent / "docs" / "format.md"
HEADINGS, EXAMPLES = zip(
    *[
        (section.partition("\n")[0], code)
        for section in re.split(r"^#+ ", format_markdown(), flags=re.MULTILINE)
        for code in re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    ],
    strict=True,
)


def test_the_page_is_up_to_date():
    command = "from fedande_mpi.formatpage import format_markdown as f; print(f(), end='')"
    assert PAGE.read_text(encoding="utf-8") == format_markdown(), (
        f'run: python -c "{command}" > docs/format.md'
    )


def test_the_page_opens_with_a_listing():
    opening = format_markdown().split("```")[1]
    for field in FIELDS:
        assert re.search(rf"^{field.path} +Dataset {{{', '.join(field.dims)}}}$", opening, re.MULTILINE)


def test_there_is_an_example_for_each_way_of_reading():
    assert len(EXAMPLES) == 6
    for library in ("h5py", "xarray", "open_results", "read_sidecar", "open_tree", "merge"):
        assert any(library in code for code in EXAMPLES)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cell = filled(info(name=EXAMPLE))
    if number >= 3:  # sidecars come later in the page, and netCDF programs cannot follow the links
        save_sidecar(Path(), cell, 0, 0)
    write_cell(Path(), cell)
    exec(compile(EXAMPLES[number], f"docs/format.md: {HEADINGS[number]}", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_fields_are_well_formed():
    for fields, dimensions in ((FIELDS, DIMENSIONS), (SIDECAR_FIELDS, SIDECAR_DIMENSIONS)):
        names = {dim.name for dim in dimensions}
        assert len({field.path for field in fields}) == len(fields)
        for field in fields:
            assert set(field.dims) <= names
            # xarray takes these words for time spans and warns.
            assert field.units not in ("days", "hours", "minutes", "seconds", "milliseconds")
            assert field.description
