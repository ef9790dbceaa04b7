"""transformers as an engine of worker.py: generate() on the CPU, and the float32 answers that others are checked by."""

import time

import torch
import transformers

from worker import serve


class StepTimes(transformers.StoppingCriteria):
    """Notes when each step of generate() ends."""

    def __init__(self):
        self.times = []

    def __call__(self, input_ids, scores, **_):
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Engine:
    def __init__(self, path, threads, dtype):
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
        self.vocab = self.model.config.vocab_size

    def prompts(self, streams, tokens):
        return torch.randint(3, self.vocab, (streams, tokens), generator=torch.Generator().manual_seed(0))

    def forward(self, prompt, continuation):
        """The logits from the prompt's end on, [places, vocab]."""
        return self.model(torch.tensor([prompt + continuation])).logits[0, len(prompt) - 1:]

    def logprobs(self, prompt, continuation, ids):
        places = []
        for row, wanted in zip(torch.log_softmax(self.forward(prompt, continuation).double(), -1), ids):
            best = int(row.argmax())
            places.append({"best": best, "logprob": row[best].item(), "of_ids": row[wanted].tolist()})
        return places

    def generate(self, prompts, steps):
        """When each of steps + 1 tokens came."""
        times = StepTimes()
        self.model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False, eos_token_id=None,
                            pad_token_id=2, max_new_tokens=steps + 1, stopping_criteria=[times])
        return times.times

    def decode(self, streams, prompt_tokens, steps):
        times = self.generate(self.prompts(streams, prompt_tokens), steps + 1)
        return streams * steps / (times[-1] - times[1])

    def prefill(self, tokens):
        prompts = self.prompts(1, tokens)
        start = time.perf_counter()
        return self.generate(prompts, 0)[0] - start


if __name__ == "__main__":
    serve(Engine)
