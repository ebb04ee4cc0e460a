"""The pool of KV blocks: its size in bytes, what a write touches, how much memory it may take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpoint import CheckpointError
from gpu_worker import free_memory as memory
from gpu_worker.kv_cache import KVCache, bytes_per_block
from tests.test_attention import CONFIG, CPU


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_takes_as_many_bytes_as_said(dtype: torch.dtype) -> None:
    cache = KVCache.allocate(CONFIG, 5, 16, dtype, CPU)
    assert sum(part.nbytes for part in cache.k + cache.v) == 5 * bytes_per_block(CONFIG, 16, dtype)


def test_a_write_touches_its_places_and_no_others() -> None:
    cache = KVCache.allocate(CONFIG, 4, 8, torch.float32, CPU, fill=float("nan"))
    k, v = torch.randn(2, 3, CONFIG.num_kv_heads, CONFIG.head_dim).unbind()
    where = torch.tensor([31, 8, 17])
    cache.write(1, k, v, where)
    written = ~cache.k[1].isnan().flatten(0, 1).any(dim=(1, 2))
    assert written.nonzero()[:, 0].tolist() == [8, 17, 31]
    assert torch.equal(cache.k[1][3, 7], k[0])
    assert torch.equal(cache.v[1][1, 0], v[1])
    assert torch.equal(cache.gather(1, where)[1], v)
    assert cache.k[0].isnan().all()


def test_free_memory_is_what_the_host_and_the_container_both_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    assert memory.free_memory(CPU) == 8000 * 1024
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_memory(CPU) == 8000 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert memory.free_memory(CPU) == 4000
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 700\nactive_file 150\n")
    assert memory.free_memory(CPU) == 4700, "what was read of files is given up when memory is short"
    (tmp_path / "meminfo").unlink()
    with pytest.raises(CheckpointError, match="free memory is unknown"):
        memory.free_memory(CPU)
