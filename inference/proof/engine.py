"""Run one vLLM engine in this process, with the patch turned on and off."""

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playhead_inference.verdict import Answer

from proof.cells import BLOCK, Cell
from proof.models import VOCABULARY, create_model

SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "seeded": {"temperature": 0.8, "seed": 42}}

MOST = 128
"""Maximum number of concurrent requests."""

CACHE = 4 << 30
"""Bytes of the KV cache on a GPU."""

SHORT = (20, 60)
"""Minimum and maximum tokens of a short neighbour, which only fills the batch."""


class Engine:
    """vLLM without its server, with the installed plugin."""

    def __init__(self, models: Path, cell: Cell, model: Path | None = None, device: str = "cpu") -> None:
        os.environ |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # Without vLLM's mode, a GPU runs stock vLLM, which the guard would refuse.
            "PLAYHEAD_INVARIANCE": "degrade",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_PLUGINS": "playhead_inference",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        from vllm import LLM

        self.cell, self.device = cell, device
        # A fixed size lets several engines share a GPU.
        memory: dict[str, Any] = (
            {"gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": CACHE} if device == "gpu" else {}
        )
        if device == "gpu":
            memory["attention_backend"] = "TRITON_ATTN"
        self.llm = LLM(
            model=str(model or create_model(models, cell.kind, cell.ratio)),
            dtype="bfloat16" if device == "gpu" else "float32",
            enforce_eager=True,
            max_model_len=cell.longest,
            enable_chunked_prefill=cell.chunked,
            max_num_batched_tokens=cell.chunk if cell.chunked else max(cell.longest, 8192),
            max_num_seqs=MOST,
            enable_prefix_caching=cell.prefix,
            disable_log_stats=False,
            **memory,
            **({"num_gpu_blocks_override": cell.blocks, "block_size": BLOCK} if cell.blocks else {}),
        )
        self.vocabulary = self.llm.model_config.get_vocab_size() if model else VOCABULARY
        self.request_count = 0

    def patch(self, on: bool) -> None:
        """Turn the patch on or off."""
        self.llm.collective_rpc("playhead_patch", args=(on,))

    def counters(self) -> tuple[int, int]:
        """The numbers of preempted requests and of tokens from the prefix cache so far."""
        names = ("vllm:num_preemptions", "vllm:prefix_cache_hits")
        metrics = self.llm.get_metrics()
        preempted, hit = (sum(int(m.value) for m in metrics if m.name == name) for name in names)
        return preempted, hit

    def wave(
        self, draw: random.Random, needle: Sequence[int], wave: tuple[int, int, int], salt: str | None = None
    ) -> list[Answer]:
        """Send needles and neighbours at once in random order, and return the needles' answers.

        Each needle has its own salt, which keeps it out of the prefix cache, unless a salt is given.
        """
        needles, long, short = wave
        context = self.cell.context
        others = [self.random_prompt(draw, draw.randint(context // 4, context)) for _ in range(long)]
        others += [self.random_prompt(draw, draw.randint(*SHORT)) for _ in range(short)]
        prompts = [(list(needle), salt)] * needles + [(other, None) for other in others]
        order = draw.sample(range(len(prompts)), len(prompts))
        answers = self.answers([prompts[at] for at in order], self.cell.tokens)
        return [answer for at, answer in zip(order, answers, strict=True) if at < needles]

    def answers(self, prompts: Sequence[tuple[list[int], str | None]], tokens: int) -> list[Answer]:
        """Send all prompts at once, in this order, and return their answers."""
        from vllm.inputs.engine import tokens_input

        engine, collected = self.llm.llm_engine, {}
        for prompt, salt in prompts:
            self.request_count += 1
            inputs = tokens_input(prompt, cache_salt=salt or f"own-{self.request_count}")
            engine.add_request(str(self.request_count), inputs, self._sampling_params(tokens))
            collected[str(self.request_count)] = Answer(tokens=(), logprobs=())
        while engine.has_unfinished_requests():
            for output in engine.step():
                collected[output.request_id] = _extend_answer(collected[output.request_id], output.outputs[0])
        return list(collected.values())

    def random_prompt(self, draw: random.Random, length: int) -> list[int]:
        """A prompt of random tokens."""
        return [draw.randrange(1, self.vocabulary) for _ in range(length)]

    def measure_time(self, prompts: Sequence[list[int]], tokens: int) -> tuple[float, float]:
        """Measure wall and CPU seconds for all prompts, none of them cached."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.answers([(prompt, None) for prompt in prompts], tokens)
        return time.perf_counter() - wall, time.process_time() - cpu

    def _sampling_params(self, tokens: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        kind = RequestOutputKind.DELTA if self.cell.streamed else RequestOutputKind.FINAL_ONLY
        return SamplingParams(
            max_tokens=tokens,
            ignore_eos=True,
            logprobs=5,
            detokenize=False,
            output_kind=kind,
            **SAMPLINGS[self.cell.sampling],
        )


def _extend_answer(answer: Answer, output: Any) -> Answer:
    """Append newly computed tokens to an answer."""
    return Answer(
        tokens=(*answer.tokens, *output.token_ids),
        logprobs=(
            *answer.logprobs,
            *(
                tuple(sorted((token, float(entry.logprob).hex()) for token, entry in position.items()))
                for position in output.logprobs
            ),
        ),
    )
