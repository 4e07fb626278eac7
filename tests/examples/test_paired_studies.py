"""The studies that compare by pairs: the same seeds, tuned on others, and they go on where they stopped."""

from __future__ import annotations

import argparse
import json
import sys
from itertools import pairwise

import aaggff_pairs
import fedevg
import fedevg_local
import fedevg_tuned
import fedsampling_tuned
import grpfed_tuned
import numpy as np
import pytest
import rebafl_cifar
import rebafl_tuned_head
import superfed_barrier
import superfed_cifar10
import superfed_noise
import torch

import privfl as pf


def call(module, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    module.main()


def test_aaggffs_pairs_are_run_kept_and_compared_on_seeds_of_their_own(tmp_path, monkeypatch, capsys):
    call(aaggff_pairs, monkeypatch, "--out", tmp_path, "--small")
    rows = json.loads((tmp_path / "pairs.json").read_text(encoding="utf-8"))["rows"]
    assert {(row["method"], row["seed"]) for row in rows} == {
        (method, seed) for method in ("FedAvg, uniform", "AAggFF-S") for seed in (101, 102)
    }
    printed = capsys.readouterr().out
    assert "heart, AAggFF-S, worst_loss: " in printed
    assert "of 2" in printed
    call(aaggff_pairs, monkeypatch, "--out", tmp_path, "--small")
    assert " in " not in capsys.readouterr().out  # nothing is run again


def test_settled_figures_are_means_over_the_second_half_of_the_rounds():
    curve = [{"round": number, **dict.fromkeys(aaggff_pairs.FIGURES, float(number))} for number in (2, 4, 6, 8)]
    found = aaggff_pairs.summary(curve)
    assert set(found["settled"].values()) == {7.0}
    assert set(found["last"].values()) == {8.0}


def test_q_fedavg_is_compared_with_fedavg_at_its_step():
    def row(method, seed, value):
        figures = dict.fromkeys(aaggff_pairs.FIGURES, value)
        return {"study": "berka", "method": method, "seed": seed, "settled": figures}

    reduced = "FedAvg, uniform, server rate 0.3"
    rows = [row("FedAvg, uniform", seed, 0.5) for seed in (1, 2)]
    rows += [row(reduced, seed, 0.4) for seed in (1, 2)] + [row("q-FedAvg", seed, 0.4) for seed in (1, 2)]
    lines = dict(line.split(": ") for line in aaggff_pairs.differences(rows, "settled"))
    assert lines["berka, q-FedAvg, worst_tenth"].startswith("+0.00 [")
    assert lines[f"berka, {reduced}, worst_tenth"].startswith("-10.00 [")
    assert not any(line.startswith("berka, FedAvg, uniform, worst") for line in lines)


def test_with_many_clients_propfair_is_compared_with_itself_at_one_slope(tmp_path, monkeypatch, capsys):
    call(aaggff_pairs, monkeypatch, "--out", tmp_path, "--small", "--only", "fashion")
    rows = json.loads((tmp_path / "pairs.json").read_text(encoding="utf-8"))["rows"]
    ends = {row["method"]: row["settled"]["worst_loss"] for row in rows if row["seed"] == 101}
    assert {"AAggFF-D", "TERM", "FedMGDA", "q-FedAvg", "FedAvg, uniform, server rate 0.39"} < set(ends)
    each = [row["settled"]["worst_loss"] for row in rows if row["method"] == "PropFair"]
    other = [row["settled"]["worst_loss"] for row in rows if row["method"] == "PropFair, one slope"]
    mean = sum(one - two for one, two in zip(each, other, strict=True)) / 2
    assert f"fashion, PropFair, worst_loss: {mean:+.4f} [" in capsys.readouterr().out


def test_the_six_responses_are_each_run_once():
    for name, study in aaggff_pairs.FULL.items():
        if study.cohort is None:
            cdfs = [one.cdf for one in aaggff_pairs.responses(study).values()]
            assert sorted([study.cdf, *cdfs]) == sorted(aaggff_pairs.CDFS), name


def test_sorted_log_normal_blocks_use_every_sample_once_in_the_order_of_the_classes():
    targets = np.random.default_rng(0).integers(10, size=5000)
    parts = fedsampling_tuned.SortedLogNormal(clients=20).split(targets, 10, np.random.default_rng(1), None)
    assert sorted(np.concatenate(parts)) == list(range(5000))
    sizes = [len(part) for part in parts]
    assert max(sizes) > 5 * min(sizes) > 0
    ends = [(targets[part].min(), targets[part].max()) for part in parts]
    assert all(before[1] <= after[0] for before, after in pairwise(ends))


def test_methods_differ_in_how_clients_are_drawn_and_counted_and_in_the_servers_step():
    partition = fedsampling_tuned.SortedLogNormal(clients=4)
    task = pf.Task.from_arrays(
        torch.zeros(40, 2), torch.arange(40) % 2, test=(torch.zeros(2, 2), torch.arange(2)), partition=partition
    )
    found = {method: fedsampling_tuned.arguments(method, 0.4, task) for method in fedsampling_tuned.METHODS}
    both, given = found["FedAvg, draws by size and size weights"]
    assert (both.weighting, type(given["cohort"])) == ("size", pf.SizeWeightedCohort)
    drawn, given = found["FedAvg, draws by size"]
    assert (drawn.weighting, type(given["cohort"])) == ("uniform", pf.SizeWeightedCohort)
    plain, given = found["FedAvg, uniform"]
    assert (plain.weighting, type(given["cohort"])) == ("uniform", pf.FixedCohort)
    adaptive, given = found["FedAdam"]
    assert (adaptive.server_learning_rate, given["training"].learning_rate) == (0.4, fedsampling_tuned.CLIENT_RATE)
    assert found["FedSampling"][1]["cohort"] is None
    assert found["FedSampling"][1]["training"].learning_rate == 0.4


def test_a_best_rate_at_the_end_of_the_grid_asks_for_the_next_one_beyond():
    assert fedsampling_tuned.beyond((0.1, 0.2, 0.4), 0.1) == 0.05
    assert fedsampling_tuned.beyond((0.1, 0.2, 0.4), 0.4) == 0.8


def test_fedsamplings_differences_are_paired():
    rows = [
        {"method": method, "seed": seed, "settled": 0.5 + 0.1 * seed + (0.02 if method == "FedSampling" else 0)}
        for seed in (0, 1)
        for method in ("FedSampling", "centralised")
    ]
    assert fedsampling_tuned.compared(rows)[1].endswith("FedSampling − it +2.00 [2.00, 2.00]")


@pytest.fixture(scope="module")
def barriers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("barrier")
    with pytest.MonkeyPatch.context() as patch:
        methods = ("FedAvg", "Local, another initial model", "SuPerFed-MM")
        call(superfed_barrier, patch, "--out", folder, "--small", "--methods", *methods)
    return json.loads((folder / "superfed-barrier.json").read_text(encoding="utf-8"))["rows"]


def test_models_from_other_initial_weights_have_a_barrier_with_fedavgs_and_widths_grow_with_the_radius(barriers):
    by_method = {row["method"]: row for row in barriers}
    apart = by_method["Local, another initial model"]
    assert np.mean(apart["barriers"]) > 0.1
    assert set(by_method["SuPerFed-MM"]["widths"]) == {"λ = 0", "λ = 0.5", "λ = 1"}
    width = by_method["FedAvg"]["widths"]["its one model"]
    assert 0 < width["0.1"] < width["0.2"] < width["0.4"]


def test_every_method_is_judged_on_true_labels_under_noise_and_finished_runs_are_kept(tmp_path, monkeypatch, capsys):
    given = ("--out", tmp_path, "--small", "--methods")
    call(superfed_noise, monkeypatch, *given, "FedAvg", "Local", "SuPerFed-MM")
    store = tmp_path / "superfed-noise.json"
    first = json.loads(store.read_text(encoding="utf-8"))["rows"]
    call(superfed_noise, monkeypatch, *given, *superfed_noise.METHODS)
    rows = json.loads(store.read_text(encoding="utf-8"))["rows"]
    assert rows[:3] == first
    assert [row["method"] for row in rows[3:]] == [
        name for name in superfed_noise.METHODS if name not in ("FedAvg", "Local", "SuPerFed-MM")
    ]
    by_method = {row["method"]: row["scores"] for row in rows}
    mixtures = by_method["SuPerFed-MM"]
    assert mixtures["λ best on the test"]["accuracy"] >= max(scores["accuracy"] for scores in mixtures.values())
    assert 30 < by_method["FedAvg"][""]["accuracy"] < 100
    assert "| FedAvg | " in capsys.readouterr().out
    options = argparse.Namespace(dataset="digits", clients=10, width=8)
    task = superfed_noise.task_of(options, "symmetric 0.6", 0)
    truth = pf.load_dataset("digits").targets
    assert torch.equal(task.targets[task.local_tests.rows], truth[task.local_tests.rows])
    assert (task.targets[task.clients.rows] != truth[task.clients.rows]).double().mean() > 0.5


def test_images_are_resized_and_the_angle_and_the_start_of_mixing_are_methods_of_their_own(
    tmp_path, monkeypatch, capsys
):
    methods = ("FedAvg", "FedRep", "SuPerFed-MM, ν = 0")
    call(superfed_cifar10, monkeypatch, "--out", tmp_path, "--small", "--methods", *methods)
    rows = json.loads((tmp_path / "superfed-cifar10.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["method"], row["seed"]) for row in rows] == [(method, 0) for method in methods]
    printed = capsys.readouterr().out
    assert f"| FedRep | {rows[1]['scores']['']['accuracy']:.2f} ± 0.00 | " in printed
    assert "| SuPerFed-MM, ν = 0, λ by validation | " in printed
    dataset = superfed_cifar10.resized(pf.load_dataset("digits"), held_out=50)
    assert dataset.inputs.shape[1:] == (1, 28, 28)
    assert len(dataset.test_inputs) == len(dataset.test_targets) == 50
    assert superfed_cifar10.METHODS["SuPerFed-MM, ν = 0"].nu == 0
    assert superfed_cifar10.METHODS["SuPerFed-MM, L = 0"].start_fraction == 0


def test_another_initial_model_is_the_same_in_every_run_and_not_the_tasks_own():
    data = torch.zeros(4, 3), torch.arange(4) % 2
    task = pf.Task.from_arrays(
        *data, test=data, partition=pf.IID(clients=1), model="two-nn", model_options={"bias": False}
    )
    one, other, own = superfed_barrier.redrawn(task, 1), superfed_barrier.redrawn(task, 1), task
    first, second, third = (
        torch.cat([weight.flatten() for weight in each.model(0).parameters()]) for each in (one, other, own)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_fedevgs_rivals_are_tuned_like_it_on_images_that_no_comparison_shows(tmp_path, monkeypatch, capsys):
    call(fedevg_tuned, monkeypatch, "--out", tmp_path, "--small")
    stored = json.loads((tmp_path / "fedevg-tuned.json").read_text(encoding="utf-8"))
    assert {row["seed"] for row in stored["tuning"]} == {fedevg_tuned.TUNING_SEED}
    assert len({len(grid) for _, grid in fedevg_tuned.GRIDS.values()}) == 1, "everybody has as many trials"
    for row in stored["rows"]:
        assert row["seed"] != fedevg_tuned.TUNING_SEED
        assert row["value"] == fedevg_tuned.chosen(stored["tuning"], row["alpha"], row["method"])
    assert "α = 1.0, fedcgan, fid: " in capsys.readouterr().out
    call(fedevg_tuned, monkeypatch, "--out", tmp_path, "--small")
    assert " s\n" not in capsys.readouterr().out  # nothing is run again


def test_a_value_is_chosen_by_accuracy_and_differences_are_paired():
    row = {"alpha": "1.0", "method": "fedcvae", "fid": 30.0}
    tried = [{**row, "value": value, "test_accuracy": one} for value, one in ((0.01, 0.7), (0.1, 0.8), (1.0, 0.6))]
    assert fedevg_tuned.chosen(tried, "1.0", "fedcvae") == 0.1
    assert fedevg_tuned.beyond((0.01, 0.1, 1.0), 0.1) is None
    assert fedevg_tuned.beyond((0.01, 0.1, 1.0), 1.0) == pytest.approx(10.0)
    assert fedevg_tuned.beyond((0.01, 0.1, 1.0), 0.01) == pytest.approx(0.001)
    rows = [{**row, "seed": seed, "test_accuracy": 0.5 + seed / 10} for seed in (1, 2)]
    rows += [{**one, "method": "signed", "test_accuracy": one["test_accuracy"] + 0.1, "fid": 10.0} for one in rows]
    lines = fedevg_tuned.compared(rows)
    assert "α = 1.0, fedcvae, test_accuracy: 65.00 ± 7.07, of 2; FedEvg − it +10.00 [10.00, 10.00]" in lines
    assert "α = 1.0, fedcvae, fid: 30.00 ± 0.00, of 2; FedEvg − it -20.00 [-20.00, -20.00]" in lines


def test_grp_feds_rivals_are_tuned_on_training_rows_of_a_seed_that_is_not_compared(tmp_path, monkeypatch, capsys):
    call(grpfed_tuned, monkeypatch, "--out", tmp_path, "--small")
    stored = json.loads((tmp_path / "grpfed-tuned.json").read_text(encoding="utf-8"))
    assert {row["seed"] for row in stored["tuning"]} == {grpfed_tuned.TUNING_SEED}
    assert {row["seed"] for row in stored["rows"]} == {0}
    for row in stored["rows"]:
        tried = {one["rate"]: one["T_l"] for one in stored["tuning"] if one["method"] == row["method"]}
        if row["method"] in grpfed_tuned.VARIANTS:
            own = grpfed_tuned.VARIANTS[row["method"]][0]
            assert row["rate"] == grpfed_tuned.chosen(stored["tuning"], own)
        else:
            assert tried[row["rate"]] == max(tried.values())
            assert len(tried) == 2
    capsys.readouterr()
    call(grpfed_tuned, monkeypatch, "--out", tmp_path, "--small")
    assert " s\n" not in capsys.readouterr().out  # nothing is run again


def test_grp_feds_rates_never_see_a_test_row():
    options = argparse.Namespace()
    whole = grpfed_tuned.FEDERATIONS["digits"](options, 3)
    tuning = grpfed_tuned.without_test(whole, 3)

    def rows(inputs):
        return {tuple(row) for row in inputs.flatten(1).tolist()}

    seen = rows(tuning.task.inputs) | rows(tuning.task.test_inputs)
    assert seen == rows(whole.task.inputs)
    assert len(tuning.task.targets) + len(tuning.task.test_targets) == len(whole.task.targets)


def test_fedevg_is_judged_by_a_fifth_of_what_every_client_holds(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fedevg_local, "CLIENTS", {4: None, 6: 2})
    monkeypatch.setattr(fedevg_local, "ALPHAS", ("1.0",))
    monkeypatch.setattr(fedevg_local, "GRIDS", {"signed": fedevg_tuned.GRIDS["signed"]})
    given = "--out", tmp_path, "--small", "--seeds", "1", "--rounds", "1"
    call(fedevg_local, monkeypatch, *given)
    rows = json.loads((tmp_path / "fedevg-local.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["clients"], row["value"]) for row in rows] == [(4, 3.16), (6, 3.16)], (
        "what was chosen with ten clients"
    )
    assert "6 clients\nα = 1.0, signed, test_accuracy: " in capsys.readouterr().out
    call(fedevg_local, monkeypatch, *given)
    assert "seed 1" not in capsys.readouterr().out  # nothing is run again


def test_what_clients_hold_back_is_what_the_servers_classifier_is_judged_by(tmp_path):
    options = fedevg.settled(fedevg.parser().parse_args(["--out", str(tmp_path), "--small", "--local-tests"]))
    images = fedevg.pictures(options)
    task = images.task(1.0, options)
    held = [len(task.local_tests[client]) for client in range(10)]
    assert len(task.test_targets) == sum(held)
    assert len(task.clients.rows) + sum(held) == len(images.held[1])
    assert sum(held) == pytest.approx(60, abs=5)


def test_rebafls_conditions_on_cifar_are_the_papers():
    conditions = rebafl_cifar.CONDITIONS
    assert set(conditions["two classes"].methods) >= {"FedAvg", "FedDyn", "MOON", "SCAFFOLD", "ReBaFL", "R-BSM only"}
    assert sorted(one.epochs for one in conditions.values() if one.epochs != 5) == [1, 2, 10, 20]
    periods = [one.availability.period for one in conditions.values() if isinstance(one.availability, pf.Persistent)]
    assert periods == [2, 5, 10, 20]
    assert conditions["clustered"].availability.probabilities == (0.5, 0.5, 0.3, 0.3, 0.2)
    assert conditions["100 clients"].availability == pf.FixedFraction(0.1)
    assert rebafl_cifar.TRAINING.learning_rate == 0.02


def test_rebafls_runs_are_kept_one_by_one_and_gathered(tmp_path, monkeypatch, capsys):
    given = "--out", tmp_path, "--small"
    for name, method in (("clustered", "ReBaFL"), ("drop-out for 5 rounds", "FedAvg")):
        call(rebafl_cifar, monkeypatch, *given, "--only", name, "--method", method)
    rows = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["condition"], row["method"]) for row in rows] == [
        ("clustered", "ReBaFL"), ("drop-out for 5 rounds", "FedAvg")
    ]  # fmt: skip
    assert all(len(row["accuracy"]) == row["rounds"] == 2 for row in rows)
    assert "seed 0" in capsys.readouterr().out
    call(rebafl_cifar, monkeypatch, *given, "--only", "clustered", "--method", "ReBaFL")
    assert "seed 0" not in capsys.readouterr().out  # nothing is run again


def test_fedavg_ft_meets_the_drop_outs_of_the_others_and_tunes_on_images_of_no_client(tmp_path, monkeypatch, capsys):
    loaded, tasks = rebafl_tuned_head.load_dataset, []
    simulate = pf.simulate
    monkeypatch.setattr(
        pf, "simulate", lambda task, *given, **named: (tasks.append(task), simulate(task, *given, **named))[1]
    )
    call(rebafl_tuned_head, monkeypatch, "--out", tmp_path, "--small")
    rows = {row["method"]: row for row in json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["rows"]}
    assert list(rows) == list(rebafl_tuned_head.METHODS)
    assert rows[rebafl_tuned_head.ALL_ANSWER]["answered"] == [10, 10]
    assert rows["FedAvg-FT"]["answered"] == rows["FedAvg"]["answered"] == rows["ReBaFL"]["answered"] != [10, 10]
    assert rows["FedAvg-FT"]["accuracy"] != rows["FedAvg"]["accuracy"]
    own = np.load(tmp_path / "server-0.npz")
    assert np.bincount(own["labels"]).tolist() == [3] * 10
    assert all(len(task.targets) == len(loaded("digits", seed=0).targets) - 30 for task in tasks)
    assert all(torch.equal(task.clients.rows, tasks[0].clients.rows) for task in tasks)
    assert "seed 0" in capsys.readouterr().out
    call(rebafl_tuned_head, monkeypatch, "--out", tmp_path, "--small")
    assert "seed 0" not in capsys.readouterr().out  # nothing is run again
