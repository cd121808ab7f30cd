"""A RETROfit that is trained for longer: what part of the gain from scratch it comes to.

    python benchmarks/longer_fits.py STUDY [--scale small] [--steps 160 500 1000]

STUDY is the folder in which `retro reproduce figure-retrofit --scale small --out STUDY` has run. The same
baseline is fitted with more steps, each fit beginning anew, and scored on the study's test documents. Run
again, it goes on. A row for each: bits per byte, what is saved of the baseline's bits, and that as a part of
what RETRO saves that was trained from scratch.
"""

import argparse
from pathlib import Path

from retro.cli.console import RichNarrator, print_table
from retro.reproduce.scales import SCALES
from retro.scoring.evaluate import OFF, on
from retro.scoring.intervals import bootstrap_ratio, relative_gain
from retro.scoring.wording import percent
from retro.study import Study


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--scale", default="small")
    parser.add_argument("--steps", type=int, nargs="+", default=[160, 500, 1000])
    options = parser.parse_args()
    scale = SCALES[options.scale]()
    study = Study(options.study, scale.run, scale.sources, RichNarrator())
    study.prepare()
    k = max(study.run.evaluation.num_neighbours)
    baseline = study.evaluated("baseline").document_bits(OFF)
    scratch = study.evaluated("retro").document_bits(on(k))
    rows = []
    for steps in options.steps:
        name = "retrofit" if steps == scale.fit_steps else f"retrofit-{steps}"
        study.fit(name, steps)
        fitted = study.evaluate(name)
        bits = fitted.document_bits(on(k))
        rows.append(
            [
                f"{steps:,}",
                f"{fitted.bits_per_byte(on(k)):.4f}",
                percent(relative_gain(bits, baseline)),
                percent(bootstrap_ratio(baseline - bits, baseline - scratch)),
            ]
        )
    steps_of_scratch = study.run.training.num_steps
    print_table(
        f"from scratch, {steps_of_scratch:,} steps: {percent(relative_gain(scratch, baseline))} saved",
        ["steps of the fit", "bits per byte", "saved of the baseline's", "of the gain from scratch"],
        rows,
    )


if __name__ == "__main__":
    main()
