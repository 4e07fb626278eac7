"""A tiny recorded run that everything is tried on."""

from pathlib import Path

import numpy as np

import privfl as pf


def recorded(folder: Path, **more) -> Path:
    """A run of six clients of three digits."""
    task = pf.load("digits", partition=pf.GivenSizes(sizes=(3,) * 6), model="two-nn", model_options={"hidden": (32,)})
    pf.simulate(
        task,
        pf.FedAvg(weighting="uniform"),
        rounds=2,
        training=pf.LocalTraining(learning_rate=0.1, batch_size=3, epochs=1),
        record=True,
        out=folder,
        execution=pf.Execution(engine="loop", workers=1),
        **more,
    )
    return folder


def regression() -> pf.Task:
    """Images of no catalogue whose mean brightness is predicted."""
    images = np.random.default_rng(0).random((120, 1, 12, 12)).astype("float32")
    return of_kind("regression", images, images.mean((1, 2, 3)), "two-nn")


def bytes_of_images() -> pf.Task:
    """Images of no catalogue with values from 0 to 255, of which nine are of each of two classes."""
    images = np.random.default_rng(0).random((120, 1, 8, 8)).astype("float32") * 255
    sizes = pf.GivenSizes(sizes=(1,) * 96)
    return pf.Task.from_arrays(images, np.arange(120) % 2, model="two-nn", partition=sizes)


def multi_label() -> pf.Task:
    """Rows of six values, of which three are above 0 or not."""
    values = np.random.default_rng(0).normal(size=(120, 6)).astype("float32")
    return of_kind("multi-label", values, (values[:, :3] > 0).astype(int), "two-nn")


def next_token() -> pf.Task:
    """Sequences of five tokens out of twelve."""
    tokens = np.random.default_rng(0).integers(0, 12, size=(120, 6))
    return of_kind("next-token", tokens, None, "next-token-lstm", vocabulary=12)


def of_kind(kind: str, inputs, targets, model: str, **more) -> pf.Task:
    """A task of a ``kind``, of 32 clients of three rows."""
    sizes = pf.GivenSizes(sizes=(3,) * 32)
    return pf.Task.from_arrays(inputs, targets, kind=kind, model=model, partition=sizes, **more)
