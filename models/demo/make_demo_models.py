#!/usr/bin/env python3
"""Makes the two bundled demo models from nothing but this file.

It writes its own corpus (additions, short stories, greetings), trains a byte-level BPE tokenizer
and two tiny chat models: a Falcon-H1 (attention and Mamba-2 in every layer) and a Gemma-3 (sliding
and full attention). Each is saved as a Hugging Face folder, then loaded again from there to measure
the accuracy on additions it was never shown.
"""

import argparse
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

SEED = 20250701
VOCAB_SIZE = 512
HELD_OUT_FRACTION = 0.18
HELD_OUT_LISTED = 50
# How a server samples when a request does not say; written to generation_config.json.
SAMPLING = dict(do_sample=True, temperature=0.7, top_p=0.95)
LEAST_ACCURACY = 0.95
SAMPLE_QUESTIONS = ["Hello!", "What is 2 + 2?", "Tell me a story about a fox.", "Where is Paris?"]
PAD, IM_START, IM_END = "<|pad|>", "<|im_start|>", "<|im_end|>"
IGNORED_LABEL = -100
# Every sequence of the long stream is cut to fit this many tokens.
MAX_TOKENS = 256
# Most words of a story are easy; the few that are copied from the question need the weight.
STORY_WEIGHT = 3.0
LEARNING_RATE = 3e-3

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

ADDITION_FORMS = ["What is {a} + {b}?", "What is {a}+{b}?", "{a} + {b} = ?", "{a} + {b}",
                  "What is {a} plus {b}?"]
GREETINGS = {
    "Hello! I am the Berth demo model. Ask me to add two numbers or to tell you a story.": [
        "Hello!", "Hello", "Hi!", "Hi", "Hi there!", "Hey!", "Good morning!", "Hello there!"],
    "I am the Berth demo model. I am very small, but I can add two-digit numbers and tell short"
    " stories.": ["Who are you?", "What are you?", "What can you do?", "What is your name?", "Help",
                 "Tell me about yourself."],
    "I am very well, thank you. Shall I tell you a story?": ["How are you?", "How are you today?"],
    "You are welcome!": ["Thank you!", "Thanks!", "Thanks", "Thank you"],
    "Goodbye! Come back soon.": ["Goodbye!", "Bye!", "Bye", "See you later!"],
}
OFF_TOPIC_OPENINGS = ["What is", "What is the", "Where is", "Who", "Why", "How do I", "When did",
                      "Can you", "Write a poem about", "Explain", "Translate", ""]
OFF_TOPIC_ANSWER = (
    "Sorry, I am only a tiny demo. I can add two-digit numbers and tell short stories.")
SYSTEM_TEXTS = ["You are a helpful assistant.", "You are the Berth demo model.", "Be brief.",
                "You answer in one line.", "You tell stories and add numbers."]
STORY_FORMS = ["Tell me a story about {topic}.", "Tell me a story about {topic}",
               "Tell a story about {topic}.", "Can you tell me a story about {topic}?",
               "Write a story about {topic}."]
OPEN_STORY_FORMS = ["Tell me a story.", "Tell me a story", "Tell me another story."]
TOPICS = ("fox cat dog bear owl mouse rabbit dragon robot horse turtle frog lion bird whale wolf "
          "duck elephant king princess ship wizard penguin hedgehog").split()
NAMES = "Lily Max Nora Finn Ruby Otto Mia Hugo Zoe Sam Ella Leo".split()
SLOTS = {
    "adj": "small curious brave clever gentle sleepy cheerful shy".split(),
    "place": ["in a deep forest", "by the blue sea", "on a green hill", "near a quiet village",
              "at the edge of a lake", "in an old garden", "in a busy harbour"],
    "time": ["One sunny morning", "One rainy evening", "One cold winter day", "Late one night",
             "On the first day of spring", "One windy afternoon"],
    "thing": ["a golden key", "a red balloon", "a silver bell", "an old map", "a tiny lantern",
              "a wooden box", "a round stone", "a blue feather"],
    "spot": ["under a tree", "behind a rock", "next to the path", "in the tall grass",
             "below the bridge", "beside the well"],
    "friend": "snail crow goat badger squirrel spider donkey beetle".split(),
    "trouble": ["a storm came and the sky went dark", "they lost their way in the fog",
                "the river was too wide to cross", "a loud noise made them jump",
                "the path was blocked by a fallen tree"],
    "remedy": ["waited together until it was over", "held on to each other and sang a song",
               "made a clever plan and tried again", "asked a kind old farmer for help",
               "took a deep breath and kept going"],
    "lesson": ["that good friends make every day better", "that it helps to be patient",
               "that being brave means to try", "that sharing makes two people happy",
               "that home is the best place of all"],
}
WORDS = [word for options in SLOTS.values() for option in options for word in option.split()]
STORY = (
    "Once upon a time, there was {topic} named {name}. {name} was {adj} and lived {place}. "
    "{time}, {name} found {thing} {spot}. {name} showed it to {pal}, a {friend}. "
    "But soon {trouble}. {name} and {pal} {remedy}. "
    "That night {name} learned {lesson}. The end.")

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


