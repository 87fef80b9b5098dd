"""Patch vLLM's CPU attention to process tiles instead of requests. The kernel is still vLLM's."""

from dataclasses import replace
from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from playhead_inference.switch import SWITCH
from playhead_inference.tiles import Tiles, cut, width


class Builder(CPUAttentionMetadataBuilder):
    """Describes a batch to the kernel so that the kernel has no choices left."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.positions = width(self.num_heads, self.num_kv_heads)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        """Describe the batch as tiles or, for the positive control, as vLLM does."""
        if not SWITCH.on:
            return super().build(common_prefix_len, common_attn_metadata, fast_build)
        batch = common_attn_metadata
        requests = batch.num_reqs
        tiles = cut(batch.query_start_loc[: requests + 1].tolist(), batch.seq_lens[:requests].tolist(), self.positions)
        SWITCH.note_batch(batch.max_query_len, requests)
        return self._described(replace(batch, num_reqs=len(tiles.request)), tiles)

    def _described(self, batch: Any, tiles: Tiles) -> CPUAttentionMetadata:
        starts = torch.tensor(tiles.starts, dtype=batch.query_start_loc.dtype)
        lengths = torch.tensor(tiles.lengths, dtype=batch.seq_lens.dtype)
        return CPUAttentionMetadata(
            num_actual_tokens=batch.num_actual_tokens,
            max_query_len=tiles.longest,
            query_start_loc=starts,
            max_seq_len=batch.max_seq_len,
            seq_lens=lengths,
            block_table=batch.block_table_tensor[torch.tensor(tiles.request, dtype=torch.long)],
            slot_mapping=batch.slot_mapping,
            scheduler_metadata=ops.cpu_attn_get_scheduler_metadata(
                num_reqs=batch.num_reqs,
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_dim,
                seq_lens=lengths,
                dtype=self.dtype,
                query_start_loc=starts,
                causal=True,
                sliding_window_size=self.window_size,
                isa=self.isa,
                # A split of the KV range would change the order of addition.
                enable_kv_split=False,
                kv_cache_dtype=self.kv_cache_dtype,
            ),
            causal=True,
        )


class Backend(CPUAttentionBackend):
    """The patched CPU_ATTN backend."""

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        """The class that describes batches."""
        return Builder
