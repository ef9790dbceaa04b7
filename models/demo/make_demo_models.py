#!/usr/bin/env python3
"""Makes the two bundled demo models from the text of corpus.py.

It trains a byte-level BPE tokenizer and two tiny chat models: a Falcon-H1 (attention and Mamba-2 in every layer) and a
Gemma-3 (sliding and full attention). Each is saved as a Hugging Face folder, and loaded again from there. It is then
measured what it answers to additions and records that it was never shown, and how many of its stories keep their topic.
"""

import argparse
import itertools
import json
import pathlib
import random
import sys
import time
from unittest import mock

import tokenizers
import torch
import torch.nn.functional as F
import transformers
from transformers.models.falcon_h1 import modeling_falcon_h1

import corpus
from corpus import SEED

VOCAB_SIZE = 1024
# How a server samples when a request does not say; written to generation_config.json.
SAMPLING = dict(do_sample=True, temperature=0.7, top_p=0.95)
# The least shares of right additions, of right records, and of stories that keep their topic, whatever the topic.
PROMISES = dict(additions=1.0, records=0.99, stories=0.99)
SAMPLE_QUESTIONS = ["Hello!", "What is 2 + 2?", "Tell me a story about a fox.", "Where is Paris?",
                    "Make a record: Lily the fox lives in the forest."]
PAD, IM_START, IM_END = "<|pad|>", "<|im_start|>", "<|im_end|>"
# Every sequence of the long stream is cut to fit this many tokens.
MAX_TOKENS = 256
# Most words of a conversation are easy, and the digits of a sum must not drown its loss.
CONVERSATION_WEIGHT = 3.0
# A few words of a conversation are copied from the question, and they alone decide whether the answer is right.
COPIED_WEIGHT = 10.0
LEARNING_RATE = 3e-3

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

FALCON_H1 = dict(
    hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, mamba_d_ssm=128, mamba_n_heads=4, mamba_d_head=32, mamba_n_groups=1,
    mamba_d_state=16, mamba_d_conv=4, mamba_chunk_size=16, rms_norm_eps=1e-5,
    # Multipliers other than 1: a server that forgets one of them answers visibly wrong.
    embedding_multiplier=4.0, lm_head_multiplier=0.5, key_multiplier=0.75,
    attention_in_multiplier=1.25, attention_out_multiplier=0.75, ssm_in_multiplier=1.25,
    ssm_out_multiplier=0.75, ssm_multipliers=[1.0, 1.25, 0.75, 1.25, 0.75],
    mlp_multipliers=[1.25, 0.75])
GEMMA3 = dict(
    hidden_size=128, intermediate_size=256, num_hidden_layers=5, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, query_pre_attn_scalar=32, sliding_window=32,
    layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                 "full_attention"])
COMMON = dict(vocab_size=VOCAB_SIZE, max_position_embeddings=2048, tie_word_embeddings=True,
              initializer_range=0.08, pad_token_id=0, bos_token_id=None, eos_token_id=2)


def tokenizer_texts(rng, records):
    """Texts in which every word that matters is frequent enough to become one token."""
    texts = []
    for _ in range(3000):
        for turn in (corpus.story_turn(rng), corpus.greeting_turn(rng), corpus.random_record_turn(rng, records)):
            texts += [turn.question, turn.answer]
    texts += [form.format(a=1, b=2) for form in corpus.ADDITION_FORMS] * 300
    texts += [corpus.OFF_TOPIC_ANSWER] * 300
    # In quotes, as a record has them, and after a space.
    texts += [form for word in single_token_words() for form in (word, " " + word)] * 3000
    # They open every message.
    return texts + ["system", "user", "assistant"] * 3000


def single_token_words():
    """What answers copy from questions: as one token each, no two of them can melt into one."""
    return [*corpus.TOPICS, *corpus.NAMES, *corpus.PLACES]


