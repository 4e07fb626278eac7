"""Trade-offs are drawn in the units of what they cost."""

from privfl.study.plots import trade_off

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
