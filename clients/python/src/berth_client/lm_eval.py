"""A model of lm-eval, the evaluation harness: it measures what a Berth server serves.

    python -m berth_client.lm_eval run --model berth --model_args target=127.0.0.1:8600 --tasks TASK

takes all arguments of lm-eval. A program may instead pass BerthLM(...) to lm_eval.simple_evaluate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from ._connection import Tls
from ._sync import Client

T = TypeVar("T")
R = TypeVar("R")
TokenPair = tuple[Any, list[int], list[int]]  # what names the request, the context, the continuation


@register_model("berth")
class BerthLM(TemplateLM):
    """A server's model, by its tokens: it is scored on the same ids that transformers would score.

    target, token, ca, certificate, key, timeout: as of Client and Tls. With `ca` or a certificate, it uses TLS.

    - concurrency: requests that are sent at once; the server batches them.
    - max_gen_toks: the longest output where a task sets no limit.
    - add_bos_token: whether texts begin with BOS. Default: as the tokeniser does.
    - prefix_token_id: what precedes a text without a context. Default: BOS if the tokeniser adds it, else the end
      token.
    """

    def __init__(self, target: str = "127.0.0.1:8600", *, token: str | None = None, ca: str | None = None,
                 certificate: str | None = None, key: str | None = None, timeout: float | None = None,
                 concurrency: int = 32, max_gen_toks: int = 256, add_bos_token: bool | None = None,
                 prefix_token_id: int | None = None, batch_size: Any = None, max_batch_size: Any = None,
                 device: Any = None) -> None:
        super().__init__()
        tls = Tls(ca=ca, certificate=certificate, key=key) if ca or certificate else False
        self.client = Client(target, tls=tls, token=token, timeout=timeout, retries=1000)
        self.info = self.client.model_info()
        if self.info.limits is None or not self.info.eos_token_ids:
            raise ValueError("the server does not say the model's limits and end tokens")
        # What a request holds beside one generated token, which is only predicted.
        self.max_length = self.info.limits.max_sequence_tokens - 2
        self.max_gen_toks = max_gen_toks
        self._has_encoder = self.info.limits.max_encoder_tokens > 0
        self._concurrency = concurrency
        self._add_bos = add_bos_token
        first = self.client.tokenize("").token_ids
        self._prefix = prefix_token_id if prefix_token_id is not None else [*first, self.eot_token_id][0]
        self._prefix_text = self.client.detokenize([self._prefix], skip_special_tokens=False)

    @property
    def eot_token_id(self) -> int:
        return self.info.eos_token_ids[0]

    @property
    def prefix_token_id(self) -> int:
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        return self.info.name

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        if add_special_tokens is None:
            # A rendered chat begins with BOS already.
            add_special_tokens = False if string.startswith(self._prefix_text) else self._add_bos
        options: dict[str, Any] = {"add_special_tokens": add_special_tokens}
        return self.client.tokenize(string, **options).token_ids

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        messages: list[Any] = list(chat_history)
        # What the assistant is to continue follows the beginning of its turn.
        prefilled = "" if add_generation_prompt else messages.pop()["content"]
        return self.client.tokenize_chat(messages).text + prefilled

    def _map(self, function: Callable[[T], R], items: Sequence[T], what: str, quiet: bool) -> list[R]:
        """Calls the function for all items, several at once, and keeps their order."""
        with ThreadPoolExecutor(self._concurrency) as pool:
            results: Iterable[R] = pool.map(function, items)
            return list(tqdm(results, total=len(items), desc=what, disable=quiet))

    def _score(self, pair: TokenPair) -> tuple[float, bool]:
        """The log-probability of the continuation, and whether it is what the model would choose."""
        _, context, continuation = pair
        if self._has_encoder:
            raise ValueError(f"{self.info.name}: loglikelihood needs a model without an encoder")
        ids = (context + continuation)[-(self.max_length + 1):]
        if len(continuation) >= len(ids):
            raise ValueError(f"a continuation of {len(continuation)} tokens has no place beside its context in "
                             f"{self.max_length + 1} tokens")
        answer = self.client.generate(ids, prompt_logprobs=1, max_tokens=1, temperature=0)
        if len(answer.prompt_logprobs) != len(ids) - 1:  # as of a server that does not know the field
            raise ValueError(f"the server returned {len(answer.prompt_logprobs)} prompt_logprobs for {len(ids)} tokens")
        scored = answer.prompt_logprobs[len(ids) - 1 - len(continuation):]
        return sum(token.logprob for token in scored), all(token.top[0].token_id == token.token_id for token in scored)

    def _loglikelihood_tokens(self, requests: list[TokenPair], disable_tqdm: bool = False,
                              **kwargs: Any) -> list[tuple[float, bool]]:
        scores = self._map(self._score, requests, "loglikelihood", disable_tqdm)
        for (texts, _, _), score in zip(requests, scores, strict=True):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, score)
        return scores

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        sums = []
        for (text,) in tqdm([request.args for request in requests], desc="loglikelihood_rolling", disable=disable_tqdm):
            windows = get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length, 1)
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            sums.append(sum(score for score, _ in self._loglikelihood_tokens(pairs, disable_tqdm=True)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), sums[-1])
        return sums

    def _continue(self, arguments: tuple[str, dict[str, Any]]) -> str:
        context, given = arguments
        options: dict[str, Any] = dict(normalize_gen_kwargs(given, self.max_gen_toks))
        options.pop("do_sample", None)  # the temperature says it
        options["stop"] = [text for text in options.pop("until") if text]
        options["max_tokens"] = options.pop("max_gen_toks")
        ids = self.tok_encode(context)
        if not self._has_encoder:
            ids = ids[-max(1, self.max_length + 2 - options["max_tokens"]):]
        return self.client.generate(ids, **options).text

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        arguments = [request.args for request in requests]
        texts = self._map(self._continue, arguments, "generate_until", disable_tqdm)
        for argument, text in zip(arguments, texts, strict=True):
            self.cache_hook.add_partial("generate_until", argument, text)
        return texts


def main() -> None:
    """Runs lm-eval's own command, which then knows the model `berth`."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
