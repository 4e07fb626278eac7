"""The main job: what privacy costs a federation of real digits, what leaks without it, and whether claims are true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from privfl.commands.demo_sentences import attacked, audited, costs, hidden
from privfl.commands.examine import check, examine
from privfl.data.partitions.skewed import Dirichlet
from privfl.errors import PrivflError
from privfl.federation.task import Task, load
from privfl.files import write_whole
from privfl.privacy.accounting.printed import round_up
from privfl.study.axes import Variant
from privfl.study.file import Study
from privfl.study.results import Results, Row
from privfl.study.shown import report_study
from privfl.study.store import OWN_PAGE, Member, Store
from privfl.study.tables import Format, spread, write_table

TITLE = "Privacy, utility, an attack and an audit on digits"
SIZE = {"name": "laplace", "epsilon": 4.0, "bound": 160, "lower": 20}
"""How clients report their sizes: the range is public knowledge about the federation, not taken from its data.
An answer costs the client ε = 4, and one example, which moves its client's size by 1 of 140, only 4/140 < 0.03."""
CLIENTS = 20
ATTACKED = 2
"""The client whose message is read, one of the larger ones."""


def digits(rounds: int, **settings: Any) -> dict[str, Any]:
    """What the experiments on the digits share: 20 clients of unlike sizes and labels, logistic regression."""
    common: dict[str, Any] = {
        "rounds": rounds,
        "evaluate_every": 5,
        "workers": 1,
        "dataset": {"name": "digits"},
        "partition": {"name": "dirichlet", "clients": CLIENTS, "alpha": 1.0, "skew": "both"},
        "model": {"name": "logistic"},
    }
    return common | settings


def what_privacy_costs(seeds: int, rounds: int) -> Study:
    """FedAvg and FedSampling at four levels; every ε of one method trains with the same learning rate.

    FedAvg's clients add their noise themselves, so its claims hold against the server too. FedSampling's noise is added
    once, to the sum, which costs less accuracy and protects against the public only.
    """
    clipped = {"max_grad_norm": 1.0}
    return Study(
        digits(rounds, privacy={"size": SIZE, "max_size_error": 1.0}),
        title="What privacy costs",
        seeds=seeds,
        epsilon=(np.inf, 8.0, 3.0, 1.0),
        variants=(
            Variant(
                "FedAvg",
                {
                    "algorithm": {"name": "fedavg"},
                    "training": {"learning_rate": 0.5, "batch_size": 18, "epochs": 1},
                    "privacy": {"training": clipped | {"sample_rate": 0.25}},
                },
            ),
            Variant(
                "FedSampling",
                {
                    "algorithm": {"name": "fedsampling", "samples_per_round": 300},
                    "training": {"learning_rate": 2.0},
                    "privacy": {"training": clipped | {"noise_at": "server"}},
                },
            ),
        ),
    )


def what_a_secure_sum_hides(seeds: int, rounds: int) -> Study:
    """FedSampling whose server opens a sum that the clients have put noise into, share by share: no cell stays ∞."""
    return Study(
        digits(
            rounds,
            algorithm={"name": "fedsampling", "samples_per_round": 300},
            training={"learning_rate": 1.0},
            privacy={"size": SIZE, "max_size_error": 1.0},
        ),
        title="What a secure sum hides",
        seeds=seeds,
        variants=(Variant("Secure sum"), *map(_shares_of, (1.0, 4.0))),
    )


def _shares_of(noise: float) -> Variant:
    chain = [
        {"name": "clip", "max_norm": 0.05},
        {"name": "discrete-gaussian-noise", "noise_multiplier": noise},
        {"name": "secure-sum"},
    ]
    return Variant(f"noise {noise:g}", {"privacy": {"update": chain}}, axis="noise multiplier")


def what_an_attack_finds(epochs: int) -> Study:
    """The same images at the same clients, with labels that mean nothing: what is learnt is learnt by heart.

    The server, which sees every client's message, asks of each image whether that client trained on it.
    """
    return Study(
        {
            "task": f"{__name__}:meaningless_labels",
            "rounds": 1,
            "workers": 1,
            "record": ["server"],
            "algorithm": {"name": "fedavg", "weighting": "uniform"},
            "training": {"learning_rate": 0.3, "batch_size": 18, "epochs": epochs},
            "privacy": {"training": {"sample_rate": 0.25, "max_grad_norm": 1.0}},
        },
        title="What an attack finds",
        epsilon=(np.inf, 1.0),
        variants=(Variant("FedAvg, labels by heart"),),
        attacks=({"name": "loss-trajectory", "client": ATTACKED},),
        public_share=0.1,
    )