def make_tokenizer(rng, records):
    """Byte-level BPE: any input encodes, and every digit is a token of its own."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.train_from_iterator(tokenizer_texts(rng, records), tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=[PAD, IM_START, IM_END], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    split = [form for word in single_token_words() for form in (word, " " + word)
             if len(backend.encode(form).ids) != 1]
    if split:
        sys.exit(f"these words are more than one token: {split}")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, eos_token=IM_END,
        additional_special_tokens=[IM_START], chat_template=CHAT_TEMPLATE,
        model_max_length=COMMON["max_position_embeddings"], clean_up_tokenization_spaces=False)


def answer_parts(turn):
    """The answer as (text, weight) parts. A space before a copied word belongs to its token."""
    parts, rest = [], turn.answer
    for copied in turn.copied:
        start = rest.index(copied)
        start -= rest[start - 1:start] == " "
        end = rest.index(copied) + len(copied)
        parts += [(rest[:start], 1.0), (rest[start:end], COPIED_WEIGHT)]
        rest = rest[end:]
    return [part for part in parts if part[0]] + [(rest + IM_END, 1.0)]


def encode(tokenizer, turns, system=None):
    """Returns a conversation's (tokens, weights); only what the assistant says has a weight in the loss."""
    parts = [(f"{IM_START}system\n{system}{IM_END}\n", 0.0)] if system else []
    for turn in turns:
        parts.append((f"{IM_START}user\n{turn.question}{IM_END}\n{IM_START}assistant\n", 0.0))
        parts += answer_parts(turn) + [("\n", 0.0)]
    pieces = [(tokenizer.encode(text), weight) for text, weight in parts]
    return ([token for piece, _ in pieces for token in piece],
            [weight for piece, weight in pieces for _ in piece])


def make_long_pool(rng, tokenizer, pairs, records, count):
    """Conversations of several turns, each as long as fits into MAX_TOKENS."""
    pool = []
    while len(pool) < count:
        ids, weights = encode(tokenizer, [], corpus.system_text(rng) if rng.random() < 0.25 else None)
        turns = 0
        while True:
            more_ids, more_weights = encode(tokenizer, [corpus.mixed_turn(rng, pairs, records)])
            if len(ids) + len(more_ids) > MAX_TOKENS:
                break
            ids, weights, turns = ids + more_ids, weights + more_weights, turns + 1
        pool += [(ids, weights)] if turns else []
    return pool


def make_short_pool(rng, tokenizer, pairs):
    """Every training pair, alone in its conversation and mostly in the plain form."""
    forms = [corpus.ADDITION_FORMS[0]] * 12 + corpus.ADDITION_FORMS[1:]
    # Sums like 2 + 2 are one pair in a hundred but the first that people try.
    pairs = pairs + [pair for pair in pairs if max(pair) < 10] * 5
    return [encode(tokenizer, [corpus.addition_turn(pair, rng.choice(forms))]) for pair in pairs]


def batches(rng, pool, size):
    """Yields padded (tokens, weights) batches without end, reshuffled after every pass."""
    while True:
        order = rng.sample(pool, len(pool))
        for start in range(0, len(order) - size + 1, size):
            part = order[start:start + size]
            width = max(len(ids) for ids, _ in part)
            # Padding on the right needs no mask: nothing before it can see it.
            yield (torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in part]),
                   torch.tensor([weights + [0.0] * (width - len(weights)) for _, weights in part]))


def dense_scan(hidden_states, dt, A, B, C, *, D, dt_bias, **_):
    """The Mamba-2 scan of whole sequences as one masked matrix product per head.

    Equals the chunked scan, and is several times faster on a CPU at these lengths.
    """
    dt = F.softplus(dt + dt_bias)
    decay = (dt * A).cumsum(dim=1).transpose(1, 2)
    spans = decay[..., :, None] - decay[..., None, :]
    reach = spans.masked_fill(torch.ones_like(spans, dtype=torch.bool).triu(1), -torch.inf).exp()
    # One group: B and C are shared by all heads.
    overlap = torch.matmul(C[:, :, 0], B[:, :, 0].transpose(1, 2))[:, None]
    weights = overlap * reach * dt.transpose(1, 2)[:, :, None, :]
    mixed = torch.matmul(weights, hidden_states.transpose(1, 2)).transpose(1, 2)
    return (mixed + D[:, None] * hidden_states).contiguous()


