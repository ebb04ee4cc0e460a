"""A projection multiplies as torch does, packed or not, and holds its weights once."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gpu_worker.projection import projection

ROWS = (0, 1, 3, 32, 65, 300)
HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("biased", [False, True])
def test_it_multiplies_as_torch_does(dtype: torch.dtype, biased: bool) -> None:
    weight = torch.randn(96, 80, dtype=dtype) / 9
    bias = torch.randn(96, dtype=dtype) if biased else None
    multiply = projection(weight.clone(), bias)
    for rows in ROWS:
        x = torch.randn(rows, 80, dtype=dtype)
        torch.testing.assert_close(multiply(x), F.linear(x, weight, bias))


@HALVES
def test_a_packed_weight_is_in_memory_once(dtype: torch.dtype) -> None:
    weight, shared = torch.ones(64, 64, dtype=dtype), torch.ones(64, 64, dtype=dtype)
    multiply = projection(weight)
    again = projection(shared, keep=True)
    one = torch.ones(1, 64, dtype=dtype)
    assert (multiply(one) == 64).all()
    assert (again(one) == 64).all()
    packs = weight.untyped_storage().nbytes() == 0
    assert packs == _packs(dtype)
    assert shared.untyped_storage().nbytes() == 64 * 64 * 2, "somebody else reads this one"


def test_a_float32_weight_stays_as_it_is() -> None:
    weight = torch.ones(64, 64)
    projection(weight)
    assert weight.untyped_storage().nbytes() == 64 * 64 * 4


def _packs(dtype: torch.dtype) -> bool:
    supported = torch.ops.mkldnn._is_mkldnn_bf16_supported, torch.ops.mkldnn._is_mkldnn_fp16_supported
    return bool(supported[dtype == torch.float16]())
