"""Figures: the numbers in the lines, read from the axes; styles, gaps, ticks, files."""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import pytest

from fedande_mpi.cli import main
from fedande_mpi.curves import FIGURES, sheet
from fedande_mpi.drawing import bytes_text
from fedande_mpi.errors import ResultsError
from fedande_mpi.figures import draw, figure, image, plot
from fedande_mpi.measured import read_results
from fedande_mpi.panels import Sheet
from fedande_mpi.results import write_cell
from fedande_mpi.style import COLOURS
from tests.result_files import filled, info

CLIENTS = (5, 10, 50)
DATASETS = ("kr-vs-k", "car", "my-data")
SPREAD = 0.01  # of two repeats to either side of their mean
SD = SPREAD * np.sqrt(2)


def accuracy(dataset, n, method, scope, clients):
    """Accuracy at the last round, that no other cell has."""
    place = DATASETS.index(dataset) * 0.2 + n * 0.01 + (method != "generative") * 0.03 + 0.3
    return place + {"local": 0, "federated": 0.06, "centralised": 0.1}[scope] - clients / 2000


def save(directory, dataset, n, method, scope, clients, drop=0.05, **changes):
    """Write a cell of two repeats; every round before the last is worse by `drop`."""
    rounds = (0, 1, 2) if scope == "federated" and method != "generative" else (1,)
    model = ("NB" if n == 0 else f"A{n}DE") + ("" if method == "generative" else "-w")
    name = f"{dataset}_{model}_{method}_{scope}_{clients}_{changes.get('config_sha256', 'x')[:8]}"
    values = {"name": name, "dataset": dataset, "model": model, "n": n, "method": method, "scope": scope}
    values |= {"n_clients": clients, "rounds": rounds, "n_folds": 2, "config_sha256": name.ljust(64, "0")}
    cell = filled(info(**values | changes))
    shape = cell.arrays["/test/accuracy"].shape
    late = accuracy(dataset, n, method, scope, clients) - drop * np.arange(len(rounds))[::-1]
    repeat = np.array([-SPREAD, SPREAD])[: shape[0]]
    cell.arrays["/test/accuracy"][:] = late[None, None, :, None] + repeat[:, None, None, None]
    for way in ("down", "up"):
        cell.arrays[f"/communication/bytes_{way}"][:] = np.where(np.array(rounds) == 0, 0, 400 * clients)
    write_cell(directory, cell)
    return directory / f"{name}.h5"


def save_grid(directory, datasets=DATASETS, orders=(0, 1), scopes=("local", "federated"), clients=CLIENTS):
    methods = ("generative", "discriminative")
    for dataset, n, method in product(datasets, orders, methods):
        for scope, count in product(scopes, clients):
            save(directory, dataset, n, method, scope, count)
        save(directory, dataset, n, method, "centralised", 1)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    directory = tmp_path_factory.mktemp("grid")
    save_grid(directory)
    return read_results(directory)


def shown(results, name, dataset=None):
    return draw(sheet(results, name, dataset))


def drawn(axes):
    """Lines of models by label."""
    return {line.get_label(): line for line in axes.lines if line.get_label() != "ceiling"}


def mean(n, method, scope, clients, datasets=DATASETS):
    return np.mean([accuracy(dataset, n, method, scope, clients) for dataset in datasets])


# --- numbers -----------------------------------------------------------------------------------------------


def test_figure_1_has_means_over_data_sets_local_left_federated_right(results):
    axes = shown(results, "1").axes
    assert [each.get_title(loc="left") for each in axes] == ["local", "federated"]
    for each, scope in zip(axes, ("local", "federated"), strict=True):
        lines = drawn(each)
        assert set(lines) == {"NB", "NB-w", "A1DE", "A1DE-w"}
        for n, name in enumerate(("NB", "A1DE")):
            for method, suffix in (("generative", ""), ("discriminative", "-w")):
                x, y = lines[name + suffix].get_data()
                np.testing.assert_array_equal(x, CLIENTS)
                np.testing.assert_allclose(y, [mean(n, method, scope, count) for count in CLIENTS])
    assert axes[0].texts[0].get_text() == "mean over 3 data sets"


@pytest.mark.parametrize(("given", "heading"), [(None, "kr-vs-k"), ("car", "car")])
def test_figure_2_has_one_data_set_generative_left_discriminative_right(results, given, heading):
    left, right = shown(results, "2", given).axes
    assert left.texts[0].get_text() == heading
    assert (set(drawn(left)), set(drawn(right))) == ({"NB", "A1DE"}, {"NB-w", "A1DE-w"})
    for axes, label, method in ((left, "A1DE", "generative"), (right, "A1DE-w", "discriminative")):
        expected = [accuracy(heading, 1, method, "federated", count) for count in CLIENTS]
        np.testing.assert_allclose(drawn(axes)[label].get_ydata(), expected)


