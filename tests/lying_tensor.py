"""A kind of tensor whose own code decides what PyTorch says of it."""

import torch


class Lying(torch.Tensor):
    """Has norm 0 whatever it holds."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        answer = super().__torch_function__(function, types, arguments, named or {})
        with torch._C.DisableTorchFunctionSubclass():
            return answer * 0 if "norm" in function.__name__ else answer
