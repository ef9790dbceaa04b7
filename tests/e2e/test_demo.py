"""What models/demo/README.md promises of the bundled models: sums, records, and stories that keep their topic."""

import concurrent.futures
import itertools
import json
import os
import random
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT, BerthServer, generate_request  # noqa: E402

FOLDER = os.path.join(ROOT, "models/demo")
sys.path.insert(0, FOLDER)
import corpus  # noqa: E402

# Stories of each topic.
STORIES = 500 if os.environ.get("BERTH_FULL") else 5


def listed(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return json.load(file)


ADDITIONS = listed("heldout_additions.json")
RECORDS = listed("heldout_records.json")


@pytest.fixture(scope="module", params=["falcon_h1-demo", "gemma3-demo"])
def server(request):
    with BerthServer(os.path.join(FOLDER, request.param), "--poison_cache", "--check_integrity") as server:
        yield server
        server.wait_idle()


def answers(server, requests):
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        return list(pool.map(lambda request: server.inference.Complete(request, timeout=300).text, requests))


@pytest.mark.parametrize("listed_turns", [ADDITIONS, RECORDS], ids=["additions", "records"])
def test_held_out_questions_are_answered(server, listed_turns):
    got = answers(server, [generate_request(chat=turn["question"]) for turn in listed_turns])
    wrong = [(turn["question"], text) for turn, text in zip(listed_turns, got) if text != turn["answer"]]
    assert len(listed_turns) == corpus.HELD_OUT_LISTED and wrong == []


def test_records_are_json(server):
    for turn in RECORDS[:5]:
        (text,) = answers(server, [generate_request(chat=turn["question"])])
        record = json.loads(text)
        assert list(record) == ["name", "animal", "place"]
        assert all(value in turn["question"] for value in record.values())


def test_stories_keep_their_topic(server):
    """By the sampling parameters of the model's generation_config.json, as every client without its own gets them."""
    asked = [(topic, form.format(topic=corpus.with_article(topic))) for topic in corpus.TOPICS
             for form in itertools.islice(itertools.cycle(corpus.STORY_FORMS), STORIES)]
    requests = [generate_request(chat=question, temperature=None) for _, question in asked]
    for seed, request in enumerate(requests):
        request.sampling.seed = seed
    stories = answers(server, requests)
    for topic in corpus.TOPICS:
        lost = [story for (wanted, _), story in zip(asked, stories) if wanted == topic
                and not corpus.keeps_topic(story, topic)]
        assert len(lost) <= 0.01 * STORIES, lost
    faulty = [word for story in stories for word in corpus.faulty_words(story)]
    assert len(faulty) <= 0.01 * len(stories), faulty


def test_training_never_sees_what_is_held_out():
    pairs, held_out_pairs = corpus.split_additions(random.Random(corpus.SEED))
    assert {(item["a"], item["b"]) for item in ADDITIONS} <= set(held_out_pairs)
    assert not set(pairs) & set(held_out_pairs)
    records, held_out_records = corpus.split_records(random.Random(corpus.SEED))
    assert {tuple(json.loads(item["answer"]).values()) for item in RECORDS} <= set(held_out_records)
    assert not set(records) & set(held_out_records)


def test_faulty_words_are_found():
    assert corpus.faulty_words("Once upon a time, there was a a ziza named Max. Max was shy.") == ["ziza", "a"]
    assert corpus.keeps_topic("Once upon a time, there was an owl named Max.", "owl")
    assert not corpus.keeps_topic("Once upon a time, there was a cat named Max.", "owl")
