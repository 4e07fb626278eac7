"""The order of words: what a distilbert's update tells of which word stands where, and when it tells nothing."""

import pytest
import torch

import privfl as pf
from attacks.auxiliary import Auxiliary, Records
from attacks.judge import Judge
from attacks.word_order import FREQUENCY, WordOrder, by_place, measures
from privfl.errors import ConfigError
from tests.attacks.federations import run_of

VOCABULARY, LENGTH = 60, 12


def texts(count, seed, repeat=True):
    """Token ids of 8 to 12 words, then padding, which is 0; no word occurs twice, in one or two texts, or they may."""
    generator = torch.Generator().manual_seed(seed)
    ids = 1 + (torch.rand(count, LENGTH, generator=generator) ** 2 * (VOCABULARY - 1)).long()
    if not repeat:
        ids = 1 + torch.randperm(VOCABULARY - 1, generator=generator)[: count * LENGTH].view(count, LENGTH)
    ends = torch.randint(8, LENGTH + 1, (count, 1), generator=generator)
    ids[torch.arange(LENGTH) >= ends] = 0
    return Records(ids, (ids[:, 0] > ids[:, 1]).long())


def task_of(size, layers=2, dropout=0.0, model="distilbert", clients=3, repeat=True):
    """Clients of ``size`` texts."""
    held, public = texts(clients * size, 1, repeat), texts(40, seed=2)
    data = pf.Dataset.from_arrays(
        held.inputs,
        held.targets,
        clients=torch.arange(clients * size) // size,
        test=(public.inputs, public.targets),
        classes=2,
        vocabulary=VOCABULARY,
    )
    options = {"layers": layers, "width": 64, "heads": 4, "hidden": 64, "positions": 20, "dropout": dropout}
    if model != "distilbert":
        options = {"embedding_dim": 16, "filters": 8, "hidden": 8}
    return pf.Task.from_dataset(data, model=model, model_options=options)


def attacked(task, *, client=0, number=None, privacy=None, epochs=1, rate=1.0):
    """The result of the attack on ``client`` after one round; every client's texts are one batch."""
    run = pf.simulate(
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=1,
        training=pf.LocalTraining(learning_rate=rate, batch_size=8, epochs=epochs),
        privacy=privacy,
        record=True,
        execution=pf.Execution(engine="loop", workers=1),
    )
    held = task.inputs[task.clients.rows if client is None else task.clients[client]]
    auxiliary = Auxiliary(Records(task.test_inputs, task.test_targets), truth={"tokens_at": held})
    return WordOrder(client=client, texts=len(held) if number is None else number).run(run.transcript, auxiliary)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("privacy", [None, pf.Privacy(update=(pf.Clip(0.1),))], ids=["plain", "clipped"])
def test_one_text_is_read_word_by_word(layers, privacy):
    task = task_of(1, layers)
    for client in range(3):
        result = attacked(task, client=client, privacy=privacy)
        assert result.metrics["placed"].value == result.metrics["whole"].value == 1
        assert result.nulls[FREQUENCY]["placed"].value < 0.5
        assert result.units == int((task.inputs[task.clients[client]] != 0).sum())


def test_one_text_is_read_through_drop_out_and_local_steps():
    assert attacked(task_of(1, dropout=0.1), epochs=3, rate=0.1).metrics["whole"].value == 1


def test_of_two_texts_the_words_at_every_place_are_read_from_the_span():
    result = attacked(task_of(2, clients=2, repeat=False))
    assert result.metrics["placed"].value == result.metrics["whole"].value == 1
    assert result.nulls[FREQUENCY]["placed"].value < 0.5


def test_where_words_repeat_in_other_places_some_are_in_the_span_that_are_not_there():
    """v and u at one place and u at another make up v at the other: w_v + p = (w_v + q) - (w_u + q) + (w_u + p)."""
    result = attacked(task_of(2))
    assert 1 > result.metrics["placed"].value > result.nulls[FREQUENCY]["placed"].value + 0.3


def test_a_secure_sum_of_texts_is_one_batch_of_them():
    total = pf.Privacy(update=(pf.SecureSum(mode="ideal"),))
    result = attacked(task_of(1, repeat=False), client=None, privacy=total)
    assert result.metrics["whole"].value == 1


def test_more_tokens_than_the_width_fill_the_span():
    task = task_of(8)
    assert int((task.inputs[task.clients[0]] != 0).sum()) > 64
    assert attacked(task).metrics["whole"].value < 1


@pytest.mark.parametrize("size", [1, 2])
def test_under_noise_the_guess_is_that_of_the_null(size):
    noise = pf.DPSGD(noise_multiplier=0.01, max_grad_norm=1.0, sample_rate=0.9)
    result = attacked(task_of(size), privacy=pf.Privacy(training=noise, noise_key=3))
    assert dict(result.metrics) == dict(result.nulls[FREQUENCY])


def test_drop_out_is_refused_for_several_texts():
    with pytest.raises(ConfigError, match=r"dropout = 0.1, .*; attack a run whose model_options have dropout = 0"):
        attacked(task_of(2, dropout=0.1))


def test_a_model_without_positions_is_refused():
    with pytest.raises(ConfigError, match=r"no positions .*; attack a run of 'distilbert'"):
        attacked(task_of(1, model="text-cnn"))


def test_a_client_that_sent_nothing_is_refused():
    task = task_of(1)
    training = pf.LocalTraining(learning_rate=1, batch_size=8)
    seen = pf.simulate(task, pf.FedAvg(), rounds=1, training=training, record=True).transcript
    with pytest.raises(ConfigError, match="no single update of client 7 was seen in 1 rounds"):
        WordOrder(client=7).run(seen, Auxiliary(texts(5, 0), truth={"tokens_at": task.inputs[:1]}))


def test_images_have_no_words():
    rows = torch.split(torch.arange(6), 3)
    seen = run_of(rows, pf.FedAvg(), pf.LocalTraining(learning_rate=0.1, batch_size=3))
    with pytest.raises(ConfigError, match="no token ids"):
        WordOrder().guess(seen, Auxiliary(public=texts(5, 0)))


def test_the_judge_knows_the_texts_of_the_client():
    task = task_of(2)
    attack = WordOrder(client=1, texts=2)
    told = Judge(task, seed=0, public_share=0.5, candidates=10).auxiliary(attack, attack.needs)
    assert torch.equal(told.answer("tokens_at"), task.inputs[task.clients[1]])


def test_the_null_counts_words_by_place_and_padding_for_none():
    shares = by_place(torch.tensor([[1, 2], [1, 0]]), 3, padding=0).exp()
    assert shares.argmax(1).tolist() == [1, 2]
    assert shares[:, 0].tolist() == [0, 0]


def test_words_that_stand_at_a_place_in_two_texts_count_once():
    truth = torch.tensor([[1, 2], [1, 3]])
    scores = torch.tensor([[0.0, 1, 0, 0], [0.0, 3, 2, 1]])
    found = measures(scores, truth, padding=0)
    assert found["placed"].value == pytest.approx(2 / 3)
    assert found["whole"].value == 0.5
