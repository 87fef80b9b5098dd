"""One engine in this process, whose attention can be stock or ours from one wave to the next."""

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playhead_inference.verdict import Answer

from proof.cells import Cell
from proof.models import VOCABULARY, made

SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "seeded": {"temperature": 0.8, "seed": 42}}


class Engine:
    """vLLM offline, with the plugin as it is installed."""

    def __init__(self, models: Path, cell: Cell, model: Path | None = None) -> None:
        os.environ |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_PLUGINS": "playhead_inference",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(cell.threads),
        }
        from vllm import LLM

        longest = cell.context + cell.tokens
        self.cell = cell
        self.llm = LLM(
            model=str(model or made(models, cell.kind, cell.ratio)),
            dtype="float32",
            enforce_eager=True,
            max_model_len=longest,
            enable_chunked_prefill=cell.chunk is not None,
            max_num_batched_tokens=cell.chunk or max(longest, 8192),
            max_num_seqs=64,
            enable_prefix_caching=cell.prefix,
            num_gpu_blocks_override=cell.blocks,
            disable_log_stats=False,
        )
        self.vocabulary = self.llm.model_config.get_vocab_size() if model else VOCABULARY
        self.salt = 0

    def patch(self, on: bool) -> None:
        """Ours, or vLLM's own."""
        self.llm.collective_rpc("playhead_patch", args=(on,))

    def preemptions(self) -> int:
        """How often a request was put out and computed again, so far."""
        return sum(int(m.value) for m in self.llm.get_metrics() if m.name == "vllm:num_preemptions")

    def wave(
        self, draw: random.Random, needle: Sequence[int], needles: int, neighbours: int, sampling: str, shared: bool
    ) -> list[Answer]:
        """Needles and neighbours at once, in an order drawn by lot; what the needles were answered with."""
        others = [self.words(draw, draw.randint(self.cell.context // 4, self.cell.context)) for _ in range(neighbours)]
        mine = [True] * needles + [False] * neighbours
        prompts = [list(needle)] * needles + others
        order = draw.sample(range(len(prompts)), len(prompts))
        self.salt += shared
        one = f"shared-{self.salt}"
        asked = [self._prompt(prompts[at], one if shared and mine[at] else None) for at in order]
        outputs = self.llm.generate(asked, self._params(sampling), use_tqdm=False)
        return [_answer(output.outputs[0]) for at, output in zip(order, outputs, strict=True) if mine[at]]

    def words(self, draw: random.Random, length: int) -> list[int]:
        """A prompt of tokens."""
        return [draw.randrange(1, self.vocabulary) for _ in range(length)]

    def timed(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """Seconds for all of them, each cold."""
        asked = [self._prompt(prompt, None) for prompt in prompts]
        began = time.perf_counter()
        self.llm.generate(asked, self._params("greedy", tokens), use_tqdm=False)
        return time.perf_counter() - began

    def _prompt(self, tokens: Sequence[int], salt: str | None) -> Any:
        from vllm.inputs import TokensPrompt

        self.salt += 1
        return TokensPrompt(prompt_token_ids=list(tokens), cache_salt=salt or f"own-{self.salt}")

    def _params(self, sampling: str, tokens: int | None = None) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            max_tokens=tokens or self.cell.tokens, ignore_eos=True, logprobs=5, detokenize=False, **SAMPLINGS[sampling]
        )


def _answer(output: Any) -> Answer:
    return Answer(
        tokens=tuple(output.token_ids),
        logprobs=tuple(
            tuple(sorted((token, float(entry.logprob).hex()) for token, entry in position.items()))
            for position in output.logprobs
        ),
    )
