"""Words: the rows of an embedding that moved are the tokens that were read, through steps, clipping and sums."""

import pytest
import torch

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.words import FREQUENCY, Words, frequencies, ratios
from privfl.errors import ConfigError
from tests.attacks.federations import run_of

VOCABULARY, LENGTH = 60, 7


def texts(count, seed):
    """Token ids, low ones often; targets say which of the first two tokens is larger."""
    generator = torch.Generator().manual_seed(seed)
    ids = (torch.rand(count, LENGTH, generator=generator) ** 2 * VOCABULARY).long()
    return Records(ids, (ids[:, 0] > ids[:, 1]).long())


def watched(privacy=None, rounds=1):
    held, public = texts(12, seed=1), texts(40, seed=2)
    data = pf.Dataset.from_arrays(
        held.inputs,
        held.targets,
        clients=torch.arange(12) // 4,
        test=(public.inputs, public.targets),
        classes=2,
        vocabulary=VOCABULARY,
    )
    options = {"embedding_dim": 16, "filters": 8, "hidden": 8}
    task = pf.Task.from_dataset(data, model="text-cnn", model_options=options)
    run = pf.simulate(
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=rounds,
        training=pf.LocalTraining(learning_rate=0.1, batch_size=2, epochs=2),
        privacy=privacy,
        record=True,
        execution=pf.Execution(engine="loop", workers=1),
    )
    there = [torch.isin(torch.arange(VOCABULARY), held.inputs[4 * k : 4 * k + 4]) for k in range(3)]
    return run.transcript, public, there


def test_the_words_of_a_client_are_exact_after_several_steps():
    seen, public, there = watched()
    for client in range(3):
        result = Words(client=client, texts=4).run(seen, Auxiliary(public=public, truth={"tokens": there[client]}))
        assert (result.metrics["auc"].value, result.metrics["found"].value) == (1, 1)
        assert 0.5 < result.nulls[FREQUENCY]["auc"].value < 0.95


def test_a_clipped_secure_sum_has_the_words_of_all():
    seen, public, there = watched(pf.Privacy(update=(pf.Clip(0.01), pf.SecureSum(mode="ideal"))))
    truth = torch.stack(there).any(0)
    result = Words(client=None, texts=12).run(seen, Auxiliary(public=public, truth={"tokens": truth}))
    assert result.metrics["found"].value == 1


def test_where_noise_is_all_there_is_the_guess_is_that_of_the_null():
    noise = torch.randn(3, 400, 32, generator=torch.Generator().manual_seed(0)).double()
    prior = torch.linspace(-3, 1, 400).double()
    assert ratios(noise.square().sum(2), 32, prior).tolist() == [0.0] * 400
    noise[0, 7] += 5
    found = ratios(noise.square().sum(2), 32, prior)
    assert int(found.argmax()) == 7
    found[7] = 0
    assert float(found.abs().max()) < 0.5, "one row that moved must not say anything of the others"


def test_rows_that_move_little_are_told_by_all_rounds_together_and_loud_ones_do_not_hide_them():
    generator = torch.Generator().manual_seed(1)
    there = torch.arange(400) < 80
    scale = torch.where(there, torch.where(torch.arange(400) < 4, 1e4, 0.7), 0.0)
    rows = torch.randn(10, 400, 32, generator=generator) * (1 + scale[:, None] ** 2).sqrt()
    prior = torch.full((400,), -1.4).double()
    found = ratios(rows.double().square().sum(2), 32, prior)
    assert float(found[there].min()) > float(found[~there].max())


def test_frequencies_count_texts_and_not_words():
    found = frequencies(torch.tensor([[1, 1, 2], [2, 2, 0]]), 4)
    assert found.tolist() == pytest.approx([0.5, 0.5, 2.5 / 3, 0.5 / 3])


def test_images_have_no_words():
    rows = torch.split(torch.arange(6), 3)
    seen = run_of(rows, pf.FedAvg(), pf.LocalTraining(learning_rate=0.1, batch_size=3))
    with pytest.raises(ConfigError, match="no token ids"):
        Words().guess(seen, Auxiliary(public=texts(5, 0)))