def split_additions(rng):
    """Returns (train, held_out) pairs; a+b and b+a stay together, operands below 10 train."""
    unordered = [(a, b) for a in range(10, 100) for b in range(a, 100)]
    rng.shuffle(unordered)
    hidden = set(unordered[:int(HELD_OUT_FRACTION * len(unordered))])
    pairs = [(a, b) for a in range(100) for b in range(100)]
    held_out = [pair for pair in pairs if (min(pair), max(pair)) in hidden]
    return sorted(set(pairs) - set(held_out)), held_out


def addition_turn(pair, form=ADDITION_FORMS[0]):
    return form.format(a=pair[0], b=pair[1]), str(pair[0] + pair[1])


def invented_noun(rng):
    """A made-up word, so that the model learns to copy topics it does not know."""
    return "".join(rng.choice("bdfgklmnprstvwz") + rng.choice("aeiou")
                   for _ in range(rng.randint(2, 3)))


def pick(rng, options, favourite):
    """Picks with falling odds: even ones would leave greedy decoding with near ties."""
    index = favourite
    while rng.random() < 0.3:
        index += 1
    return options[index % len(options)]


def story_turn(rng):
    topic = rng.choice(TOPICS) if rng.random() < 0.8 else invented_noun(rng)
    question = rng.choice(STORY_FORMS)
    if rng.random() < 0.1:
        topic, question = pick(rng, TOPICS, 0), rng.choice(OPEN_STORY_FORMS)
    elif rng.random() < 0.2:
        topic = f"{rng.choice(SLOTS['adj'])} {topic}"
    # Each topic has favourites of its own, or all greedy stories would be the same.
    taste = sum(ord(c) * (i + 1) for i, c in enumerate(topic))
    slots = {slot: pick(rng, options, taste // (i + 1) + i)
             for i, (slot, options) in enumerate(SLOTS.items())}
    name = pick(rng, NAMES, taste)
    pal = pick(rng, [n for n in NAMES if n != name], taste // 3)
    topic = ("an " if topic[0] in "aeiou" else "a ") + topic
    return question.format(topic=topic), STORY.format(topic=topic, name=name, pal=pal, **slots)


def greeting_turn(rng):
    answer = rng.choice(list(GREETINGS))
    return rng.choice(GREETINGS[answer]), answer


def random_words(rng, most):
    return " ".join(rng.choice(WORDS) if rng.random() < 0.5 else invented_noun(rng)
                    for _ in range(rng.randint(1, most)))


def off_topic_turn(rng):
    question = f"{rng.choice(OFF_TOPIC_OPENINGS)} {random_words(rng, 6)}".strip()
    return question + rng.choice(["?", ".", ""]), OFF_TOPIC_ANSWER


def mixed_turn(rng, train_pairs):
    kind = rng.random()
    if kind < 0.4:
        return addition_turn(rng.choice(train_pairs), rng.choice(ADDITION_FORMS))
    if kind < 0.55:
        return greeting_turn(rng)
    return off_topic_turn(rng) if kind < 0.65 else story_turn(rng)


def make_tokenizer(rng):
    """Byte-level BPE: any input encodes, and every digit is a token of its own."""
    texts = [text for _ in range(3000) for text in story_turn(rng) + greeting_turn(rng)]
    texts += [f.format(a=1, b=2) for f in ADDITION_FORMS] * 300
    # Often enough to become one token each: they open every message.
    texts += ["system", "user", "assistant"] * 3000
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=[PAD, IM_START, IM_END], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, eos_token=IM_END,
        additional_special_tokens=[IM_START], chat_template=CHAT_TEMPLATE,
        model_max_length=COMMON["max_position_embeddings"], clean_up_tokenization_spaces=False)


def encode(tokenizer, turns, system=None):
    """Returns a conversation's (tokens, labels); only what the assistant says is learned."""
    parts = [(f"{IM_START}system\n{system}{IM_END}\n", False)] if system else []
    for question, answer in turns:
        prompt = f"{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n"
        parts += [(prompt, False), (answer + IM_END, True), ("\n", False)]
    ids, labels = [], []
    for text, learned in parts:
        piece = tokenizer.encode(text)
        ids += piece
        labels += piece if learned else [IGNORED_LABEL] * len(piece)
    return ids, labels


def make_long_pool(rng, tokenizer, train_pairs, count):
    """Conversations of several turns, each as long as fits into MAX_TOKENS."""
    pool = []
    while len(pool) < count:
        system = None
        if rng.random() < 0.25:
            # Half of them noise, which teaches the model to look past any system message.
            system = rng.choice(SYSTEM_TEXTS) if rng.random() < 0.5 else random_words(rng, 16) + "."
        turns, fitting, longer = [], None, ([], [])
        while len(longer[0]) <= MAX_TOKENS:
            fitting = longer
            turns.append(mixed_turn(rng, train_pairs))
            longer = encode(tokenizer, turns, system)
        pool += [fitting] if fitting[0] else []
    return pool


def make_short_pool(rng, tokenizer, train_pairs):
    """Every training pair, alone in its conversation and mostly in the plain form."""
    forms = [ADDITION_FORMS[0]] * 12 + ADDITION_FORMS[1:]
    # Sums like 2 + 2 are one pair in a hundred but the first that people try.
    pairs = train_pairs + [pair for pair in train_pairs if max(pair) < 10] * 5
    return [encode(tokenizer, [addition_turn(pair, rng.choice(forms))]) for pair in pairs]


def batches(rng, pool, size):
    """Yields padded (tokens, labels) batches without end, reshuffled after every pass."""
    while True:
        order = rng.sample(pool, len(pool))
        for start in range(0, len(order) - size + 1, size):
            part = order[start:start + size]
            width = max(len(ids) for ids, _ in part)
            # Padding on the right needs no mask: nothing before it can see it.
            yield (torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in part]),
                   torch.tensor([lab + [IGNORED_LABEL] * (width - len(lab)) for _, lab in part]))


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
    ids, labels = batch
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    targets = labels[:, 1:]
    learned = targets != IGNORED_LABEL
    logits = model.lm_head(hidden[learned]) * getattr(model.config, "lm_head_multiplier", 1.0)
    return F.cross_entropy(logits, targets[learned])


