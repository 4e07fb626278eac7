"""``--full`` of every paper: each column is built from small official files, checked for all methods, and runs."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module

import pytest
import torch

import full
import privfl as pf
from full import aaggff, fedevg, fedsampling, running, wordpieces
from tests.data.official import entry
from tests.examples import papers_data

PAPERS = ("fedsampling", "grpfed", "rebafl", "superfed", "aaggff", "fedevg")
TABLES = {paper: import_module(f"full.{paper}").TABLE for paper in PAPERS}
FIRST = ("FedAvg", "FedCVAE", "MM, L = 0.4")
"""The cheapest row of each table."""


@pytest.fixture(scope="session")
def room(tmp_path_factory):
    folder = tmp_path_factory.mktemp("papers")
    papers_data.write_all(folder)
    return folder


@pytest.fixture
def small(room, monkeypatch):
    """Official files that are small, and networks that would be too large for a test."""
    monkeypatch.setenv("PRIVFL_DATA", str(room))
    monkeypatch.setattr("privfl.data.catalog.info", entry)
    monkeypatch.setattr("privfl.data.files.verify", lambda *_: None)
    monkeypatch.setattr(wordpieces, "SIZES", papers_data.ENCODER)
    monkeypatch.setattr(aaggff, "SIDE", 32)
    monkeypatch.setattr(fedsampling, "VOCABULARY", 100)
    monkeypatch.setattr(fedsampling, "SIZES", {"embedding_dim": 8, "hidden": 8})
    for name, value in (("CLASSIFIER", "energy-cnn"), ("ENERGY", "energy-cnn"), ("EPOCHS", 1)):
        monkeypatch.setattr(fedevg, name, value)


def study_of(paper, out):
    """A study of few clients and rows; GRP-FED's partition gives nobody fewer than twenty."""
    clients, rows = (2, 40) if paper == "grpfed" else (6, papers_data.ROWS)
    return running.Study(TABLES[paper], out, rounds=1, clients=clients, rows=rows, engine="loop")


def unlike(study):
    """The first of all columns that share data, network and rows: the others differ by numbers alone."""
    found = {}
    for column in study.table.columns:
        task = study.task(column, column.seeds[0])
        assert len(task.clients) >= min(2, study.clients)
        for name in column.methods:
            assert column.arguments(name, task)["training"].batch_size > 0
        found.setdefault((column.data, task.model_name, tuple(column.methods)), column)
    return list(found.values())


@pytest.mark.parametrize("paper", PAPERS)
def test_every_column_is_built_and_each_kind_fits_all_methods_and_runs(paper, small, tmp_path, capsys):
    study = study_of(paper, tmp_path)
    columns = unlike(study)
    method = next(name for name in FIRST if name in columns[0].methods)
    import time;t=time.process_time()
    for c in columns:
        study.check(c); print("CHECK", c.name, time.process_time()-t); t=time.process_time()
    assert running.carried_out(study, columns, FIRST, [0]) == []
    print("RUN", [(r["column"], r["processor_seconds"]) for r in study.kept()])
    kept = study.kept()
    assert {row["column"] for row in kept} == {column.name for column in columns}
    assert {row["seed"] for row in kept if row["method"] == method} == {0}
    for column in columns:
        lines = list(running.printed(column, kept))
        assert f"| {column.name} |" in lines[0]
        assert len(lines) == 3
