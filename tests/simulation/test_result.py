"""A finished run says in one line what it is."""

import privfl as pf


def test_a_run_is_shown_by_what_it_came_to_and_not_by_its_tensors():
    task = pf.load("digits", partition=pf.IID(clients=4), model="logistic")
    run = pf.simulate(task, pf.FedAvg(), rounds=2)
    shown = repr(run)
    assert shown.startswith("Run(fedavg on digits: 2 rounds, 650 parameters, test_loss ")
    assert f"test_accuracy {run.summary['test_accuracy']:.4g}" in shown
    assert shown.endswith("no finite ε)")
    assert "tensor" not in shown
    private = pf.simulate(task, pf.FedAvg("uniform"), rounds=1, privacy=pf.Privacy(training=pf.DPSGD(1.0)))
    epsilon = private.statement.cell("sample", "server").epsilon
    assert f"ε = {epsilon:.4g} (sample/server)" in repr(private)