@pytest.mark.parametrize(
    ("name", "titles"), [("3", ["local", "federated"]), ("4", ["generative", "discriminative"])]
)
def test_figures_3_and_4_have_a_pair_for_each_data_set(results, name, titles):
    axes = shown(results, name).axes
    assert [each.get_title(loc="left") for each in axes] == titles * 3
    # The paper's data sets in its order, then others.
    assert [each.texts[0].get_text() for each in axes[::2]] == ["car", "kr-vs-k", "my-data"]
    for dataset, right in zip(("car", "kr-vs-k", "my-data"), axes[1::2], strict=True):
        expected = [accuracy(dataset, 0, "discriminative", "federated", count) for count in CLIENTS]
        np.testing.assert_allclose(drawn(right)["NB-w"].get_ydata(), expected)
    pairs = zip(axes[::2], axes[1::2], strict=True)
    assert all(left.get_ylim() == right.get_ylim() for left, right in pairs)


def test_convergence_has_every_round_at_the_smallest_and_the_largest_c(results):
    axes = shown(results, "convergence", "car").axes
    assert [each.get_title(loc="left") for each in axes] == ["C = 5", "C = 50"]
    for each, count in zip(axes, (5, 50), strict=True):
        x, y = drawn(each)["NB-w"].get_data()
        last = accuracy("car", 0, "discriminative", "federated", count)
        np.testing.assert_array_equal(x, [0, 1, 2])
        np.testing.assert_allclose(y, [last - 0.1, last - 0.05, last])
        assert drawn(each)["NB"].get_xdata().tolist() == [1]


def test_communication_adds_up_bytes_both_ways(results):
    right = shown(results, "communication", "car").axes[1]
    x, y = drawn(right)["A1DE-w"].get_data()
    last = accuracy("car", 1, "discriminative", "federated", 50)
    # Nothing is sent before round 1, and a logarithm has no place for that.
    np.testing.assert_array_equal(x, [np.nan, 40_000, 80_000])
    np.testing.assert_allclose(y[1:], [last - 0.05, last])
    assert drawn(right)["A1DE"].get_xdata().tolist() == [40_000]
    assert right.get_xscale() == "log"


def test_the_rounds_of_all_data_sets_are_drawn_by_default(results):
    assert len(shown(results, "convergence").axes) == len(shown(results, "communication").axes) == 6


def test_a_point_is_the_number_of_the_table(tmp_path):
    from fedande_mpi.reporting import table_rows

    cell = filled(info(scope="local", rounds=(1,)), units=[(0, 0), (0, 1), (1, 2)])  # an unfinished run
    write_cell(tmp_path, cell)
    save(tmp_path, "car", 1, "discriminative", "federated", 3)
    (point,) = (m for place, m in read_results(tmp_path).cells.items() if place.dataset == "tic-tac-toe")
    (row,) = (row for row in table_rows(tmp_path) if row["dataset"] == "tic-tac-toe")
    assert point.accuracy[point.last] == row["accuracy"]
    assert set(point.repeats) == {0}  # the other has fewer folds, which no spread should show


# --- spread, ceiling, gaps ---------------------------------------------------------------------------------


def test_bands_are_one_standard_deviation_over_repeats(results):
    left = shown(results, "2").axes[0]
    band = left.collections[0].get_paths()[0].vertices
    middle = accuracy("kr-vs-k", 0, "generative", "federated", 5)
    at = band[band[:, 0] == 5, 1]
    assert (at.min(), at.max()) == pytest.approx((middle - SD, middle + SD))


def test_a_point_alone_has_a_bar_for_a_band(results):
    found = bars(shown(results, "convergence", "car").axes[0])
    middle = accuracy("car", 0, "generative", "federated", 5)
    np.testing.assert_allclose(found[0], [[1, middle - SD], [1, middle + SD]])
    assert len(found) == 2  # NB and A1DE; the others have lines


def bars(axes):
    from matplotlib.collections import LineCollection

    found = [each for each in axes.collections if isinstance(each, LineCollection)]
    return [segment for each in found for segment in each.get_segments()]


