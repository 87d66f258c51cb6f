"""`python -m zoo NAME -o NAME.onnx` writes a network, `--list` lists them."""

from __future__ import annotations

import argparse

import onnx

from zoo import ZOO, counts

# MACs and weights in millions, as Table 1 of the ordering paper (SERENITY) prints them. How it counts is not said.
_PRINTED = {
    "swiftnet_hpd": (57.4, 0.2497),
    "darts": (574.0, 4.7),
    "randwire_cifar10": (111.0, 1.2),
    "randwire_cifar100": (160.0, 4.7),
}

_WHY = """
MACs here are multiplications of convolutions and matrix products, weights those with batch normalisation folded.
Why they differ from the ordering paper's Table 1, as far as public definitions tell:
  swiftnet_hpd       Each operator has the MACs of the published .tflite file, 56,156,504 together; its authors' 57.40M
                     (their read-me, which Table 1 repeats) is a count of more than that, of what is not said. 249.7K is
                     the read-me's "model size 249.73KB", bytes of a file rather than a number of weights.
  darts              The same network: with the scales and shifts of batch normalisation it has 4,718,752 weights, the
                     4.719M of its authors' pretrained model. Nobody's count of that model gives 574M: others find 523M
                     and 544.6M (github.com/quark0/darts/issues/46, where its authors were asked for theirs).
  randwire_cifar*    RandWire is defined for ImageNet; the regime for CIFAR and the seeds are not public. Table 1's two
                     differ 3.9-fold in weights and 1.44-fold in MACs, so they are not one network at two widths, as
                     ours are. With one convolution as a stem in place of two ours would be 44.6M and 160.2M MACs.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="zoo", description=__doc__)
    parser.add_argument("name", nargs="?", choices=ZOO, metavar="NAME", help=", ".join(ZOO))
    parser.add_argument("-o", dest="output", help="the .onnx file to write (default: NAME.onnx)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fused", action="store_true", help="activations inside the convolutions (ONNX Runtime only)")
    parser.add_argument("--batch-norm", action="store_true", help="batch normalisation apart from the convolutions")
    parser.add_argument("--list", action="store_true", help="all networks with operators, MACs and weights")
    arguments = parser.parse_args()
    options = {"seed": arguments.seed, "fused": arguments.fused, "batch_norm": arguments.batch_norm}
    if arguments.list:
        print(f"{'network':20} {'operators':>9} {'MACs':>10} {'weights':>9}   paper: MACs, weights")
        for name, build in ZOO.items():
            numbers = counts(build(**options, weights=False))
            macs, weights = numbers["macs"] / 1e6, numbers["weights"] / 1e6
            paper = "{:.1f}M, {}M".format(*_PRINTED[name]) if name in _PRINTED else ""
            print(f"{name:20} {numbers['ops']:9} {macs:9.1f}M {weights:8.3f}M   {paper}".rstrip())
        print(_WHY)
        return
    if arguments.name is None:
        parser.error("name a network, or use --list")
    path = arguments.output or f"{arguments.name}.onnx"
    try:
        onnx.save(ZOO[arguments.name](**options), path)
    except OSError as error:
        parser.error(f"cannot write {path}: {error.strerror}")
    print(path)


if __name__ == "__main__":
    main()
