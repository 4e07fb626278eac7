"""Trade-offs are drawn in the units of what they cost."""

from privfl.study.plots import curves, trade_off

POINTS = {"FedAvg": [(0.625, 0.8, "ε = 8"), (0.5, 0.75, "ε = 1"), (float("inf"), 0.9, "no privacy")]}


def test_shares_that_a_method_costs_are_in_percent_in_the_table_and_on_the_axis():
    chart = trade_off(POINTS, "accuracy of the worst tenth", share=True)
    assert [row[2] for row in chart.rows] == ["50.0 %", "62.5 %"]
    axes = chart.figure.axes[0]
    assert axes.xaxis.get_major_formatter()(0.5) == "50 %"


def test_other_costs_stay_numbers():
    chart = trade_off(POINTS, "bytes sent")
    assert [row[2] for row in chart.rows] == ["0.5", "0.625"]
    assert "%" not in chart.figure.axes[0].xaxis.get_major_formatter()(0.5)


def test_where_all_cost_the_same_every_point_bears_its_level():
    points = {"FedAvg": [(560.0, 0.9, "no privacy"), (560.0, 0.899, "ε = 4")], "Prox": [(560.0, 0.5, "ε = 4")]}
    axes = trade_off(points, "bytes sent").figure.axes[0]
    assert axes.get_xlabel() == "bytes sent: 560 for every method"
    assert list(axes.get_xticks()) == []
    texts = {(round(text.get_position()[0]), text.get_text()): text.get_position()[1] for text in axes.texts}
    assert set(texts) == {(0, "no privacy"), (0, "ε = 4"), (1, "ε = 4")}
    assert texts[0, "no privacy"] - texts[0, "ε = 4"] > 0.02, "labels do not cover each other"
    assert [line.get_xdata().tolist() for line in axes.lines] == [[0, 0], [1]]
    many = {f"method {number}": points["FedAvg"] for number in range(9)}
    assert list(trade_off(many, "bytes sent").figure.axes[0].texts) == [], "there is no room for them"


def test_a_method_whose_name_begins_with_an_underscore_is_in_the_legend():
    charts = [
        curves({"_ours": [[(0, 0.1), (1, 0.2)]], "b": [[(0, 0.1), (1, 0.3)]]}),
        trade_off({"_ours": [(1.0, 0.5, "l"), (2.0, 0.6, "m")], "b": [(1.0, 0.5, "l")]}, "bytes"),
    ]
    for chart in charts:
        shown = [text.get_text().strip() for text in chart.axes[0].get_legend().get_texts()]
        assert shown == ["_ours", "b"]