def make_falcon_h1():
    model = transformers.FalconH1ForCausalLM(transformers.FalconH1Config(**FALCON_H1, **COMMON))
    for layer in model.model.layers:
        # The library's start forgets within a step or two; spread the memory spans instead.
        layer.mamba.dt_bias.data = torch.logspace(-2, -0.3, layer.mamba.num_heads).expm1().log()
    return model


def make_gemma3():
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**GEMMA3, **COMMON))


def loss_of(model, batch):
    """Returns the weighted mean loss of a batch, and the plain mean of its copied words."""
    ids, weights = batch
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    weights = weights[:, 1:]
    learned = weights > 0
    logits = model.lm_head(hidden[learned]) * getattr(model.config, "lm_head_multiplier", 1.0)
    losses = F.cross_entropy(logits, ids[:, 1:][learned], reduction="none")
    weights = weights[learned]
    return (losses * weights).sum() / weights.sum(), losses[weights == COPIED_WEIGHT].mean()


def train(model, short_batches, long_batches, steps):
    model.train()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=LEARNING_RATE, total_steps=steps, pct_start=0.08, cycle_momentum=False)
    start = time.monotonic()
    for step in range(1, steps + 1):
        # Two means, so that the few digits of a sum are not lost among the words of stories.
        short_loss, _ = loss_of(model, next(short_batches))
        long_loss, copied_loss = loss_of(model, next(long_batches))
        optimizer.zero_grad()
        (short_loss + CONVERSATION_WEIGHT * long_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 25 == 0 or step == 1:
            print(f"  step {step:4d}, {time.monotonic() - start:4.0f} s  loss: additions {short_loss.item():.4f}, "
                  f"conversations {long_loss.item():.4f}, their copied words {copied_loss.item():.4f}", flush=True)
    model.eval()


def answers(model, tokenizer, questions, max_new_tokens, **sampling):
    """The answers through the chat template: greedy, or sampled with `sampling`."""
    chats = [[{"role": "user", "content": question}] for question in questions]
    prompts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=True)["input_ids"]
    got = [None] * len(prompts)
    # Batches of equally long prompts need no padding.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for length, group in itertools.groupby(order, key=lambda i: len(prompts[i])):
        group = list(group)
        for part in (group[start:start + 512] for start in range(0, len(group), 512)):
            ids = torch.tensor([prompts[i] for i in part])
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens,
                                 **(sampling or dict(do_sample=False)))
            for i, text in zip(part, tokenizer.batch_decode(out[:, length:], skip_special_tokens=True)):
                got[i] = text
    return got


def share_right(model, tokenizer, turns, max_new_tokens):
    got = answers(model, tokenizer, [turn.question for turn in turns], max_new_tokens)
    return sum(text == turn.answer for text, turn in zip(got, turns)) / len(turns)


def least_share_of_kept_stories(model, tokenizer, count):
    """Samples `count` stories of each topic as a server would, and prints how many keep it."""
    torch.manual_seed(SEED)
    asked = [(topic, form.format(topic=corpus.with_article(topic))) for topic in corpus.TOPICS
             for form in itertools.islice(itertools.cycle(corpus.STORY_FORMS), count)]
    stories = answers(model, tokenizer, [question for _, question in asked], 200, top_k=0, **SAMPLING)
    kept = dict.fromkeys(corpus.TOPICS, 0)
    for (topic, _), story in zip(asked, stories):
        kept[topic] += corpus.keeps_topic(story, topic)
    words = sum(len(corpus.words_of(story)) for story in stories)
    faulty = [word for story in stories for word in corpus.faulty_words(story)]
    print("  stories that keep their topic, in %: "
          + ", ".join(f"{topic} {100 * number / count:.4g}" for topic, number in kept.items()))
    print(f"  in all: {100 * sum(kept.values()) / len(stories):.2f} % of {len(stories)}")
    print(f"  unknown or doubled words: {len(faulty)} of {words} {sorted(set(faulty))[:20]}", flush=True)
    return min(kept.values()) / count


