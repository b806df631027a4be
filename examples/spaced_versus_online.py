"""One network on one data set, with an online and with a spaced teacher.

Run it with: python examples/spaced_versus_online.py FOLDER
"""

import sys
from dataclasses import replace
from pathlib import Path

from spacedkd import DataSpec, NetworkSpec, Online, OptimizerSpec, RateSpec, RunSpec, Spaced, train


def main(folder: Path, epochs: float = 20) -> dict[str, float]:
    online = RunSpec(
        data=DataSpec("digits", train_limit=200),
        network=NetworkSpec("resnet18_small", {"width": 8}),
        schedule=Online(),
        epochs=epochs,
        batch_size=16,
        optimizer=OptimizerSpec(lr=0.01),
        rate=RateSpec("cosine"),
    )
    spaced = replace(online, schedule=Spaced("1.5ep"))
    runs = {"online": online, "spaced": spaced}
    return {name: train(spec, folder / name).accuracy for name, spec in runs.items()}


if __name__ == "__main__":
    for name, accuracy in main(Path(sys.argv[1])).items():
        print(f"{name}: {100 * accuracy:.1f} % (student, deepest head, last epoch, one seed)")
