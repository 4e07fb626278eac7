"""Defaults that a comparison lives by, each with the reason and the paper's own value where it is another one."""

import inspect

import pytest

import privfl as pf

FAIR = [
    (pf.APFL, "alpha_updates", "round", "as in the authors' code"),
    (pf.PFedMe, "personal_learning_rate", 0.05, "the paper uses 0.01 to 0.1"),
    (pf.PFedMe, "proximal_weight", 15.0, "the paper uses 15 to 30"),
    (pf.FedRep, "head_epochs", 1, "``head_epochs = 10`` is the paper's"),
    (pf.FedBABU, "finetune_epochs", 5, "5, as in the authors' code"),
    (pf.FedBABU, "finetune", "full", "``full`` (the paper's choice)"),
    (pf.PerFedAvg, "inner_learning_rate", 0.01, "the paper uses 0.01, with a β of 0.001"),
    (pf.PerFedAvg, "form", "first-order", "exact form is left out"),
    (pf.Ditto, "proximal_weight", 1.0, "the paper uses 0.1, 1 and 2"),
    (pf.GRPFed, "disc_loss", "saturating", "the local extractor's L_R is the printed one"),
    (pf.FedDyn, "alpha", 0.01, "its experiments on CIFAR 0.01"),
    (pf.TERM, "t", 0.1, "The authors' federated run has 0.1"),
]


@pytest.mark.parametrize(("kind", "setting", "value", "source"), FAIR, ids=lambda one: getattr(one, "name", None))
def test_the_default_is_the_fair_one_and_the_docstring_says_whence(kind, setting, value, source):
    assert getattr(kind(), setting) == value
    assert source in " ".join(inspect.getdoc(kind).split())


def test_what_papers_print_stays_to_be_chosen():
    assert pf.APFL(alpha_updates="batch").alpha_updates == "batch"
    assert pf.FedRep(head_epochs=10).head_epochs == 10
    assert pf.GRPFed(disc_loss="bce").disc_loss == "bce"
    assert pf.FedBABU(finetune_epochs=0).keeps == ()
