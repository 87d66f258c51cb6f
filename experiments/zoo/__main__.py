"""`python -m experiments.zoo NAME -o NAME.onnx` writes a network, `--list` lists them."""

from __future__ import annotations

import argparse

import onnx

from experiments.zoo import ZOO, counts

# MACs and weights in millions, as Table 1 of the ordering paper (SERENITY) prints them. How it counts is not said, and
# RandWire's regime and seeds are not public.
_PRINTED = {
    "swiftnet_hpd": (57.4, 0.2497),
    "darts": (574.0, 4.7),
    "randwire_cifar10": (111.0, 1.2),
    "randwire_cifar100": (160.0, 4.7),
}


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
        print(f"{'network':20} {'operators':>9} {'MACs':>10} {'weights':>9}   paper: MACs, weights")
        for name, build in ZOO.items():
            found = counts(build(**options, weights=False))
            macs, weights = found["macs"] / 1e6, found["weights"] / 1e6
            paper = "{:.1f}M, {}M".format(*_PRINTED[name]) if name in _PRINTED else ""
            print(f"{name:20} {found['ops']:9} {macs:9.1f}M {weights:8.3f}M   {paper}".rstrip())
        return
    if arguments.name is None:
        parser.error("name a network, or use --list")
    path = arguments.output or f"{arguments.name}.onnx"
    onnx.save(ZOO[arguments.name](**options), path)
    print(path)


if __name__ == "__main__":
    main()