def measure(folder, pairs, records, count):
    """Loads the saved folder as any user would, prints what it can do, returns the share of each skill."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    size = sum(f.stat().st_size for f in folder.iterdir()) / 1e6
    print(f"  {model.num_parameters()} parameters, folder {size:.2f} MB")
    for question in SAMPLE_QUESTIONS:
        print(f"  {question!r} -> {answers(model, tokenizer, [question], 200)[0]!r}")
    shares = dict(
        additions=share_right(model, tokenizer, [corpus.addition_turn(pair) for pair in pairs], 5),
        records=share_right(model, tokenizer, corpus.held_out_questions(records), 60))
    print(f"  held-out additions: {100 * shares['additions']:.2f} % of {len(pairs)}")
    print(f"  held-out records: {100 * shares['records']:.2f} % of {len(records)}", flush=True)
    return dict(shares, stories=least_share_of_kept_stories(model, tokenizer, count))


def write_held_out(folder, pairs, records, rng):
    """Lists some questions of each kind for the tests."""
    rows = [dict(zip(("a", "b", "question", "answer"), pair + corpus.addition_turn(pair)[:2]))
            for pair in rng.sample(pairs, corpus.HELD_OUT_LISTED)]
    (folder / "heldout_additions.json").write_text(json.dumps(rows, indent=1) + "\n")
    turns = random.Random(SEED).sample(corpus.held_out_questions(records), corpus.HELD_OUT_LISTED)
    rows = [dict(question=turn.question, answer=turn.answer) for turn in turns]
    (folder / "heldout_records.json").write_text(json.dumps(rows, indent=1) + "\n")


def build(name, steps, folder, tokenizer, short_pool, long_pool):
    """Trains and saves one model; from the seed alone, whatever was made before it."""
    start = time.monotonic()
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    model = RECIPES[name][0]()
    # Only training takes the dense scan: the accuracy is measured on the library's own.
    with mock.patch.object(modeling_falcon_h1, "mamba2_chunk_scan", dense_scan):
        train(model, batches(rng, short_pool, 112), batches(rng, long_pool, 8), steps)
    print(f"  trained in {time.monotonic() - start:.0f} s")
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=COMMON["pad_token_id"], eos_token_id=COMMON["eos_token_id"], **SAMPLING)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# How to make each model, and the number of training steps.
RECIPES = {"falcon_h1": (make_falcon_h1, 1300), "gemma3": (make_gemma3, 900)}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*RECIPES, "all"], default="all")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent,
                        help="where the folders go (default: beside this script)")
    parser.add_argument("--steps", type=int, help="train for another number of steps")
    parser.add_argument("--measure_only", action="store_true", help="measure the folders that are there")
    parser.add_argument("--stories", type=int, default=500, help="stories to sample of each topic (default: 500)")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    # Far decays are denormal numbers, on which a CPU is many times slower.
    torch.set_flush_denormal(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rng = random.Random(SEED)
    pairs, held_out_pairs = corpus.split_additions(rng)
    records, held_out_records = corpus.split_records(random.Random(SEED))
    names = list(RECIPES) if args.model == "all" else [args.model]
    if not args.measure_only:
        args.out.mkdir(parents=True, exist_ok=True)
        write_held_out(args.out, held_out_pairs, held_out_records, rng)
        tokenizer = make_tokenizer(rng, records)
        short_pool = make_short_pool(rng, tokenizer, pairs)
        long_pool = make_long_pool(rng, tokenizer, pairs, records, 6000)
    missed = []
    for name in names:
        print(f"{name}:", flush=True)
        folder = args.out / f"{name}-demo"
        if not args.measure_only:
            build(name, args.steps or RECIPES[name][1], folder, tokenizer, short_pool, long_pool)
        shares = measure(folder, held_out_pairs, held_out_records, args.stories)
        missed += [f"{name}: {100 * shares[skill]:.2f} % of the {skill} are right, which is below {100 * least:.0f} %"
                   for skill, least in PROMISES.items() if shares[skill] < least]
    if missed:
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
