"""``privfl account``: from noise to ε, from ε to noise, and what repeated answers add up to."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privfl.commands.printing import Json, print_json

if TYPE_CHECKING:
    from privfl.privacy.accounting.accountant import Bound

app = typer.Typer(
    help="Turn noise into ε, a target ε into noise, and repeated answers into their total.", no_args_is_help=True
)

Rate = Annotated[float, typer.Option(metavar="RATE", help="Poisson sampling rate of one step, in (0, 1].")]
Steps = Annotated[int, typer.Option(metavar="N", help="Number of steps (rounds × steps of a round).")]
Delta = Annotated[float, typer.Option(metavar="DELTA", help="δ of the claim.")]


@app.command("epsilon")
def epsilon_(
    noise_multiplier: Annotated[
        float, typer.Option(metavar="Z", help="Standard deviation of the noise / clipping norm.")
    ],
    steps: Steps,
    sample_rate: Rate = 1.0,
    delta: Delta = 1e-5,
    opacus: Annotated[
        bool,
        typer.Option("--opacus", metavar="", help="The interval by Opacus, as in statements (slower)."),
    ] = False,
    json: Json = False,
) -> None:
    """ε of DP-SGD: Gaussian noise on Poisson-sampled sums, composed over all steps (add or remove one)."""
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent

    from privfl.errors import PrivacyError
    from privfl.privacy.accounting.accountant import epsilon
    from privfl.validation import check_noise

    _check_delta(delta)
    check_noise("--noise-multiplier", noise_multiplier)
    if not 0 < sample_rate <= 1 or steps < 1:
        raise PrivacyError(f"{steps} steps at sampling rate {sample_rate}; give a rate in (0, 1] and at least one step")
    event = PoissonSampledDpEvent(sample_rate, GaussianDpEvent(noise_multiplier))
    bound = epsilon({(event, NeighboringRelation.ADD_OR_REMOVE_ONE): steps}, delta, opacus=opacus)
    _show(bound, delta, json)


@app.command()
def noise(
    target_epsilon: Annotated[float, typer.Option(metavar="EPSILON", help="ε that the whole run may spend.")],
    steps: Steps,
    sample_rate: Rate = 1.0,
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """The smallest noise multiplier whose claim stays within a target ε."""
    from privfl.privacy.accounting.calibration import noise_multiplier_for

    _check_delta(delta)
    found = noise_multiplier_for(target_epsilon, delta, {sample_rate: steps})
    if json:
        print_json({"noise_multiplier": found, "target_epsilon": target_epsilon, "delta": delta})
    else:
        typer.echo(f"noise multiplier {found:.6g} keeps ε ≤ {target_epsilon:g} at δ = {delta:g}")


@app.command()
def response(
    epsilon: Annotated[float, typer.Option(metavar="EPSILON", help="ε of one answer.")],
    domain: Annotated[int, typer.Option(metavar="D", help="D, number of possible answers.")],
    answers: Annotated[int, typer.Option(metavar="T", help="T, number of fresh answers about the same value.")],
    delta: Delta = 1e-5,
    json: Json = False,
) -> None:
    """Total ε of T fresh randomised responses over D values, by their exact privacy loss."""
    from privfl.privacy.accounting.accountant import randomized_response_total
    from privfl.validation import check_count

    _check_delta(delta)
    check_count("--answers", answers)
    _show(randomized_response_total(epsilon, domain, answers, delta), delta, json)


def _check_delta(delta: float) -> None:
    from privfl.errors import PrivacyError

    if not 0 <= delta < 0.5:
        raise PrivacyError(
            f"--delta is {delta:g}; give a number from 0 up to but not including 0.5, such as 1e-5: at a half or more "
            "a claim says nothing, however few there are to protect"
        )


def _show(bound: Bound, delta: float, as_json: bool) -> None:
    fewer = f"{1 / delta:.3g}" if delta > 0 else "∞"
    empty = f"ε is 0 because δ alone allows all this: a claim for fewer than {fewer} units, else none"
    if as_json:
        values: dict[str, Any] = {"delta": delta, **asdict(bound)}
        if bound.epsilon == 0 < delta:
            values["note"] = empty
        print_json(values)
        return
    typer.echo(f"ε = {bound.epsilon:.6g} at δ = {delta:g}   (claim, by {bound.accountant})")
    typer.echo(
        f"exact value in [{bound.lower:.6g}, {bound.upper:.6g}], best guess {bound.estimate:.6g}   "
        f"({bound.interval_source})"
    )
    if bound.epsilon == 0 < delta:
        typer.echo(empty)
