"""One engine in this process, whose kernels can be given what stock vLLM or what our plugin gives them, in turns."""

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playhead_inference.verdict import Answer

from proof.cells import BLOCK, Cell
from proof.models import VOCABULARY, made

SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "seeded": {"temperature": 0.8, "seed": 42}}

MOST = 128
"""Requests that the engine computes at once at most."""

CACHE = 4 << 30
"""Bytes of the KV cache on a GPU."""

SHORT = (20, 60)
"""How long a short neighbour is: there to fill the batch."""


class Engine:
    """vLLM without its server, with the plugin as it is installed."""

    def __init__(self, models: Path, cell: Cell, model: Path | None = None, device: str = "cpu") -> None:
        os.environ |= {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # What is run without vLLM's mode on a GPU is stock, which the guard would refuse.
            "PLAYHEAD_INVARIANCE": "degrade",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_PLUGINS": "playhead_inference",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        from vllm import LLM

        self.cell, self.device = cell, device
        # A fixed size, so that several engines may share a GPU.
        memory: dict[str, Any] = (
            {"gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": CACHE} if device == "gpu" else {}
        )
        if device == "gpu":
            memory["attention_backend"] = "TRITON_ATTN"
        self.llm = LLM(
            model=str(model or made(models, cell.kind, cell.ratio)),
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
        self.asked = 0

    def patch(self, on: bool) -> None:
        """Ours, or vLLM's own."""
        self.llm.collective_rpc("playhead_patch", args=(on,))

    def counters(self) -> tuple[int, int]:
        """How many requests were put out to be computed again, and how many tokens came of the prefix cache, so far."""
        names = ("vllm:num_preemptions", "vllm:prefix_cache_hits")
        metrics = self.llm.get_metrics()
        preempted, hit = (sum(int(m.value) for m in metrics if m.name == name) for name in names)
        return preempted, hit

    def wave(
        self, draw: random.Random, needle: Sequence[int], wave: tuple[int, int, int], salt: str | None = None
    ) -> list[Answer]:
        """Needles and neighbours at once, in an order drawn by lot; what the needles were answered with.

        A needle is kept out of the prefix cache by a salt of its own, unless one is given.
        """
        needles, long, short = wave
        context = self.cell.context
        others = [self.words(draw, draw.randint(context // 4, context)) for _ in range(long)]
        others += [self.words(draw, draw.randint(*SHORT)) for _ in range(short)]
        prompts = [(list(needle), salt)] * needles + [(other, None) for other in others]
        order = draw.sample(range(len(prompts)), len(prompts))
        answers = self.answers([prompts[at] for at in order], self.cell.tokens)
        return [answer for at, answer in zip(order, answers, strict=True) if at < needles]

    def answers(self, prompts: Sequence[tuple[list[int], str | None]], tokens: int) -> list[Answer]:
        """Ask all at once, in this order."""
        from vllm.inputs.engine import tokens_input

        engine, given = self.llm.llm_engine, {}
        for prompt, salt in prompts:
            self.asked += 1
            asked = tokens_input(prompt, cache_salt=salt or f"own-{self.asked}")
            engine.add_request(str(self.asked), asked, self._params(tokens))
            given[str(self.asked)] = Answer(tokens=(), logprobs=())
        while engine.has_unfinished_requests():
            for output in engine.step():
                given[output.request_id] = _longer(given[output.request_id], output.outputs[0])
        return list(given.values())

    def words(self, draw: random.Random, length: int) -> list[int]:
        """A prompt of tokens."""
        return [draw.randrange(1, self.vocabulary) for _ in range(length)]

    def timed(self, prompts: Sequence[list[int]], tokens: int) -> tuple[float, float]:
        """Seconds and CPU seconds for all of them, each cold."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.answers([(prompt, None) for prompt in prompts], tokens)
        return time.perf_counter() - wall, time.process_time() - cpu

    def _params(self, tokens: int) -> Any:
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


def _longer(answer: Answer, output: Any) -> Answer:
    """With what came now."""
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
