"""A tiny recorded run that everything is tried on."""

from pathlib import Path

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