def test_a_mean_over_data_sets_has_the_spread_of_its_repeats(results):
    (group,) = sheet(results, "1").groups
    # All data sets move alike from repeat to repeat, so their mean moves as far as each of them.
    np.testing.assert_allclose(group.panels[1].lines[0].sd, SD)


def test_a_single_repeat_has_no_band(tmp_path):
    save(tmp_path, "car", 0, "generative", "federated", 5, n_repeats=1)
    save(tmp_path, "car", 0, "generative", "local", 5, n_repeats=1)
    made = figure(tmp_path, "1")
    assert not any(axes.collections for axes in made.axes)
    assert "± sd over repeats" not in legend_texts(made)


def test_the_ceiling_is_the_best_centralised_model_of_the_panel(results):
    left, right = shown(results, "2").axes
    for axes, method in ((left, "generative"), (right, "discriminative")):
        (ceiling,) = (line for line in axes.lines if line.get_label() == "ceiling")
        best = accuracy("kr-vs-k", 1, method, "centralised", 1)
        np.testing.assert_allclose(ceiling.get_ydata(), [best, best])
        assert ceiling.get_linewidth() < drawn(right)["NB-w"].get_linewidth()


def test_without_centralised_cells_there_is_no_ceiling(tmp_path):
    save(tmp_path, "car", 0, "generative", "federated", 5)
    save(tmp_path, "car", 0, "generative", "local", 5)
    save(tmp_path, "car", 1, "generative", "centralised", 1)  # not a model of the panel
    made = figure(tmp_path, "3")
    assert [line.get_label() for axes in made.axes for line in axes.lines] == ["NB", "NB"]
    assert "centralised, best" not in legend_texts(made)


def test_a_missing_cell_is_a_gap(tmp_path):
    for count in (5, 20):
        save(tmp_path, "car", 0, "generative", "federated", count)
    for count in (5, 10, 20):
        save(tmp_path, "car", 0, "discriminative", "federated", count)
    left, right = figure(tmp_path, "2").axes
    x, y = drawn(left)["NB"].get_data()
    assert x.tolist() == [5, 10, 20]
    assert np.isnan(y).tolist() == [False, True, False]
    assert not np.isnan(drawn(right)["NB-w"].get_ydata()).any()


def test_a_round_that_was_not_evaluated_is_a_gap(tmp_path):
    cell = filled(info(dataset="car"))
    cell.arrays["/test/accuracy"][:, :, 1] = np.nan
    write_cell(tmp_path, cell)
    y = drawn(figure(tmp_path, "convergence").axes[0])["A1DE-w"].get_ydata()
    assert np.isnan(y).tolist() == [False, True, False]


def test_a_data_set_without_one_side_keeps_its_place(tmp_path):
    save(tmp_path, "car", 0, "generative", "federated", 5)
    save(tmp_path, "kr-vs-k", 0, "discriminative", "federated", 5)
    axes = figure(tmp_path, "4").axes
    assert [bool(drawn(each)) for each in axes] == [True, False, False, True]
    assert axes[1].texts[0].get_text() == "no results"


def test_means_take_only_data_sets_with_every_cell(tmp_path):
    save_grid(tmp_path, datasets=("car", "kr-vs-k"), orders=(0,), clients=(5, 50))
    gone = save(tmp_path, "my-data", 0, "generative", "local", 5)
    results = read_results(tmp_path)
    made = sheet(results, "1")
    assert made.groups[0].heading == "mean over 2 data sets"
    assert "my-data left out" in made.note
    expected = mean(0, "generative", "local", 5, ("car", "kr-vs-k"))
    assert made.groups[0].panels[0].lines[0].y[0] == pytest.approx(expected)
    gone.unlink()
    assert sheet(read_results(tmp_path), "1").note == ""


# --- looks -------------------------------------------------------------------------------------------------


def legend_texts(made):
    return [text.get_text() for legend in made.findobj(legend_class()) for text in legend.get_texts()]


def legend_class():
    from matplotlib.legend import Legend

    return Legend


def test_colour_and_marker_stand_for_n_dashes_for_the_method(tmp_path):
    for n, method in product((0, 1, 2), ("generative", "discriminative", "hybrid")):
        save(tmp_path, "car", n, method, "federated", 5)
    left, right = figure(tmp_path, "2").axes
    lines = drawn(left) | drawn(right)
    assert set(lines) == {
        f"{model}{kind}" for model in ("NB", "A1DE", "A2DE") for kind in ("", "-w", " hybrid")
    }
    for n, model in enumerate(("NB", "A1DE", "A2DE")):
        three = [lines[model], lines[f"{model}-w"], lines[f"{model} hybrid"]]
        assert {line.get_color() for line in three} == {COLOURS[n]}
        assert len({line.get_marker() for line in three}) == 1
        assert three[0].get_linestyle() == "-"
        # On and off: dashed has one dash, dash-dotted a dash and a dot.
        assert [len(line._unscaled_dash_pattern[1] or ()) for line in three] == [0, 2, 4]
    assert len({lines[model].get_marker() for model in ("NB", "A1DE", "A2DE")}) == 3
    assert right.get_title(loc="left") == "discriminative, hybrid"


