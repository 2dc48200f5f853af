"""How functions are compiled: once for Python, and as a part of compiled functions that call them."""

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
