"""`python -m experiments.zoo NAME -o NAME.onnx` writes a network, `--list` lists them."""

from __future__ import annotations

import argparse

import onnx

from experiments.zoo import ZOO, counts


def main() -> None:
    parser = argparse.ArgumentParser(prog="experiments.zoo", description=__doc__)
    parser.add_argument("name", nargs="?", choices=ZOO, metavar="NAME", help=", ".join(ZOO))
    parser.add_argument("-o", dest="output", help="the .onnx file to write (default: NAME.onnx)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fused", action="store_true", help="activations inside the convolutions (ONNX Runtime only)")
    parser.add_argument("--batch-norm", action="store_true", help="batch normalisation beside the convolutions")
    parser.add_argument("--list", action="store_true", help="all networks with operators, MACs and weights")
    arguments = parser.parse_args()
    options = {"seed": arguments.seed, "fused": arguments.fused, "batch_norm": arguments.batch_norm}
    if arguments.list:
        print(f"{'network':26} {'operators':>9} {'MACs':>10} {'weights':>10}")
        for name, build in ZOO.items():
            found = counts(build(**options))
            print(f"{name:26} {found['ops']:9} {found['macs'] / 1e6:9.1f}M {found['weights'] / 1e6:9.3f}M")
        return
    if arguments.name is None:
        parser.error("name a network, or use --list")
    path = arguments.output or f"{arguments.name}.onnx"
    onnx.save(ZOO[arguments.name](**options), path)
    print(path)


if __name__ == "__main__":
    main()