def train(model, short_batches, long_batches, steps):
    model.train()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=LEARNING_RATE, total_steps=steps, pct_start=0.08, cycle_momentum=False)
    for step in range(1, steps + 1):
        # Two means, so that the few digits of a sum are not lost among the words of stories.
        short_loss = loss_of(model, next(short_batches))
        long_loss = loss_of(model, next(long_batches))
        optimizer.zero_grad()
        (short_loss + STORY_WEIGHT * long_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"  step {step:4d}  loss: additions {short_loss.item():.4f}, conversations "
                  f"{long_loss.item():.4f}", flush=True)
    model.eval()


def answers(model, tokenizer, questions, max_new_tokens):
    """Greedy answers through the chat template; the prompts must be equally long."""
    chats = [[{"role": "user", "content": question}] for question in questions]
    prompts = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**prompts, do_sample=False, max_new_tokens=max_new_tokens)
    return tokenizer.batch_decode(out[:, prompts["input_ids"].shape[1]:],
                                  skip_special_tokens=True)


def measure(folder, held_out):
    """Loads the saved folder as any user would, prints what it can do, returns the accuracy."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    size = sum(f.stat().st_size for f in folder.iterdir()) / 1e6
    print(f"  {model.num_parameters()} parameters, folder {size:.2f} MB")
    questions, wanted = zip(*(addition_turn(pair) for pair in held_out))
    got = [answer for start in range(0, len(questions), 256)
           for answer in answers(model, tokenizer, questions[start:start + 256], 5)]
    accuracy = sum(map(str.__eq__, got, wanted)) / len(wanted)
    print(f"  held-out additions: {100 * accuracy:.2f} % of {len(wanted)}")
    for question in SAMPLE_QUESTIONS:
        print(f"  {question!r} -> {answers(model, tokenizer, [question], 250)[0]!r}")
    return accuracy


def write_held_out(path, held_out, rng):
    rows = [dict(zip(("a", "b", "question", "answer"), pair + addition_turn(pair)))
            for pair in rng.sample(held_out, HELD_OUT_LISTED)]
    path.write_text(json.dumps(rows, indent=1) + "\n")


def build(name, steps, folder, tokenizer, short_pool, long_pool):
    """Trains and saves one model; from the seed alone, whatever was made before it."""
    print(f"{name}:")
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
RECIPES = {"falcon_h1": (make_falcon_h1, 600), "gemma3": (make_gemma3, 700)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*RECIPES, "all"], default="all")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent,
                        help="where the folders go (default: beside this script)")
    parser.add_argument("--steps", type=int, help="train for another number of steps")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    # Far decays are denormal numbers, on which a CPU is many times slower.
    torch.set_flush_denormal(True)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rng = random.Random(SEED)
    train_pairs, held_out = split_additions(rng)
    args.out.mkdir(parents=True, exist_ok=True)
    write_held_out(args.out / "heldout_additions.json", held_out, rng)
    tokenizer = make_tokenizer(rng)
    short_pool = make_short_pool(rng, tokenizer, train_pairs)
    long_pool = make_long_pool(rng, tokenizer, train_pairs, 5000)
    print(f"{len(train_pairs)} pairs to train on, {len(held_out)} held out")
    for name in RECIPES if args.model == "all" else [args.model]:
        folder = args.out / f"{name}-demo"
        build(name, args.steps or RECIPES[name][1], folder, tokenizer, short_pool, long_pool)
        if measure(folder, held_out) < LEAST_ACCURACY:
            sys.exit(f"{name}: the held-out accuracy is below {100 * LEAST_ACCURACY:.0f} %")


if __name__ == "__main__":
    main()
