"""How functions are compiled: once for Python, and as a part of compiled functions that call them."""

from pathlib import Path

from fedande_mpi import jit
from fedande_mpi.jit import compiled, inlined, is_cached


@inlined
def half(x: float) -> float:
    return 0.5 * x


@compiled
def middle(a: float, b: float) -> float:
    return a + half(b - a)


@compiled
def middle_of_middles(a: float, b: float, c: float) -> float:
    return middle(middle(a, b), middle(b, c))


def test_a_compiled_function_is_taken_in_by_its_callers_and_can_be_called_itself():
    assert middle_of_middles(0.0, 4.0, 8.0) == 4.0
    assert not middle.dispatcher.signatures  # no machine code of its own until Python calls it
    assert middle(1.0, 2.0) == 1.5
    assert len(middle.dispatcher.signatures) == 1
    assert middle.__name__ == "middle"


def test_machine_code_on_disk_is_found():
    assert middle(3.0, 5.0) == 4.0
    assert is_cached(middle)
    assert not is_cached(middle, half)


def test_machine_code_of_other_sources_is_removed_and_that_of_other_processors_is_not():
    assert middle(3.0, 5.0) == 4.0
    index = Path(middle.cache_file._index_path)
    older = index.with_name(index.name.replace(jit._source_stamp(), "0123456789abcdef"))
    elsewhere = index.with_name(index.name.replace(jit._processor(), "01234567"))
    assert len({index, older, elsewhere}) == 3
    for path in (older, elsewhere):
        path.touch()
    jit.forget_older()
    found = older.exists(), elsewhere.exists()
    elsewhere.unlink()
    assert found == (False, True)
    assert is_cached(middle)


def test_a_name_without_its_file_is_not_machine_code_on_disk():
    """As a kill leaves it; what should be there is put there."""
    assert middle(3.0, 5.0) == 4.0
    (name,) = middle.cache_file._load_index().values()
    path = Path(middle.cache_file._data_path(name))
    content = path.read_bytes()
    path.unlink()
    try:
        assert not is_cached(middle)
    finally:
        path.write_bytes(content)
    assert is_cached(middle)
