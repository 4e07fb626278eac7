"""All planted defects, each with the experiments that may show it."""

from collections.abc import Callable

from audits.fuzz.experiment import Data, Experiment, Resume
from tests.claims.planted import inside

Like = Callable[[Experiment], bool]


def private(experiment: Experiment) -> bool:
    """DP-SGD at the clients, in a run that is not interrupted."""
    dpsgd = experiment.dpsgd
    return dpsgd is not None and dpsgd.get("noise_at", "client") == "client" and experiment.resume is None


def one_by_one(experiment: Experiment) -> bool:
    """The same, with clients one by one."""
    return private(experiment) and experiment.engine == "loop"


def stacked(experiment: Experiment) -> bool:
    """The same, with clients in a stack."""
    return private(experiment) and experiment.engine == "vectorised"


def stacked_with_a_wide_bound(experiment: Experiment) -> bool:
    """The same, clipped to more than 1."""
    return stacked(experiment) and experiment.dpsgd is not None and experiment.dpsgd["max_grad_norm"] > 1


def stacked_with_a_huge_row(experiment: Experiment) -> bool:
    """The same, where the worlds differ in a row that is far larger than the others, and features are differences."""
    huge = experiment.data.extra in ("huge", "enormous")
    return stacked(experiment) and huge and experiment.model in ("pooled", "contrast")


def several_steps(experiment: Experiment) -> bool:
    """DP-SGD at a rate below 1, so that a round has several steps."""
    dpsgd = experiment.dpsgd
    return private(experiment) and dpsgd is not None and dpsgd["sample_rate"] < 1


def two_rows(experiment: Experiment) -> bool:
    """The same of a client of two rows or one, so that batches are empty in one world only."""
    return several_steps(experiment) and experiment.data.rows[experiment.data.client] == 2


def counts(experiment: Experiment) -> bool:
    """Noisy totals."""
    return bool(experiment.statistics)


def linked(*names: str, at: str = "", unit: str = "client") -> Like:
    """A chain with links of these names, noise added ``at``, tried for ``unit``."""

    def like(experiment: Experiment) -> bool:
        found = [str(link["name"]) for link in experiment.update]
        places = [link.get("at", "server") for link in experiment.update if "gaussian" in link["name"]]
        return (
            all(name in found for name in names)
            and (not at or at in places)
            and experiment.unit == unit
            and experiment.dpsgd is None
            and experiment.cohort["name"] in ("everyone", "rotation", "poisson")
        )

    return like


def sized(experiment: Experiment) -> bool:
    """Sizes that are reported privately, to FedSampling."""
    return experiment.size is not None and experiment.algorithm["name"] == "fedsampling"


def weighed(experiment: Experiment) -> bool:
    """Uploads that are weighed by reported sizes."""
    return experiment.size is not None and experiment.algorithm["name"] != "fedsampling"


def noised_at_the_server(experiment: Experiment) -> bool:
    """DP-SGD whose noise is added to the sum."""
    return experiment.dpsgd is not None and experiment.dpsgd.get("noise_at") == "server"


def amplified(experiment: Experiment) -> bool:
    """Noise on the sum over a secret Poisson cohort."""
    return linked("gaussian-noise", at="server")(experiment) and experiment.cohort["name"] == "poisson"


def several_rounds(experiment: Experiment) -> bool:
    """DP-SGD over several rounds."""
    return private(experiment) and experiment.rounds > 1