def test_c_has_a_logarithmic_axis_with_its_very_ticks(results):
    for axes in shown(results, "1").axes:
        axes.figure.canvas.draw()
        assert axes.get_xscale() == "log"
        assert [text.get_text() for text in axes.get_xticklabels()] == ["5", "10", "50"]
        assert axes.get_xticks(minor=True).size == 0
        assert axes.get_xlim()[0] < 5 < 50 < axes.get_xlim()[1]


@pytest.mark.parametrize("name", FIGURES)
def test_it_fits_a_page_and_can_be_read(results, name):
    from matplotlib.text import Text

    made = shown(results, name)
    width, height = made.get_size_inches()
    assert width <= 7
    assert height <= 9
    assert all(text.get_fontsize() >= 7 for text in made.findobj(Text))
    renderer = made.canvas.get_renderer()
    for legend in made.findobj(legend_class()):
        box = legend.get_window_extent(renderer)
        assert 0 <= box.x0 < box.x1 <= made.bbox.x1


def test_twelve_data_sets_fit_a_page(results):
    content = sheet(results, "3")
    made = draw(Sheet("clients", content.groups * 4))
    assert len(made.axes) == 24
    assert made.get_size_inches()[1] <= 9


def test_a_full_legend_still_fits_one_column(tmp_path):
    for n, method in product(range(4), ("generative", "discriminative", "hybrid")):
        save(tmp_path, "car", n, method, "federated", 5)
    made = figure(tmp_path, "2")
    renderer = made.canvas.get_renderer()
    boxes = [legend.get_window_extent(renderer) for legend in made.findobj(legend_class())]
    assert all(0 <= box.x0 < box.x1 <= made.bbox.x1 for box in boxes)
    assert len(boxes) == 2
    assert not boxes[0].overlaps(boxes[1])


def test_a_long_name_loses_its_middle(tmp_path):
    name = "synthetic-" + "x" * 60 + "-the-end"
    cell = filled(info(dataset=name))
    write_cell(tmp_path, cell)
    heading = figure(tmp_path, "convergence").axes[0].texts[0].get_text()
    assert len(heading) < 41
    assert heading.startswith("synthetic-")
    assert heading.endswith("-the-end")


@pytest.mark.parametrize(
    ("value", "text"), [(500, "500 B"), (1e4, "10 kB"), (2e6, "2 MB"), (1e9, "1 GB"), (1e13, "10 TB")]
)
def test_bytes_are_short(value, text):
    assert bytes_text(value) == text


def test_the_users_settings_are_neither_used_nor_changed(results):
    import matplotlib

    expected = image(shown(results, "2"), "png")
    with matplotlib.rc_context({"font.size": 20, "axes.grid": False, "lines.linewidth": 9}):
        before = dict(matplotlib.rcParams)
        assert image(shown(results, "2"), "png") == expected
        assert dict(matplotlib.rcParams) == before


# --- files -------------------------------------------------------------------------------------------------

STARTS = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
ENDS = {"png": b"IEND\xaeB`\x82", "pdf": b"%%EOF\n", "svg": b"</svg>\n"}


@pytest.fixture
def small(tmp_path):
    save_grid(tmp_path / "in", datasets=("car",), orders=(0,), clients=(5,))
    return tmp_path / "in"


def test_all_figures_are_written_in_all_formats(small, tmp_path):
    made = plot(small, tmp_path / "new" / "figures", formats=["png, pdf", "svg"])
    stems = ["figure1", "figure2", "figure3", "figure4", "convergence", "communication"]
    assert [path.name for path in made.written] == [f"{stem}.{kind}" for stem in stems for kind in STARTS]
    assert (made.skipped, made.notes) == ([], [])
    for path in made.written:
        content = path.read_bytes()
        kind = path.suffix[1:]
        assert content.startswith(STARTS[kind])
        assert content.endswith(ENDS[kind])
    assert sorted(path.parent.iterdir()) == sorted(made.written)  # no temporaries


