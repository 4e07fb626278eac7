"""FedEvg beside FedCVAE and FedCGAN over three seeds, each with a setting chosen on validation images.

    PRIVFL_DATA=… python examples/papers/fedevg_tuned.py --out results/fedevg-tuned
    python examples/papers/fedevg_tuned.py --out results/small --small       # 8 x 8 digits: does it run?

Clients, images, rounds and scores are those of ``fedevg.py``. For each method and each α four values of the one number
it lives by, a factor of √10 apart, and one beyond where the best is at an end, are tried on a seed that is not
compared, and scored on training images that neither clients nor features hold; the best then meets the test images on
three other seeds. Finished runs in ``fedevg-tuned.json`` are kept, so an interrupted study goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from fedevg import Distances, one_run, parsed, pictures
from scipy.stats import t as student
from synthetic import trained_features

TUNING_SEED = 1000
ALPHAS = ("1.0", "0.01")
GRIDS = {
    "signed": ("step_size", (0.316, 1.0, 3.16, 10.0)),
    "fedcvae": ("fedcvae_rate", (3.16e-3, 1e-2, 3.16e-2, 1e-1)),
    "fedcgan": ("fedcgan_rate", (3.16e-4, 1e-3, 3.16e-3, 1e-2)),
}
"""Of each method the setting that is tuned, as ``fedevg.py`` calls it, and what is tried; FedEvg weighs by sign."""


def train(alpha: str, way: str, value: float, seed: int, tuning: bool, options: argparse.Namespace) -> dict[str, Any]:
    """One run with its scores: on held-out training images when ``tuning``, else on the test images."""
    own = argparse.Namespace(**vars(options))
    setattr(own, GRIDS[way][0], value)
    own.seed, own.held_out = seed, tuning
    own.out = options.out / f"{'tuning' if tuning else 'run'}-{alpha}-{way}-{value:g}-{seed}"
    own.out.mkdir(parents=True, exist_ok=True)
    images = pictures(own)
    source = "training images that no client holds"
    features = trained_features(*images.others, 10, source=source, seed=seed)
    row = one_run(f"{alpha}:{way}", images, Distances(features, features(images.test[0])), own)
    return {
        "alpha": alpha,
        "method": way,
        "value": value,
        "seed": seed,
        **{name: row[name] for name in ("test_accuracy", "fid", "kid", "nearest_held", "nearest_others")},
        **({"accuracy_of_more": row["accuracy_of_more"]} if "accuracy_of_more" in row else {}),
        "warnings": row["warnings"],
        "seconds": row["processor_seconds"],
    }


def chosen(tuning: list[dict[str, Any]], alpha: str, way: str) -> float:
    """The value with the most accurate classifier among those that were tried for ``way`` at ``alpha``."""
    tried = [row for row in tuning if (row["alpha"], row["method"]) == (alpha, way)]
    return float(max(tried, key=lambda row: row["test_accuracy"])["value"])


def beyond(grid: tuple[float, ...], value: float) -> float | None:
    """The next value after ``value`` if that is an end of ``grid``."""
    return {grid[0]: grid[0] ** 2 / grid[1], grid[-1]: grid[-1] ** 2 / grid[-2]}.get(value)


def compared(rows: list[dict[str, Any]]) -> list[str]:
    """Mean ± standard deviation of each method, and FedEvg's paired differences with 95 % intervals."""
    lines = []
    for alpha in ALPHAS:
        for way in GRIDS:
            cells = {row["seed"]: row for row in rows if (row["alpha"], row["method"]) == (alpha, way)}
            base = {row["seed"]: row for row in rows if (row["alpha"], row["method"]) == (alpha, "signed")}
            for name, scale in (("test_accuracy", 100.0), ("fid", 1.0)):
                values = [scale * row[name] for row in cells.values()]
                if not values:
                    continue
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                text = f"α = {alpha}, {way}, {name}: {statistics.mean(values):.2f} ± {spread:.2f}, of {len(values)}"
                both = sorted(set(cells) & set(base))
                if way != "signed" and len(both) > 1:
                    each = [scale * (base[seed][name] - cells[seed][name]) for seed in both]
                    reach = student.ppf(0.975, len(each) - 1) * statistics.stdev(each) / len(each) ** 0.5
                    mean = statistics.mean(each)
                    text += f"; FedEvg − it {mean:+.2f} [{mean - reach:.2f}, {mean + reach:.2f}]"
                lines.append(text)
    return lines


def main() -> None:
    """Tune, run what is missing, print the comparison."""
    options = parsed()
    seeds, alphas = ((1,), ALPHAS[:1]) if options.small else ((1, 2, 3), ALPHAS)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "fedevg-tuned.json"
    images = ("images", "others", "side", "samples_per_class")
    names = ("rounds", "clients", "epochs", "width", "classifier_epochs", *images)
    setting = {name: getattr(options, name) for name in names} | {"tuning_seed": TUNING_SEED}
    stored: dict[str, Any] = {"setting": setting, "tuning": [], "rows": []}
    if path.exists():
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["setting"] != setting:
            raise SystemExit(f"{path} holds runs of other settings; give another folder")

    def add(part: str, alpha: str, way: str, value: float, seed: int) -> None:
        wanted = (alpha, way, value, seed)
        if any((row["alpha"], row["method"], row["value"], row["seed"]) == wanted for row in stored[part]):
            return
        row = train(*wanted, part == "tuning", options)
        stored[part].append(row)
        path.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        print(f"{part} {wanted}: {row['test_accuracy']:.4f} in {row['seconds']} s", flush=True)

    for alpha in alphas:
        for way, (_, grid) in GRIDS.items():
            for value in grid[:2] if options.small else grid:
                add("tuning", alpha, way, value, TUNING_SEED)
            if (value := beyond(grid, chosen(stored["tuning"], alpha, way))) is not None and not options.small:
                add("tuning", alpha, way, value, TUNING_SEED)
    for seed in seeds:
        for alpha in alphas:
            for way in GRIDS:
                add("rows", alpha, way, chosen(stored["tuning"], alpha, way), seed)
    best = {(alpha, way): chosen(stored["tuning"], alpha, way) for alpha in alphas for way in GRIDS}
    print("\n".join(compared([row for row in stored["rows"] if best[row["alpha"], row["method"]] == row["value"]])))


if __name__ == "__main__":
    main()