INSIDE: dict[str, tuple[Callable[[], list], Like]] = {
    "noise without C in the stacked engine": (inside.noise_without_bound, stacked_with_a_wide_bound),
    "one noise vector for all clients": (inside.one_noise_for_all, stacked),
    "half the noise": (inside.half_the_noise, private),
    "coarse noise": (inside.noise_of_whole_numbers, private),
    "NoisyTotal.deviation halved": (inside.half_deviation_of_totals, counts),
    "totals without clipping": (inside.totals_without_clipping, counts),
    "AdaptiveClip without noise on the bit": (inside.bit_without_noise, linked("adaptive-clip")),
    "AdaptiveClip with z not split": (inside.noise_not_split, linked("adaptive-clip")),
    "AdaptiveClip with a bit of ±1": (inside.a_bit_worth_twice, linked("adaptive-clip")),
    "Sizes.total is the true N": (inside.true_total_of_sizes, sized),
    "Sizes.weights are the true sizes": (inside.true_sizes_as_weights, weighed),
    "a broken upload votes": (inside.broken_uploads_vote, linked("adaptive-clip", "secure-sum")),
    "lengthening dropped at the server": (
        inside.rounding_not_covered,
        linked("clip", "secure-sum", "gaussian-noise", at="server"),
    ),
    "clipping factors × 1.0003": (inside.clipped_a_little_too_long, private),
    "gradients that are not finite pass": (inside.not_finite_passes, private),
    "noise streams without the round": (inside.noise_for_a_client_only, several_rounds),
    "noise streams without the client": (inside.noise_for_a_round_only, private),
    "the same noise in every step": (inside.the_same_noise_in_every_step, several_steps),
    "a divisor from the private batch": (inside.private_divisor, one_by_one),
    "a ledger that counts one release less": (inside.one_release_less, private),
    "draws that hold all rows": (inside.all_rows_are_drawn, several_steps),
    "one draw for all steps": (inside.one_draw_for_all_steps, several_steps),
    "a cohort drawn with public coins": (inside.public_coins, amplified),
    "charged at half the rate": (inside.charged_at_half_the_rate, several_steps),
    "half the noise on updates": (inside.half_the_noise_on_updates, linked("clip", "gaussian-noise")),
    "noise sized by the update": (inside.noise_by_the_update, linked("clip", "gaussian-noise", at="client")),
    "updates not clipped": (inside.updates_not_clipped, linked("clip", "gaussian-noise")),
    "half a share of noise": (inside.half_a_share, linked("skellam-noise")),
    "half a share of discrete Gaussian noise": (inside.half_a_share, linked("discrete-gaussian-noise")),
    "half the noise of a tree": (inside.half_correlated, linked("tree-noise")),
    "half the noise of a band": (inside.half_correlated, linked("banded-noise")),
    "an example charged as a client": (inside.examples_as_clients, linked("clip", "gaussian-noise", unit="sample")),
    "failures dropped": (inside.failures_are_dropped, linked("clip", "gaussian-noise", at="client")),
    "a divisor of who came": (inside.weight_of_who_came, linked("clip", "gaussian-noise", at="server")),
    "an upload with its client's size": (inside.bare_rows_in_the_upload, one_by_one),
    "no noise on empty batches": (inside.quiet_when_empty, two_rows),
    "caveats that tell sizes": (inside.caveats_about_sizes, private),
    "fixed keys that nobody is told of": (inside.fixed_keys_unsaid, private),
    "a refusal that depends on data": (inside.refused_by_the_data, private),
    "half the noise on a sum of gradients": (inside.rounding_of_gradients_not_covered, noised_at_the_server),
    "float64 for all, if one client asks": (inside.float64_for_all_clients, stacked_with_a_huge_row),
}
"""Defects of privfl by name: the change, and which drawn experiments may show it."""
OUT = "tests.claims.planted.outside:"
DPSGD = {"noise_multiplier": 1.0, "sample_rate": 0.5, "max_grad_norm": 1.0}
BASE = Experiment(
    dpsgd=DPSGD, training={"batch_size": 2, "learning_rate": 1.0}, rounds=2, data=Data(rows=(4, 3, 4), client=1)
)
LARGE = BASE.but(
    data=Data(rows=(4, 3, 4), client=1, common="ordinary", extra="huge"), dpsgd={**DPSGD, "sample_rate": 1.0}
)
SMALL = LARGE.but(
    data=Data(rows=(3, 24, 3), client=1, extra="huge"), dpsgd={**DPSGD, "sample_rate": 1.0, "max_grad_norm": 0.1}
)
CLIPPED = ({"name": "clip", "max_norm": 0.1}, {"name": "gaussian-noise", "noise_multiplier": 1.0, "at": "client"})
COUNTED = BASE.but(statistics=({"statistic": "classes", "max_norm": 0.1, "noise_multiplier": 1.0},))
UNIFORM = {"name": "fedavg", "weighting": "uniform"}


def _own(name: str) -> dict:
    return {"name": OUT + name, "weighting": "uniform"}


OUTSIDE: dict[str, Experiment] = {
    "1: a step that adds a row": BASE.but(algorithm=_own("AddsRow")),
    "1: a step that reads the door": BASE.but(algorithm=_own("ReadsDoor")),
    "2: Embedding(max_norm)": BASE.but(model=OUT + "RENORMED"),
    "2: a forward pass that writes a parameter": BASE.but(model=OUT + "WRITES"),
    "2: a forward pass that counts": LARGE.but(model=OUT + "COUNTS"),
    "3: a batch norm of one's own": LARGE.but(model=OUT + "OWN_NORM"),
    "3: a trimmed loss": SMALL.but(loss=OUT + "trimmed"),
    "3: mixup": SMALL.but(loss=OUT + "mixed"),
    "3: a centre loss": LARGE.but(algorithm=_own("Centres")),
    "3: a standardised statistic": COUNTED.but(
        data=Data(rows=(3, 24, 3), client=1, extra="first of class"), algorithm={"name": OUT + "Standardises"}
    ),
    "4: cancelling contributions of huge inputs": LARGE.but(
        model="contrast", data=Data(rows=(4, 3, 4), client=1, common="offset")
    ),
    "5: resumed with another row": BASE.but(rounds=3, resume=Resume(2, False, "row")),
    "5: resumed with another row, from a checkpoint": BASE.but(rounds=3, resume=Resume(1, True, "row")),
    "5: resumed with other noise": BASE.but(rounds=3, resume=Resume(2, False, "noise")),
    "5: resumed without its fixed key": BASE.but(rounds=3, resume=Resume(2, True, "forgotten key")),
    "6: a lost key": BASE.but(rounds=3, resume=Resume(2, False, "lost key")),
    "7: a divisor that tells the draw": Experiment(
        unit="client",
        algorithm=_own("DividesByMembers"),
        update=({"name": "clip", "max_norm": 0.1}, {"name": "gaussian-noise", "noise_multiplier": 1.0}),
        cohort={"name": "poisson", "probability": 0.9},
        rounds=3,
    ),
    "8: the size of the batch of everything": BASE.but(algorithm=_own("ReadsSize")),
    "9: a mechanism that is none": BASE.but(unit="client", update=({"name": OUT + "Mechanical"}, *CLIPPED), dpsgd=None),
    "9: a clip that multiplies": BASE.but(
        unit="client", update=({"name": OUT + "Enlarges", "max_norm": 0.1}, CLIPPED[1]), dpsgd=None
    ),
    "9: a clip that remembers": BASE.but(
        unit="client", update=({"name": OUT + "Remembers", "max_norm": 0.1}, CLIPPED[1]), dpsgd=None
    ),
    "10: a gradient that should stay": BASE.but(algorithm=_own("KeepsGradient")),
    "10: an old batch": BASE.but(algorithm=_own("OldBatch")),
    "10: batches in turn": BASE.but(algorithm=_own("InTurn"), training={"batch_size": 2, "steps": 4}),
    "10: a Poisson plan that yields all rows": BASE.but(algorithm=_own("OwnPlan")),
}
"""What users can hand over, as experiments: number of the finding, and what it is."""