@pytest.mark.parametrize("kind", list(STARTS))
def test_the_same_results_give_the_same_bytes(results, kind):
    first, second = (image(draw(sheet(results, "2")), kind) for _ in range(2))
    assert first == second
    assert b"Date" not in first
    assert b"dc:date" not in first


def test_a_chosen_data_set_is_in_the_files_name(small, tmp_path):
    made = plot(small, tmp_path, ["1", "2"], dataset="car")
    assert [path.name for path in made.written] == ["figure1.png", "figure2-car.png"]


def test_only_what_the_results_allow_is_made(tmp_path):
    save_grid(tmp_path / "in", datasets=("car",), orders=(0,), scopes=("local",))
    save(tmp_path / "in", "car", 0, "generative", "federated", 5)
    made = plot(tmp_path / "in", tmp_path)
    assert [path.name for path in made.written] == ["figure1.png", "figure3.png", "communication.png"]
    assert [text.partition(":")[0] for text in made.skipped] == ["figure 2", "figure 4", "convergence"]


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scope", "method", "missing"),
    [
        ("1", "federated", "generative", "figure 1: expected local cells of car, found none"),
        ("3", "local", "generative", "figure 3: expected federated cells of car, found none"),
        ("2", "federated", "discriminative", "expected federated generative cells of car, found none"),
        (
            "4",
            "federated",
            "generative",
            "expected federated discriminative or hybrid cells of car, found none",
        ),
        ("convergence", "federated", "generative", "expected federated cells with several rounds evaluated"),
        ("communication", "local", "generative", "expected federated cells with bytes sent, found none"),
    ],
)
def test_a_figure_says_what_it_lacks(tmp_path, name, scope, method, missing):
    save(tmp_path / "in", "car", 0, method, scope, 5)
    with pytest.raises(ResultsError, match=missing) as caught:
        plot(tmp_path / "in", tmp_path / "out", [name])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_means_without_a_common_data_set_are_refused(tmp_path):
    for scope in ("local", "federated"):
        save(tmp_path, "car", 0, "generative", scope, 5)
        save(tmp_path, "kr-vs-k", 1, "generative", scope, 5)
    with pytest.raises(
        ResultsError, match=r"car has most, without car A1DE generative federated C=5 and 1 others"
    ):
        figure(tmp_path, "1")


def test_results_that_allow_no_figure_are_one_error(tmp_path):
    save(tmp_path / "in", "car", 0, "generative", "centralised", 1)
    with pytest.raises(ResultsError, match="at least one figure, found none"):
        plot(tmp_path / "in", tmp_path / "out")


def test_two_cells_at_one_place_are_told_apart_by_a_selection(tmp_path):
    for epsilon in (0.5, 1.0):
        name = f"{epsilon}".ljust(64, "0")
        save(tmp_path, "car", 0, "generative", "federated", 5, epsilon=epsilon, config_sha256=name)
    save(tmp_path, "car", 0, "discriminative", "federated", 5)
    with pytest.raises(
        ResultsError, match=r"found 2 that differ in epsilon \(0.5, 1.0\); choose one with PATH:KEY"
    ):
        read_results(tmp_path)
    results = read_results([f"{tmp_path}:epsilon=1", f"{tmp_path}:method=discriminative"])
    assert [place.method for place in results.cells] == ["discriminative", "generative"]
    assert results.cells[list(results.cells)[1]].keys["epsilon"] == 1.0


def test_an_unknown_data_set_is_refused_with_the_nearest(results):
    with pytest.raises(ResultsError, match=r"--dataset: .* got 'kr-vs-kp'; did you mean 'kr-vs-k'\?"):
        shown(results, "2", "kr-vs-kp")


@pytest.mark.parametrize(("figures", "formats"), [(["5"], ["png"]), (["1"], ["gif"])])
def test_an_unknown_figure_or_format_is_refused(small, tmp_path, figures, formats):
    with pytest.raises(ResultsError, match=r"expected (one|some) of .*, got '(5|gif)'"):
        plot(small, tmp_path / "out", figures, formats)
    assert not (tmp_path / "out").exists()


def test_a_missing_matplotlib_is_one_clear_line(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ResultsError, match=r"not installed; pip install 'fedande-mpi\[plot\]'"):
        plot(small, tmp_path)


def test_the_command_prints_files_and_what_it_skipped(tmp_path, capsys):
    save(tmp_path / "in", "car", 0, "generative", "federated", 5)
    assert main(["plot", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--format", "svg"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'out' / 'communication.svg'}\n"
    assert "fedande: skipped figure 1: expected local cells of car, found none; run them first\n" in err
