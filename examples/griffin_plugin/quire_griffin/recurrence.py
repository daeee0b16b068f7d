"""The gated recurrence in plain torch. Parameters and matrices have the names of the checkpoint."""

import torch
from torch import nn
from torch.nn.functional import gelu, softplus

from quire_models.modules.recurrent.convolution import CausalConvolution


class GatedRecurrenceModule(nn.Module):
    """A convolution and a recurrence, multiplied with a branch of their own input."""

    def __init__(self, width, part, builder):
        super().__init__()
        self.layer, shape = builder.layer, (part.heads, part.width // part.heads)
        self.linear_x, self.linear_y = (builder.projection(width, part.width, bias=True) for _ in "xy")
        self.linear_out = builder.projection(part.width, width, bias=True)
        self.conv_1d = CausalConvolution(part.width, part.kernel, True, "identity", builder)
        self.recurrent_param = builder.parameter(part.width)
        self.input_gate_bias, self.recurrent_gate_bias = (builder.parameter(*shape) for _ in "ir")
        self.input_gate_weight, self.recurrent_gate_weight = (builder.parameter(*shape, shape[1]) for _ in "ir")

    def forward(self, x, fwd):
        """x [tokens, width] -> [tokens, width]; advances the state of each row, which is zero before position 0."""
        u = self.conv_1d(self.linear_x(x, fwd), fwd)
        gates = self._gate(u, self.recurrent_gate_weight, self.recurrent_gate_bias)
        decay = (-8 * gates * softplus(self.recurrent_param.float())).exp()
        s = u.float() * self._gate(u, self.input_gate_weight, self.input_gate_bias)
        s *= torch.where(fwd.positions[:, None] == 0, 1.0, (1 - decay**2).sqrt())
        states, starts = fwd.state.tensors[self.layer][1], fwd.query_starts.tolist()
        for slot, begin, end in zip(fwd.state_slots.tolist(), starts[:-1], starts[1:], strict=True):
            for t in range(begin, end):
                s[t] += decay[t] * (states[slot] if t == begin else s[t - 1])
            states[slot] = s[end - 1]
        return self.linear_out(gelu(self.linear_y(x, fwd), approximate="tanh") * s.to(x.dtype), fwd)

    def _gate(self, u, weight, bias):
        """u [tokens, width] -> float32 [tokens, width], by one matrix for each head."""
        h = torch.einsum("thi,hio->tho", u.unflatten(-1, bias.shape), weight) + bias
        return torch.sigmoid(h).flatten(1).float()
