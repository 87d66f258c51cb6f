"""The table of operator kinds: one row for each kind says what the kind means.

Every other module asks the table (`kind_of`) instead of listing kinds. A kind without a row is opaque: its tensors are
planned, it is not executed, and nothing is known of its rows. To add a kind, add a row here, a kernel in `kernels`, and
one line in each reader that translates names. Names are ONNX's, or `DOMAIN::NAME` for kinds that ONNX does not define.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["FUSED_CONV", "KINDS", "Kind", "kind_of"]

Category = Literal[
    "activation",
    "unary",
    "binary",
    "n-ary",
    "convolution",
    "transposed convolution",
    "matrix product",
    "pool",
    "global pool",
    "normalisation",
    "reduction",
    "shape-only",
    "movement",
    "constant",
    "quantiser",
    "control flow",
    "other",
]
"""`activation`, `unary`: each element follows from the same element of the first input alone; networks put an
activation behind a layer. `binary`, `n-ary`: each element follows from the same element of two or of several inputs,
which are broadcast. `pool`, `global pool`: joins positions within each channel. `shape-only`: the same elements in the
same sequence. `movement`: the same elements in other places, or values between them. `quantiser`: element by element,
with scales by channel."""

Rows = Literal[
    "unknown",
    "whole",
    "same",
    "window",
    "transposed window",
    "along axis",
    "from axis",
    "product",
    "attention",
    "gather",
    "reshape",
    "transpose",
    "reduction",
    "space to depth",
    "depth to space",
    "resize",
    "pad",
    "slice",
]
"""Which rows of the inputs make a row of the result. `unknown`: not known. `whole`: all rows. `same`: the same row.
`window`: the rows under a sliding window. `transposed window`: the rows whose window holds that row. `along axis`: the
same row; all rows where the attribute `axis` names the dimension of the rows. `from axis`: the same row; all rows where
that dimension is at or behind `axis`. `product`: the same row of the first operand and all of the second, or the same
column of the second and all of the first, or the same batch of both. `attention`: the same row of the first operand
and of the mask, which is the fourth, and all of the second and third. `gather`: the same row of the indices or of the
data. The others are as ONNX defines the kind of that name; `reshape` keeps the sequence of all elements."""

Macs = Literal["none", "convolution", "transposed convolution", "gemm", "matmul", "recurrent", "matrices"]
"""The formula by which multiply-accumulates are counted (`graph.cost`)."""

Further = Literal["operands", "weights", "channel values", "numbers"]
"""The meaning of the inputs behind the first. `operands`: tensors that are broadcast against it. `weights`: factors of
products. `channel values`: one value for each channel. `numbers`: axes, sizes or limits, which are read when the
operator is prepared."""

Draws = Literal["never", "in training", "always"]


@dataclass(frozen=True, slots=True)
class Kind:
    """The properties of a kind."""

    name: str
    category: Category = "other"
    rows: Rows = "unknown"
    further: Further = "operands"
    macs: Macs = "none"
    axis: int = 0
    """The default of the attribute `axis`."""
    adds: int | None = None
    """The position of an optional input that is added to the result."""
    fused: tuple[str, ...] | None = None
    """The attributes of an activation that a fused convolution lists as `activation_params`, in this sequence. None:
    the kind cannot be fused into a convolution."""
    twin: str = ""
    """The standard kind that this kind extends; both mean the same where the extensions are not used."""
    draws: Draws = "never"
    """Whether the result is drawn at random."""
    sized: bool = False
    """Whether the result may depend on the batch size although all inputs are constants."""
    executed: bool = True
    """Whether `kernels` computes it."""
    needs: int = 1
    """How many inputs an operator of the kind has at least, from the first on."""

    @property
    def standard(self) -> str:
        """The name of the twin, or the kind's name where it has none."""
        return self.twin or self.name

    @property
    def unary(self) -> bool:
        """Whether it computes each element of its result from the same element of its first input alone."""
        return self.category in ("activation", "unary")

    @property
    def broadcasts(self) -> bool:
        """Whether it computes each element of its result from the same element of two or more inputs."""
        return self.category in ("binary", "n-ary")

    @property
    def pools(self) -> bool:
        """Whether it joins positions within each channel."""
        return self.category in ("pool", "global pool")

    @property
    def convolves_or_pools(self) -> bool:
        """Whether PICO counts it as a layer; PICO does not count matrix products."""
        return self.pools or self.category in ("convolution", "transposed convolution")

    @property
    def layer(self) -> bool:
        """Whether it begins a layer; pointwise operators behind it belong to the layer."""
        return self.convolves_or_pools or self.category == "matrix product"


FUSED_CONV = "com.microsoft::FusedConv"
GROUP_QUERY_ATTENTION = "com.microsoft::GroupQueryAttention"
"""ONNX Runtime's convolution with an activation, and with an input that is added before the activation."""


def _all(
    names: str, category: Category, rows: Rows = "same", *, executed: bool = True, needs: int = 1
) -> tuple[Kind, ...]:
    return tuple(Kind(name, category, rows, executed=executed, needs=needs) for name in names.split())


