"""Random .tflite networks for strips: odd sizes, strides, pads, dilations, branches and residuals."""

import numpy as np
from hypothesis import strategies as st

from tests.tflite_net import TfliteNet

SAME, VALID = 0, 1


class StripNet(TfliteNet):
    """Images of any size, channels last; int8 activations have a scale and a zero point of their own."""

    def shape(self, tensor):
        return tuple(int(extent) for extent in self.main.tensors[tensor].shape)

    def activation(self, shape, like=None):
        """`like`: the tensor whose quantisation it has."""
        made = self.tensor(shape, scale=self.random.uniform(0.05, 0.2))
        if self.dtype == "int8":
            self.main.tensors[made].quantization.zeroPoint[0] = self.random.integers(-20, 21)
            if like is not None:
                self.main.tensors[made].quantization = self.main.tensors[like].quantization
        return made

    def symmetric(self, tensor, like):
        """The tensor, with the scale of another one and the zero point 0."""
        self.main.tensors[tensor].quantization = type(self.main.tensors[like].quantization)()
        self.main.tensors[tensor].quantization.scale = self.main.tensors[like].quantization.scale
        self.main.tensors[tensor].quantization.zeroPoint = np.zeros(1, np.int64)
        return tensor

    def start(self, height, width, channels):
        self.main.inputs.append(self.activation((1, height, width, channels)))
        return self.main.inputs[-1]

    def add_op(self, name, inputs, shape, options, *, like=None, **settings):
        made = self.op(name, inputs, shape[-1], options, **settings)
        self.main.tensors.pop()
        assert self.activation(shape, like) == made
        return made

    def constant(self, values, dtype="int32"):
        made = self.tensor(np.shape(values), dtype, values)
        self.main.tensors[made].quantization = None
        return made

    def _window(self, x, kernel, stride, dilation, padding):
        sizes = []
        for size, k, s, d in zip(self.shape(x)[1:3], kernel, stride, dilation, strict=True):
            sizes.append(-(-size // s) if padding == SAME else (size - (k - 1) * d - 1) // s + 1)
        return sizes

    def _weights(self, x, shape, axis):
        scale = self.random.uniform(0.02, 0.05, shape[axis])
        weights, bias = self.random.integers(-90, 91, shape), self.random.integers(-300, 301, shape[axis])
        if self.dtype == "float32":
            return self.tensor(shape, value=weights / 64), self.tensor(shape[axis : axis + 1], value=bias / 64)
        entry = self.main.tensors[x].quantization
        return (
            self.tensor(shape, value=weights, scale=scale, axis=axis),
            self.tensor((shape[axis],), "int32", bias, scale * float(entry.scale[0])),
        )

    def window(self, x, draw, *, channels=None):
        """A convolution, dense or (without `channels`) depthwise."""
        kernel = draw(st.sampled_from([(1, 1), (3, 3), (2, 2), (3, 1), (1, 3), (5, 3), (2, 3)]))
        stride = draw(st.sampled_from([1, 1, 2, 3]))
        dilation = draw(st.sampled_from([1, 1, 2])) if stride == 1 else 1
        padding = draw(st.sampled_from([SAME, SAME, VALID]))
        sizes = self._window(x, kernel, (stride,) * 2, (dilation,) * 2, padding)
        if min(sizes) < 1:
            return x
        settings = {
            "strideH": stride,
            "strideW": stride,
            "padding": padding,
            "dilationHFactor": dilation,
            "dilationWFactor": dilation,
            "fusedActivationFunction": draw(st.sampled_from([0, 1, 3])),
        }
        depth = self.channels(x)
        if channels is not None:
            weights = self._weights(x, (channels, *kernel, depth), 0)
            return self.add_op("CONV_2D", (x, *weights), (1, *sizes, channels), "Conv2DOptions", **settings)
        multiplier = draw(st.sampled_from([1, 1, 2]))
        weights = self._weights(x, (1, *kernel, depth * multiplier), 3)
        settings["depthMultiplier"] = multiplier
        shape = (1, *sizes, depth * multiplier)
        return self.add_op("DEPTHWISE_CONV_2D", (x, *weights), shape, "DepthwiseConv2DOptions", **settings)

    def pool(self, x, draw):
        kernel = draw(st.sampled_from([(2, 2), (3, 3), (3, 2)]))
        stride = draw(st.sampled_from([1, 2]))
        padding = draw(st.sampled_from([SAME, VALID]))
        sizes = self._window(x, kernel, (stride,) * 2, (1, 1), padding)
        if min(sizes) < 1:
            return x
        name = draw(st.sampled_from(["MAX_POOL_2D", "AVERAGE_POOL_2D"]))
        return self.add_op(
            name,
            (x,),
            (1, *sizes, self.channels(x)),
            "Pool2DOptions",
            like=x,
            strideH=stride,
            strideW=stride,
            filterHeight=kernel[0],
            filterWidth=kernel[1],
            padding=padding,
            fusedActivationFunction=draw(st.sampled_from([0, 1])),
        )

    def viewed(self, x, draw):
        """A tensor that other shapes look at: one of them, read with the tensor itself, or twice."""
        looked = self.reshaped(x, draw)
        match draw(st.integers(0, 3)):
            case 0:
                return self.residual(x, looked)
            case 1:
                return self.residual(looked, looked)
            case 2:
                return self.residual(self.reshaped(x, draw), looked)
        return looked

    def residual(self, x, y):
        return self.add_op("ADD", (x, y), self.shape(x), "AddOptions")

    def branches(self, x, draw):
        parts = [self.window(x, draw, channels=2) for _ in range(2)]
        parts = [part for part in parts if self.shape(part)[:3] == self.shape(x)[:3] and part != x]
        if len(parts) < 2:
            return x
        if self.dtype == "int8":  # a concatenation does not rescale in TFLite Micro
            self.main.tensors[parts[1]].quantization = self.main.tensors[parts[0]].quantization
        shape = (*self.shape(x)[:3], 4)
        return self.add_op("CONCATENATION", parts, shape, "ConcatenationOptions", like=parts[0], axis=3)

    def split(self, x):
        """Into one part: the format lists the axis before the tensor."""
        return self.add_op("SPLIT", (self.constant(3), x), self.shape(x), "SplitOptions", like=x, numSplits=1)

    def sliced(self, x, draw):
        """Positions along one dimension, by a SLICE, or by a STRIDED_SLICE with steps and masks, which may take one
        position without its dimension."""
        shape = list(self.shape(x))
        axis = draw(st.sampled_from([1, 1, 2, 3]))
        begin = draw(st.integers(0, min(2, shape[axis] - 1)))
        begins = [0] * 4
        begins[axis] = begin
        if draw(st.booleans()):
            shape[axis] = draw(st.integers(1, shape[axis] - begin))
            return self.add_op("SLICE", (x, self.constant(begins), self.constant(shape)), shape, "SliceOptions", like=x)
        step, ends = draw(st.integers(1, 2)), list(shape)
        steps = [step if place == axis else 1 for place in range(4)]
        counted = draw(st.booleans())
        begins[axis] = begin - shape[axis] if counted else begin
        shape[axis] = -(-(shape[axis] - begin) // step)
        masks = {
            "beginMask": 0b1111 & ~(1 << axis) if draw(st.booleans()) else 0,
            "endMask": draw(st.sampled_from([0, 15])),
        }
        if draw(st.integers(0, 3)) == 0:
            begins[axis], ends[axis] = begin - counted * ends[axis], begin + 1
            bounds = [self.constant(one) for one in (begins, ends, [1] * 4)]
            shape = [size for place, size in enumerate(self.shape(x)) if place != axis]
            one = self.add_op(
                "STRIDED_SLICE", (x, *bounds), shape, "StridedSliceOptions", like=x, shrinkAxisMask=1 << axis
            )
            shape.insert(axis, 1)
            return self.add_op("EXPAND_DIMS", (one, self.constant([axis])), shape, "ExpandDimsOptions", like=one)
        bounds = [self.constant(one) for one in (begins, ends, steps)]
        return self.add_op("STRIDED_SLICE", (x, *bounds), shape, "StridedSliceOptions", like=x, **masks)

    def divided(self, x, draw):
        """Into two parts along the channels, which are joined the other way round."""
        depth = self.channels(x)
        if depth < 2:
            return x
        shape = self.shape(x)[:3]
        sizes = (depth // 2, depth - depth // 2)
        parts = [self.activation((*shape, size), x) for size in sizes]
        if depth % 2 == 0 and draw(st.booleans()):
            self.op("SPLIT", (self.constant(3), x), sizes[0], "SplitOptions", numSplits=2)
        else:
            self.op("SPLIT_V", (x, self.constant(sizes), self.constant(3)), sizes[0], "SplitVOptions", numSplits=2)
        self.main.tensors.pop()
        self.main.operators[-1].outputs = np.asarray(parts, np.int32)
        return self.add_op("CONCATENATION", parts[::-1], (*shape, depth), "ConcatenationOptions", like=x, axis=3)

    def reshaped(self, x, draw):
        """To rank 5 and back: with a shape in the options alone, by EXPAND_DIMS, and by SQUEEZE."""
        batch, height, width, depth = self.shape(x)
        apart = (batch, height, 1, width, depth)
        if draw(st.booleans()):
            apart = self.add_op("EXPAND_DIMS", (x, self.constant([2])), apart, "ExpandDimsOptions", like=x)
        else:
            apart = self.add_op("RESHAPE", (x,), apart, "ReshapeOptions", like=x, newShape=list(apart))
        if draw(st.booleans()):
            return self.add_op("SQUEEZE", (apart,), self.shape(x), "SqueezeOptions", like=x, squeezeDims=[2])
        return self.add_op("RESHAPE", (apart,), self.shape(x), "ReshapeOptions", like=x, newShape=list(self.shape(x)))

    def widened(self, x):
        """A convolution of one position with weights of 16 bits that an operator widens (float32 alone)."""
        depth = self.channels(x)
        shape = (depth, 1, 1, depth)
        weights = self.tensor(shape, "float16", self.random.uniform(-1, 1, shape).astype("float16"))
        wide = self.op("DEQUANTIZE", (weights,), depth, "DequantizeOptions")
        self.main.tensors[wide].shape = shape
        options = {"strideH": 1, "strideW": 1, "padding": VALID, "dilationHFactor": 1, "dilationWFactor": 1}
        bias = self.tensor((depth,), value=self.random.uniform(-1, 1, depth))
        return self.add_op("CONV_2D", (x, wide, bias), self.shape(x), "Conv2DOptions", **options)

    def padded(self, x, draw):
        pairs = [[0, 0], *([draw(st.integers(0, 2)), draw(st.integers(0, 2))] for _ in range(2)), [0, 0]]
        shape = [size + sum(pair) for size, pair in zip(self.shape(x), pairs, strict=True)]
        return self.add_op("PAD", (x, self.constant(pairs)), shape, "PadOptions", like=x)

    def resized(self, x, draw):
        """By 2, 3 or 4; the format's fixed-point scale is exact for powers of two only."""
        batch, height, width, depth = self.shape(x)
        factor = draw(st.sampled_from([2, 3, 4]))
        kind = draw(st.sampled_from(["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"]))
        options = "ResizeBilinearOptions" if kind == "RESIZE_BILINEAR" else "ResizeNearestNeighborOptions"
        shape = (batch, height * factor, width * factor, depth)
        half = draw(st.booleans())
        return self.add_op(
            kind, (x, self.constant(shape[1:3])), shape, options, like=x, halfPixelCenters=half, alignCorners=False
        )


@st.composite
def viewed_networks(draw):
    """(network, its outputs): sums, activations and views of tensors that other operators read, too."""
    net = StripNet(draw(st.integers(0, 99)), dtype="int8")
    start = net.start(4, 4, 4)
    flat, apart = net.shape(start), (1, 4, 1, 4, 4)
    made = [start]

    def shaped(tensor, shape):
        if net.shape(tensor) == shape:
            return tensor
        return net.add_op("RESHAPE", (tensor,), shape, "ReshapeOptions", like=start, newShape=list(shape))

    for _ in range(draw(st.integers(3, 8))):
        source = made[-draw(st.integers(1, min(3, len(made)))) :][0]
        match draw(st.integers(0, 3)):
            case 0 | 1:
                made.append(shaped(source, apart if net.shape(source) == flat else flat))
            case 2:
                alike = [one for one in made if net.shape(one) == net.shape(source)]
                other = draw(st.sampled_from(alike[-3:]))
                made.append(net.add_op("ADD", (source, other), net.shape(source), "AddOptions", like=start))
            case _:
                made.append(net.add_op("RELU", (source,), net.shape(source), "", like=start))
    read = {tensor for op in net.main.operators for tensor in op.inputs}
    results = [tensor for op in net.main.operators for tensor in op.outputs]
    return net, [tensor for tensor in results if tensor not in read or draw(st.integers(0, 5)) == 0]


@st.composite
def strip_networks(draw, dtype):
    """(network, its outputs)."""
    net = StripNet(draw(st.integers(0, 999)), dtype=dtype)
    current = net.start(draw(st.integers(6, 14)), draw(st.integers(3, 9)), draw(st.integers(1, 4)))
    outputs = []
    for _ in range(draw(st.integers(2, 7))):
        kind = draw(
            st.sampled_from(
                [
                    *["conv", "depthwise"] * 3,
                    "pool",
                    "block",
                    "branches",
                    "pad",
                    "up",
                    "split",
                    "slice",
                    "divide",
                    "reshape",
                ]
            )
        )
        before = current
        if kind == "conv":
            current = net.window(current, draw, channels=draw(st.integers(1, 5)))
        elif kind == "depthwise":
            current = net.window(current, draw)
        elif kind == "pool":
            current = net.pool(current, draw)
        elif kind == "block":
            inner = net.window(net.window(current, draw), draw, channels=net.channels(current))
            current = net.residual(current, inner) if net.shape(inner) == net.shape(current) != inner else inner
        elif kind == "branches":
            current = net.branches(current, draw)
        elif kind == "split":
            current = net.split(current)
        elif kind == "slice":
            current = net.sliced(current, draw)
        elif kind == "divide":
            current = net.divided(current, draw)
        elif kind == "reshape":
            current = net.viewed(current, draw)
        elif kind == "pad":
            current = net.padded(current, draw)
        elif net.shape(current)[1] < 16:
            current = net.resized(current, draw)
        if current != before and draw(st.integers(0, 4)) == 0:
            outputs.append(current)
    if current in net.main.inputs:
        current = net.window(current, draw, channels=2)
    if current in net.main.inputs:
        current = net.residual(current, current)
    return net, list(dict.fromkeys([current, *outputs]))
