"""Walks the instances of JSON schemas through another engine's grammars. Options and output are those of bench/maskbench:

    structure_engine.py --engine=llguidance|xgrammar --tokenizer=FOLDER FILE...

The engine's own options are the ones that take most valid instances: any whitespace, and properties that no keyword
forbids. Its compiled grammars are not kept, and it compiles with one thread.
"""

import argparse
import json
import pathlib
import signal
import time

# A schema that takes longer ends the process: SIGALRM is not caught.
SECONDS = 60


class Llguidance:
    def __init__(self, tokenizer_file, end_token):
        import llguidance
        self.llguidance = llguidance
        self.tokenizer = llguidance.LLTokenizer(tokenizer_file, eos_token=end_token)
        self.defaults = {"whitespace_flexible": True, "lenient": False}

    def compile(self, schema):
        self.grammar = self.llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=self.defaults)
        self.restart()

    def restart(self):
        self.matcher = self.llguidance.LLMatcher(self.tokenizer, self.grammar)
        if self.matcher.is_error():
            raise ValueError(self.matcher.get_error())

    def mask(self):
        self.bits = self.matcher.compute_bitmask()
        if self.matcher.is_error():
            raise ValueError(self.matcher.get_error())

    def allows(self, token):
        return bool(self.bits[token // 8] >> token % 8 & 1)

    def accept(self, token):
        self.matcher.consume_token(token)


class XGrammar:
    def __init__(self, tokenizer_file, end_token):
        import tokenizers
        import xgrammar
        self.xgrammar = xgrammar
        tokenizer = tokenizers.Tokenizer.from_file(tokenizer_file)
        vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)
        info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=[end_token])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    def compile(self, schema):
        text = json.dumps(schema)
        self.grammar = self.compiler.compile_json_schema(text, any_whitespace=True, strict_mode=False)
        self.restart()

    def restart(self):
        self.matcher = self.xgrammar.GrammarMatcher(self.grammar)

    def mask(self):
        self.bits.fill_(-1)
        self.matcher.fill_next_token_bitmask(self.bits)

    def allows(self, token):
        return bool(int(self.bits[0, token // 32]) >> token % 32 & 1)

    def accept(self, token):
        if not self.matcher.accept_token(token):
            raise ValueError(f"token {token} is in the mask and not accepted")


def walk(engine, tokens, end_token, masks_us):
    """"" if all tokens are accepted, and the end; else where they are not."""
    for at, token in enumerate([*tokens, end_token]):
        start = time.process_time()
        engine.mask()
        masks_us.append((time.process_time() - start) * 1e6)
        if not engine.allows(token):
            return f"at token {at} of {len(tokens)}"
        if token != end_token:
            engine.accept(token)
    return ""


def run(engine, tokenizer, end_token, path):
    case = json.loads(path.read_text(encoding="utf-8"))
    out = {"file": path.name}
    start = time.process_time()
    try:
        engine.compile(case["schema"])
    except Exception as error:  # pylint: disable=broad-exception-caught
        out["refused"] = str(error).split("\n", maxsplit=1)[0][:300]
    out["compile_us"] = round((time.process_time() - start) * 1e6)
    if "refused" in out:
        return out
    out |= {"wrong": [], "masks_us": []}
    for test in case["tests"]:
        text = json.dumps(test["data"], ensure_ascii=False)
        try:
            engine.restart()
            tokens = tokenizer.encode(text, add_special_tokens=False).ids
            refusal = walk(engine, tokens, end_token, out["masks_us"])
        except Exception as error:  # pylint: disable=broad-exception-caught
            refusal = str(error)[:300]
        if test["valid"] != (not refusal):
            out["wrong"].append({"valid": test["valid"], "text": text[:1000], "refusal": refusal})
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=["llguidance", "xgrammar"], required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    import tokenizers
    tokenizer_file = str(pathlib.Path(arguments.tokenizer) / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(tokenizer_file)
    names = ["</s>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<eos>"]
    end_token = next(token for token in map(tokenizer.token_to_id, names) if token is not None)
    kinds = {"llguidance": Llguidance, "xgrammar": XGrammar}
    engine = kinds[arguments.engine](tokenizer_file, end_token)
    for path in arguments.files:
        signal.alarm(SECONDS)
        print(json.dumps(run(engine, tokenizer, end_token, path)), flush=True)
    signal.alarm(0)


if __name__ == "__main__":
    main()
