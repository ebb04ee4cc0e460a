"""The paged decode kernels against float64, on poisoned memory, as they are and inside of a graph.

Without a GPU they run in Triton's interpreter: fewer shapes, since it is slow.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.slow

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BLOCKS_A_ROW = 40
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}
SHAPES = [(4, 4, 64), (9, 3, 64), (32, 8, 128), (8, 1, 256), (16, 2, 80), (6, 2, 16), (40, 8, 96), (4, 2, 8)]
INTERPRETED = {(9, 3, 64), (16, 2, 80)}
LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 200, 16 * BLOCKS_A_ROW, 333]


def on_a_gpu(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.gpu)


class Case:
    """Rows of some lengths in a pool whose places beyond them are NaN."""

    def __init__(
        self, heads: int, kv_heads: int, head_dim: int, lengths: list[int], dtype: torch.dtype, size: int = 16
    ):
        self.device = torch.device(DEVICE)
        generator = torch.Generator(DEVICE).manual_seed(1)
        rows = len(lengths)
        self.block_size, self.group = size, heads // kv_heads
        blocks = rows * BLOCKS_A_ROW + 1
        shape = (blocks, size, kv_heads, head_dim)
        self.keys = torch.randn(shape, device=DEVICE, generator=generator).to(dtype)
        self.values = torch.randn(shape, device=DEVICE, generator=generator).to(dtype)
        self.q = torch.randn((rows, heads, head_dim), device=DEVICE, generator=generator).to(dtype)
        order = torch.randperm(blocks - 1, device=DEVICE, generator=generator) + 1
        self.tables = torch.zeros((rows + 3, BLOCKS_A_ROW), dtype=torch.int32, device=DEVICE)
        self.slots = (torch.randperm(rows + 3, device=DEVICE, generator=generator)[:rows]).int()
        for row, slot in enumerate(self.slots.tolist()):
            self.tables[slot] = order[row * BLOCKS_A_ROW : (row + 1) * BLOCKS_A_ROW].int()
            used = torch.arange(BLOCKS_A_ROW * size, device=DEVICE) >= lengths[row]
            own = self.tables[slot].long()
            self.keys[own] = self.keys[own].masked_fill(used.view(BLOCKS_A_ROW, size, 1, 1), float("nan"))
            self.values[own] = self.values[own].masked_fill(used.view(BLOCKS_A_ROW, size, 1, 1), float("nan"))
        self.keys[0] = self.values[0] = float("nan")  # nobody's block: padding writes there
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)

    def expected(self, window: int, scale: float) -> Tensor:
        out = []
        for row, length in enumerate(self.lengths.tolist()):
            blocks = self.tables[self.slots[row]].long()
            first = max(0, length - window) if window else 0
            k, v = (
                x[blocks].flatten(0, 1)[first:length].double().repeat_interleave(self.group, 1)
                for x in (self.keys, self.values)
            )
            weight = torch.einsum("hd,lhd->hl", self.q[row].double(), k) * scale
            out.append(torch.einsum("hl,lhd->hd", weight.softmax(-1), v))
        return torch.stack(out)


def kernels(case: Case, scale: float | None = None):  # type: ignore[no-untyped-def]
    from gpu_worker.paged_decode import PagedDecode

    rows, heads, head_dim = case.q.shape
    made = PagedDecode(rows, heads, case.keys.shape[2], head_dim, case.block_size, scale, case.device)
    made._out.fill_(float("nan"))
    made._weight.fill_(float("nan"))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, on_a_gpu(torch.bfloat16)], ids=str)
@pytest.mark.parametrize("shape", [s if s in INTERPRETED else on_a_gpu(s) for s in SHAPES], ids=str)
def test_rows_of_any_length_are_as_in_float64(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    case = Case(*shape, LENGTHS, dtype)
    out = kernels(case).attend(case.q, case.keys, case.values, case.tables, case.slots, case.lengths, window=0)
    torch.testing.assert_close(out.double(), case.expected(0, shape[2] ** -0.5), atol=TOLERANCE[dtype], rtol=2e-2)


@pytest.mark.parametrize("window", [5, 100, *map(on_a_gpu, [1, 64, 10_000])])
def test_through_a_window_only_the_newest_positions_are_seen(window: int) -> None:
    case = Case(9, 3, 64, [1, 4, 5, 6, 64, 99, 100, 101, 400], torch.float32)
    out = kernels(case).attend(case.q, case.keys, case.values, case.tables, case.slots, case.lengths, window=window)
    torch.testing.assert_close(out.double(), case.expected(window, 64**-0.5), atol=2e-6, rtol=1e-3)


@pytest.mark.parametrize("size", [1, 4, on_a_gpu(16), 64])
@pytest.mark.parametrize("rows", [3, *map(on_a_gpu, [1, 70])])
def test_any_block_size_number_of_rows_and_scale(size: int, rows: int) -> None:
    case = Case(8, 2, 64, [1 + 7 * row % (size * BLOCKS_A_ROW) for row in range(rows)], torch.float32, size)
    out = kernels(case, scale=0.5).attend(
        case.q, case.keys, case.values, case.tables, case.slots, case.lengths, window=0
    )
    torch.testing.assert_close(out.double(), case.expected(0, 0.5), atol=2e-6, rtol=1e-3)


@pytest.mark.gpu
def test_a_graph_serves_whatever_lengths_are_there_when_it_is_replayed() -> None:
    case = Case(32, 8, 128, [16 * BLOCKS_A_ROW] * 5, torch.float32)
    made = kernels(case)

    def attend() -> Tensor:
        out: Tensor = made.attend(case.q, case.keys, case.values, case.tables, case.slots, case.lengths, window=0)
        return out

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        attend()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = attend()
        for lengths in ([1, 2, 3, 4, 5], [640, 1, 100, 639, 64]):
            case.lengths.copy_(torch.tensor(lengths))
            out.fill_(float("nan"))
            graph.replay()
            torch.testing.assert_close(out.double(), case.expected(0, 128**-0.5), atol=2e-6, rtol=1e-3)


@pytest.mark.parametrize("lengths", [[640], [333], [3, 640], [65, 130]], ids=str)
def test_parts_are_joined_every_time_anew(lengths: list[int]) -> None:
    case = Case(9, 3, 64, lengths, torch.float32)
    made = kernels(case)
    assert made.parts_for(len(lengths)) > 1
    for _ in range(2):
        made._out.fill_(float("nan"))
        made._weight.fill_(float("nan"))
        found = made.attend(case.q, case.keys, case.values, case.tables, case.slots, case.lengths, 0)
        assert (found.double() - case.expected(0, 64**-0.5)).abs().max() < TOLERANCE[torch.float32]


@pytest.mark.parametrize("lengths", [[0, 17, -1], [-1] * 9 + [40]], ids=str)
def test_rows_that_are_none_come_out_as_zeros(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(9, 3, 64, [max(length, 1) for length in lengths], torch.float32)
    made, none = kernels(case), torch.tensor([length <= 0 for length in lengths], device=DEVICE)
    own = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    monkeypatch.setattr(torch, "empty_like", lambda like, **_: torch.full_like(like, float("nan")))
    found = made.attend(case.q, case.keys, case.values, case.tables, case.slots, own, 0)
    assert (found[none] == 0).all()
    assert (found.double() - case.expected(0, 64**-0.5))[~none].abs().max() < TOLERANCE[torch.float32]
