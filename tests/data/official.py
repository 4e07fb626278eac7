"""Small files in the official formats of datasets that are not here, and a round of DP-SGD on what they hold."""

import io
import json
from dataclasses import replace

import numpy as np
from PIL import Image

import privfl as pf
from privfl.data import info
from privfl.data.catalog import load_dataset

RNG = np.random.default_rng(8)


def entry(name):
    """The catalog's entry without its counts, which a small file cannot have."""
    return replace(info(name), counts={})


def loaded(name, monkeypatch, room, **options):
    """The dataset as a user loads it: from a folder that ``PRIVFL_DATA`` names."""
    monkeypatch.setenv("PRIVFL_DATA", str(room))
    monkeypatch.setattr("privfl.data.catalog.info", entry)
    return load_dataset(name, **options)


def picture(colours, kind="JPEG"):
    """The bytes of a picture of ``colours`` uint8 [H, W, 3]."""
    file = io.BytesIO()
    Image.fromarray(colours).save(file, kind, quality=95)
    return file.getvalue()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def write_leaf(folder, users):
    """What LEAF's scripts write: one JSON file with the rows and labels of each of ``users``."""
    data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    told = {"users": list(users), "num_samples": [len(x) for x, _ in users.values()], "user_data": data}
    write(folder / "all_data_niid_0_keep_0_train_9.json", json.dumps(told))


def private_round(data, model, **options):
    """One round of FedAvg with DP-SGD on ``data``; its statement's ε for one example against the server."""
    partition = None if data.clients is not None else pf.IID(clients=2)
    task = pf.Task.from_dataset(data, model=model, model_options=options, partition=partition)
    run = pf.simulate(
        task,
        pf.FedAvg(),
        rounds=1,
        weighting="uniform",
        training=pf.LocalTraining(steps=1),
        privacy=pf.Privacy(training=pf.DPSGD(noise_multiplier=1.0, sample_rate=0.5)),
        execution=pf.Execution(engine="loop", workers=1),
    )
    assert run.parameters.isfinite().all()
    return run.statement.cell("sample", "server").epsilon