def whether_the_claim_is_true(canaries: int) -> Study:
    """The federation with one step a round, so that an audit can tell what each step adds."""
    return Study(
        digits(
            10,
            record=["server"],
            algorithm={"name": "fedavg", "weighting": "uniform"},
            training={"learning_rate": 0.5, "batch_size": 18, "steps": 1},
            privacy={"training": {"sample_rate": 0.25, "max_grad_norm": 1.0}},
        ),
        title="Whether the claim is true",
        epsilon=(8.0, 1.0),
        variants=(Variant("FedAvg, one step a round"),),
        audits=({"name": "rare-tokens", "canaries": canaries},),
    )


def meaningless_labels(seed: int) -> Task:
    """The demo's images at the demo's clients, each with a label drawn at random, the held-out ones too."""
    images = load("digits", partition=Dirichlet(clients=CLIENTS, alpha=1.0, skew="both"), model="logistic", seed=seed)
    owners = np.empty(len(images.targets), dtype=np.int64)
    for client in range(len(images.clients)):
        owners[images.clients[client].numpy()] = client
    held, tested = len(images.targets), len(images.test_targets)
    labels = np.random.default_rng(seed).integers(0, images.classes, held + tested)
    return Task.from_arrays(
        np.asarray(images.inputs),
        labels[:held],
        clients=owners,
        test=(np.asarray(images.test_inputs), labels[held:]),
        classes=images.classes,
        model="two-nn",
        seed=seed,
    )


def studies(*, seeds: int = 3, rounds: int = 60, epochs: int = 60, canaries: int = 500) -> list[Study]:
    """The demo's four, in the order in which they are told."""
    return [
        what_privacy_costs(seeds, rounds),
        what_a_secure_sum_hides(seeds, max(1, rounds // 3)),
        what_an_attack_finds(epochs),
        whether_the_claim_is_true(canaries),
    ]


def run_demo(out: Path, planned: list[Study] | None = None, processes: int | None = None) -> list[Member]:
    """Run the studies into one store in ``out``, print what they found, and write one report about all of them.

    What was interrupted goes on where it was.

    Returns:
        The runs that failed.

    Raises:
        PrivflError: every run failed.
    """
    console, store = Console(), Store(out)
    planned = studies() if planned is None else planned
    runs = sum(len(study.points()) for study in planned)
    console.print(
        f"[bold]{TITLE}[/bold]\n1,438 images at {CLIENTS} clients, {runs} runs, δ = 1e-5; about two minutes on two "
        "cores.\n",
        soft_wrap=True,
    )
    found = []
    for study in planned:
        console.print(study.title, highlight=False)
        found.append(study.run(out, processes=processes, examine=examine, check=check))
    together = Results(TITLE, [one for results in found for one in results.members])
    failed = [one for one in together.members if one.state in ("failed", "impossible")]
    if not together.done:
        raise PrivflError(f"no run of the demo succeeded; the first says: {failed[0].reason}")
    console.print()
    console.print(table([row for results in found[:2] if results.done for row in results.rows()]))
    for paragraph in (costs(found[0]), hidden(found[1]), attacked(found[2], store), audited(found[3], store)):
        if paragraph:
            console.print(f"\n{paragraph}", highlight=False, soft_wrap=True)
    store.enrol(OWN_PAGE, "", together.told, together.members)  # by which `privfl report` finds them
    write_whole(out / "results.csv", write_table(together, Format.csv).encode())
    page = report_study(together, store, out)
    for one in failed:
        console.print(f"[red]failed:[/red] {one}: {one.reason}", highlight=False, soft_wrap=True)
    console.print(f"\nReport: {page}\nFigures: {out / 'figures'}\nResults: {out / 'results.csv'}", soft_wrap=True)
    return failed


def table(rows: list[Row]) -> Table:
    """What the digits cost, for the terminal."""
    shown = Table("method", "level", title_justify="left")
    heads = {"ε server": "sample/server", "ε public": "sample/public", "ε of a client": "client/server"}
    for name in ("accuracy (%)", *heads):
        shown.add_column(name, justify="right")
    for place, row in enumerate(rows):
        claims = (round_up(row.epsilons[cell]) for cell in heads.values())
        last = place + 1 < len(rows) and rows[place + 1].method != row.method
        shown.add_row(row.method, row.level, spread(row, percent=True).removesuffix(" %"), *claims, end_section=last)
    shown.caption = "ε at δ = 1e-5, size answers included; of one image, and last of a whole client against the server"
    return shown