_ACTIVATIONS = (
    Kind("Clip", "activation", "same", "numbers", fused=("min", "max")),
    Kind("HardSigmoid", "activation", "same", fused=("alpha", "beta")),
    Kind("LeakyRelu", "activation", "same", fused=("alpha",)),
    Kind("Relu", "activation", "same", fused=()),
    Kind("Sigmoid", "activation", "same", fused=()),
    Kind("Tanh", "activation", "same", fused=()),
    Kind("com.microsoft::Gelu", "activation", "same", twin="Gelu"),
    *_all("Celu Elu Gelu HardSwish Mish Selu Shrink Softplus Softsign Swish ThresholdedRelu", "activation"),
    Kind("com.microsoft::QuickGelu", "activation", "same"),
    Kind("com.microsoft::FastGelu", "activation", "same", executed=False),
)
_ELEMENTWISE = (
    *_all("Abs Acos Acosh Asin Asinh Atan Atanh Cast Ceil Cos Cosh Erf Exp Floor Identity IsInf IsNaN Log", "unary"),
    *_all("Neg Not Reciprocal Round Sign Sin Sinh Sqrt Tan tflite::RSQRT tflite::SQUARE", "unary"),
    *_all("BitwiseNot", "unary", executed=False),
    *_all("Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Mul Or PRelu Pow Sub Xor", "binary", needs=2),
    *_all("BitShift BitwiseAnd BitwiseOr BitwiseXor Mod com.microsoft::BiasGelu", "binary", executed=False, needs=2),
    *_all("Max Mean Min Sum", "n-ary"),
    Kind("Where", "n-ary", "same", needs=3),
)
_LAYERS = (
    Kind("Conv", "convolution", "window", "weights", "convolution", needs=2),
    Kind(FUSED_CONV, "convolution", "window", "weights", "convolution", adds=3, twin="Conv", needs=2),
    Kind("ConvTranspose", "transposed convolution", "transposed window", "weights", "transposed convolution", needs=2),
    Kind("Gemm", "matrix product", "product", "weights", "gemm", adds=2, needs=2),
    Kind("com.microsoft::FusedGemm", "matrix product", "product", "weights", "gemm", adds=2, twin="Gemm", needs=2),
    Kind("MatMul", "matrix product", "product", "weights", "matmul", needs=2),
    Kind("com.microsoft::FusedMatMul", "matrix product", "product", "weights", "matmul", twin="MatMul", needs=2),
    *_all("AveragePool MaxPool", "pool", "window"),
    *_all("GlobalAveragePool GlobalMaxPool", "global pool", "whole"),
    Kind("LpPool", "pool", "window", executed=False),
    Kind("GlobalLpPool", "global pool", "whole", executed=False),
)
_NORMALISATIONS = (
    Kind("BatchNormalization", "normalisation", "same", "channel values", needs=5),
    Kind("InstanceNormalization", "normalisation", "whole", "channel values", needs=3),
    Kind("LRN", "normalisation", "same", "channel values"),
    Kind("LayerNormalization", "normalisation", "from axis", axis=-1, needs=2),
    Kind("RMSNormalization", "normalisation", "from axis", axis=-1, needs=2),
    Kind("com.microsoft::SkipLayerNormalization", "normalisation", "from axis", axis=-1, needs=3),
    Kind("Softmax", "normalisation", "along axis", axis=-1),
    Kind("LogSoftmax", "normalisation", "along axis", axis=-1),
    # Before opset 13 these kinds treated all axes from `axis` on as one.
    Kind("ai.onnx.12::Softmax", "normalisation", "from axis", axis=1, executed=False),
    Kind("ai.onnx.12::LogSoftmax", "normalisation", "from axis", axis=1, executed=False),
)
_REDUCTIONS = (
    Kind("ArgMax", "reduction", "whole", "numbers"),
    Kind("ArgMin", "reduction", "whole", "numbers"),
    Kind("ReduceMax", "reduction", "reduction", "numbers"),
    Kind("ReduceMean", "reduction", "reduction", "numbers"),
    Kind("ReduceMin", "reduction", "reduction", "numbers"),
    Kind("ReduceSum", "reduction", "reduction", "numbers"),
    Kind("ReduceProd", "reduction", "reduction", "numbers", executed=False),
)
_MOVEMENTS = (
    Kind("Flatten", "shape-only", "reshape"),
    Kind("Reshape", "shape-only", "reshape", "numbers"),
    Kind("Squeeze", "shape-only", "reshape", "numbers"),
    Kind("Unsqueeze", "shape-only", "reshape", "numbers"),
    Kind("Concat", "movement", "along axis"),
    Kind("DepthToSpace", "movement", "depth to space"),
    Kind("Expand", "movement", "whole", "numbers", sized=True),
    Kind("Gather", "movement", "gather", needs=2),
    Kind("GatherElements", "movement", "whole", needs=2),
    Kind("Pad", "movement", "pad", "numbers"),
    Kind("Resize", "movement", "resize", "numbers"),
    Kind("Slice", "movement", "slice", "numbers"),
    Kind("SpaceToDepth", "movement", "space to depth"),
    Kind("Split", "movement", "along axis", "numbers"),
    Kind("Tile", "movement", "whole", "numbers", sized=True),
    Kind("Transpose", "movement", "transpose", "numbers"),
    Kind("Upsample", "movement", "resize", "numbers"),
    Kind("tflite::PACK", "movement", "whole"),
    Kind("tflite::SLICE", "movement", "slice", "numbers", executed=False, needs=3),
    Kind("tflite::SPLIT_V", "movement", "along axis", "numbers"),
    Kind("tflite::STRIDED_SLICE", "movement", "slice", "numbers", needs=4),
    Kind("tflite::UNPACK", "movement", "whole"),
)
_OTHERS = (
    Kind("Constant", "constant", "whole", needs=0),
    Kind("ConstantOfShape", "constant", "whole"),
    Kind("Shape", "constant", "whole", sized=True),
    Kind("DequantizeLinear", "quantiser", "same"),
    Kind("QuantizeLinear", "quantiser", "same", executed=False),
    Kind("Dropout", "other", "same", "numbers", draws="in training"),
    *(
        Kind(name, draws="always", executed=False)
        for name in (
            "Bernoulli",
            "Multinomial",
            "RandomNormal",
            "RandomNormalLike",
            "RandomUniform",
            "RandomUniformLike",
        )
    ),
    *_all("If Loop Scan SequenceMap", "control flow", "unknown", executed=False),
)
_RECURRENT = tuple(Kind(name, macs="recurrent", executed=False, needs=3) for name in ("GRU", "LSTM", "RNN"))
_STEPS = tuple(
    Kind(f"tflite::{name}", macs="matrices", executed=False, needs=3)
    for name in ("BIDIRECTIONAL_SEQUENCE_LSTM", "LSTM", "RNN", "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM")
)
"""TFLite's layers that keep a state, with a matrix for each gate."""
_OPAQUE = _all(
    "AffineGrid Attention BitCast BlackmanWindow CastLike CausalConvWithState CenterCropPad Col2Im Compress "
    "ConcatFromSequence ConvInteger CumProd CumSum DFT DeformConv Det DynamicQuantizeLinear Einsum EyeLike "
    "GatherND GridSample GroupNormalization HammingWindow HannWindow Hardmax ImageDecoder LinearAttention "
    "LpNormalization MatMulInteger MaxRoiPool MaxUnpool MeanVarianceNormalization MelWeightMatrix "
    "NegativeLogLikelihoodLoss NonMaxSuppression NonZero OneHot Optional OptionalGetElement OptionalHasElement "
    "QLinearConv QLinearMatMul Range ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare "
    "RegexFullMatch ReverseSequence RoiAlign RotaryEmbedding STFT Scatter ScatterElements ScatterND SequenceAt "
    "SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Size SoftmaxCrossEntropyLoss "
    "SplitToSequence StringConcat StringNormalizer StringSplit SwiGLU TensorScatter TfIdfVectorizer TopK Trilu Unique",
    "other",
    "unknown",
    executed=False,
)
"""ONNX kinds of which only the sizes of their tensors are known."""

