"""A million mutated messages with valid seals to the parties of secure sums: ``python benchmarks/secagg_fuzz.py``.

Half of them under each adversary, alternately to the server and to a client, phase by phase. Whatever comes must be
refused by a named error and change nothing, or be taken. Writes ``results/secagg-fuzz.json`` with what came of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the campaign lies beside the tests, which run a share of it
from tests.privacy.secagg.fuzzing import Campaign

RESULT = Path(__file__).parent / "results" / "secagg-fuzz.json"


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    os.nice(15)
    record: dict[str, object] = {"messages": options.messages}
    for adversary in ("semi-honest", "active"):
        began = time.process_time()
        counts: Counter[tuple[str, str]] = Campaign(adversary, 0).run(options.messages // 2)
        record[adversary] = {
            "processor_seconds": round(time.process_time() - began),
            "outcomes": {f"{side}: {name}": number for (side, name), number in counts.most_common()},
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(adversary, record[adversary], flush=True)


if __name__ == "__main__":
    main()
