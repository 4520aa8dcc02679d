"""The chart module that the report and the studio share: what it draws of many points, its smoothing and its ticks."""

import pytest

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture
def module(visit):
    """Evaluate JavaScript in which `curves` and `axes` are the modules."""
    page = visit().go("runs.html")

    def run(body, argument=None):
        return page.evaluate(
            "async (argument) => { const curves = await import('/curves/curves.js');"
            f"const axes = await import('/curves/axes.js'); {body} }}",
            argument,
        )

    return run


def test_smoothing_keeps_straight_lines_and_the_ends(module):
    line = [3 + 0.5 * i for i in range(40)]
    found = module("return curves.smoothed(argument, 1);", line)
    assert found == pytest.approx(line)
    noisy = [1.0, 3.0] * 20
    found = module("return curves.smoothed(argument, 0.5);", noisy)
    assert (found[0], found[-1]) == (1.0, 3.0)
    assert max(found[8:-8]) - min(found[8:-8]) < 0.5


def test_a_spike_among_many_points_is_drawn_and_chosen(module):
    drawn = module(
        """const chart = new curves.Chart({ title: "t", label: "l" });
        document.body.append(chart.node);
        const points = Array.from({ length: 50000 }, (_, i) => ({ step: i + 1, y: i === 31234 ? 9 : 1 }));
        chart.set([{ key: "a", name: "a", colour: "red", points }]);
        const path = chart.svg.querySelector("path.plot-line").getAttribute("d");
        const heights = path.split(/[ML]/).slice(1).map((pair) => Number(pair.split(" ")[1]));
        chart.choose(0, 31234);
        return { points: heights.length, range: Math.max(...heights) - Math.min(...heights),
                 text: chart.stage.getAttribute("aria-valuetext") };"""
    )
    assert drawn["points"] < 3000
    assert drawn["range"] > 100
    assert drawn["text"] == "step 31,235: a 9.0000"


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (0, 300, False, [0, 100, 200, 300]),
        (0.00, 0.05, False, [0, 0.02, 0.04]),
        (-0.06, 0.0, False, [-0.06, -0.04, -0.02, 0]),
        (1, 10000, True, [1, 10, 100, 1000, 10000]),
        (0.11, 25, True, [0.3, 1, 3, 10]),
    ],
)
def test_ticks_are_round_numbers(module, low, high, log, expected):
    found = module("return axes.scale(argument[0], 0, 100, { log: argument[1], about: 3 }).ticks;", [[low, high], log])
    assert found == pytest.approx(expected)


def test_a_value_that_a_logarithmic_scale_cannot_place_is_left_out(module):
    found = module(
        """const chart = new curves.Chart({ title: "t", label: "l", log: true });
        chart.set([{ key: "a", name: "a", colour: "red", points: [0, -1, NaN, 2, 4].map((y, i) => ({ step: i, y })) }]);
        return [chart.lines[0].points.map((p) => p.y), chart.svg.innerHTML.includes("NaN")];"""
    )
    assert found == [[2, 4], False]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.5, "0.5 s"), (75.24, "75.2 s"), (125, "2 min 05 s"), (7260, "2 h 01 min")]
)
def test_durations_are_written_for_people(module, seconds, text):
    assert module("return axes.duration(argument);", seconds) == text