_PYTORCH = (
    *_all(
        "aten::add.Tensor aten::sub.Tensor aten::mul.Tensor aten::div.Tensor aten::rsub.Scalar", "other", executed=False
    ),
    *_all(
        "aten::pow.Tensor_Scalar aten::clamp.default aten::gelu.default aten::relu6.default", "other", executed=False
    ),
    *_all("aten::hardsigmoid.default aten::elu.default aten::mish.default", "other", executed=False),
    *_all("aten::add_.Tensor aten::sub_.Tensor aten::mul_.Tensor aten::div_.Tensor", "other", executed=False),
    *_all("aten::contiguous.default aten::clone.default aten::to.dtype", "other", executed=False),
    *_all("aten::rsqrt.default aten::cos.default aten::sin.default", "other", executed=False),
    *(Kind(f"aten::{name}", "movement", "slice", "numbers", executed=False) for name in ("select.int", "slice.Tensor")),
    Kind("aten::unbind.int", "movement", "reduction", "numbers", executed=False),
    *_all("aten::upsample_nearest2d.vec aten::upsample_nearest2d.default", "movement", "resize", executed=False),
    Kind("aten::scaled_dot_product_attention.default", "other", "attention", executed=False, needs=3),
)
"""PyTorch's operators that no kind of ONNX's is, or with arguments that it has not: `kernels.aten` runs them."""

KINDS: Mapping[str, Kind] = {
    row.name: row
    for rows in (
        _ACTIVATIONS,
        _ELEMENTWISE,
        _LAYERS,
        _RECURRENT,
        _STEPS,
        _NORMALISATIONS,
        _REDUCTIONS,
        _MOVEMENTS,
        _OTHERS,
        _OPAQUE,
        _PYTORCH,
    )
    for row in rows
}


def kind_of(name: str) -> Kind:
    """The row of a kind; for a name that is not in the table, a row that says `opaque`: rows unknown, not executed."""
    return KINDS.get(name) or Kind(name, executed=False)
