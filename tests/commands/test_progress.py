"""What a run prints while it goes on says of which round each figure is."""

from types import SimpleNamespace

import pytest

from privfl.commands.progress import Progress, describe

SIMULATION = SimpleNamespace(task=SimpleNamespace(headline=SimpleNamespace(test="test_accuracy")))


@pytest.fixture
def printed(capsys):
    def lines(progress, *told):
        for line in told:
            progress.update(SIMULATION, {"epsilon": {}, **line})
        return capsys.readouterr().err.splitlines()

    return lines


def test_figures_of_an_earlier_round_are_said_to_be_of_that_round(printed):
    evaluated = {"test_loss": 1.4829, "test_accuracy": 0.702}
    rounds = [{"round": number} for number in range(4)]
    rounds[1] |= evaluated
    rounds[3] |= {"test_loss": None, "test_accuracy": 0.5}
    assert printed(Progress(4), *rounds) == [
        "round 1/4  ε = ∞",
        "round 2/4  loss 1.483  accuracy 0.702  ε = ∞",
        "round 3/4  loss 1.483  accuracy 0.702 (round 2)  ε = ∞",
        "round 4/4  loss not finite  accuracy 0.500  ε = ∞",
    ]


def test_a_run_that_goes_on_shows_no_figure_before_it_evaluates(printed):
    told = {"round": 7, "test_loss": 1.0, "test_accuracy": 0.5}
    assert printed(Progress(9), {"round": 6}, told, {"round": 8}) == [
        "round 7/9  ε = ∞",
        "round 8/9  loss 1.000  accuracy 0.500  ε = ∞",
        "round 9/9  loss 1.000  accuracy 0.500 (round 8)  ε = ∞",
    ]


def test_where_a_run_is_stopped_its_figures_keep_their_round(printed, capsys):
    progress = Progress(9)
    printed(progress, {"round": 0, "test_loss": 1.0, "test_accuracy": 0.5}, {"round": 1})
    progress.conclude(SimpleNamespace(metrics=[{"epsilon": {}}, {"epsilon": {}}], summary={"stopped": "budget"}))
    told = capsys.readouterr().err
    assert told == "stopped by the budget at round 2/9  loss 1.000  accuracy 0.500 (round 1)  ε = ∞\n"


def test_what_was_evaluated_in_the_round_that_is_shown_has_no_round():
    assert describe({"test_loss": 0.41}, {"sample/public": 2.0}, final=True) == "loss 0.410  ε = 2 (sample/public)"
