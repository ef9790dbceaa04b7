"""transformers as an engine of worker.py for encoder-decoder models. What is a prompt elsewhere is the encoder's source."""

import torch
import transformers
import transformers_engine

from worker import serve


class Engine(transformers_engine.Engine):
    def __init__(self, path, threads, dtype):
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.model = transformers.AutoModelForSeq2SeqLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
        self.vocab = self.model.config.vocab_size

    def forward(self, prompt, continuation):
        decoded = torch.tensor([[self.model.config.decoder_start_token_id, *continuation]])
        return self.model(torch.tensor([prompt]), decoder_input_ids=decoded).logits[0]


if __name__ == "__main__":
    serve(Engine)
