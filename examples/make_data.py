"""Write a small regression data set: block-000000.bin and so on, 32 samples of 64 inputs and one target (float32) each.

python examples/make_data.py /tmp/data --samples 15360
"""

import argparse
import array
import random
from pathlib import Path

FEATURES = 64
BLOCK = 32


def make_block(source):
    """The rows of one block; the target is the mean of the first eight inputs, so that the loss can fall."""
    rows = array.array("f")
    for _ in range(BLOCK):
        inputs = [source.random() for _ in range(FEATURES)]
        rows.extend(inputs)
        rows.append(sum(inputs[:8]) / 8)
    return rows.tobytes()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=15360, help="rounded up to whole blocks of 32")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    source = random.Random(args.seed)
    for index in range(-(-args.samples // BLOCK)):
        (args.folder / f"block-{index:06d}.bin").write_bytes(make_block(source))


if __name__ == "__main__":
    main()
