"""Formats of strings. What a format allows is valid by a judge of its own, and what it must not allow is refused."""

import json
import os
import re
import sys
import warnings

import idna
import pytest
from text_oracle import Oracle

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
WALKS = 100
LIMIT = 80  # tokens

TEXTS = {
    "regex": (
        ["", "^[a-zA-Z0-9_]{3,16}$", "(?:a(b)*)+", r"^(?=.*[A-Z])(?=.*\d)[A-Za-z\d@$!%*?&]{8,}$", r"[\u4e00-\u9fa5]+", "(a|b|)c",
         "[^a]", "[-a]", "[a-]", r"[\]\\]", "[0-9-_]", r"[\w.-]+@[\w-]+\.\w{2,4}", "a*?", "a{2}?", "(?<=a)b", "(?<!ab)c",
         r"[\x00-\x1f]", "[а-яА-Я]", "[!-~]", r"[ -\/:-@\[-`{-~]", "((((a))))", r"\bfoo\b", "a{10,255}", "[一-龥]", r"^/a/b$"],
        ["*", "\\", "a**", "(", ")", "[", "[z-a]", "a{2,1}", "a{20,19}", "(?=a)*", "^*", r"\b+", "(?P<n>a)", "(?<n>a)", r"\p{L}",
         r"\1", r"\a", "[]", "[^]", "(?i)a", "a{,5}", "a++", r"\Z", "a|*", "(?", "(*a)", r"[\d-z]", "{", "}", "]", r"\_", "a{1}{2}",
         "[9-0]", r"\u12", r"\xz", r"[b-\x10]", "(?#c)", "(?<=a*)b", r"[\u0400-\u03ff]", r"[\x1f-\x00]"]),
    "iri": (
        ["http://ƒøø.ßår/?∂éœ=πîx#πîüx", "urn:example:a", "http://[2001:db8::1]:80/p", "http://a.b/c?\ue000", "mailto:a@b.ç", "a:"],
        ["/abc", "âππ", "http://2001:0db8::7334/", "http://a b/", "http://a.b/%G0", "http://[::ffff:1.2.3.01]/", "1a:b", "http://a/<>",
         "http://a/\ue000", "http://a.b:c/", "http://a/\ufdd0"]),
    "iri-reference": (["//ƒøø.ßår/?∂éœ=πîx#πîüx", "/âππ", "âππ", "#ƒrägmênt", "", "a:b"], ["\\\\WINDOWS\\filëßåré", "#ƒräg\\mênt", "é é", "%é"]),
    "idn-email": (["실례@실례.테스트", "joe.bloggs@example.com", "δοκιμή@example.com", "a+b@c"], ["2962", "a@", "@b", "a@b@c", "a b@c", "a@-b", "ä.@b"]),
    "idn-hostname": (
        ["실례.테스트", "hostname", "Host-Name", "1host", "münchen.de", "例え", "ドメイン", "παράδειγμα.gr", "пример", "a" * 63],
        ["", ".", "a..b", "-a", "a-", "ä-", "-ä", "ab--c", "äb--c", "xn--X", "a_b", "a" * 64, "ü" * 60, "\u0903a", "l·", "Ü", "a.ב", "א", "、",
         ".".join(["a" * 63] * 4)]),
    "hostname": (["a--b.com", "x", "xn", "xn-a", "x-n", "n--a", "1.2"], ["xn--X", "XN--a", "a.xN--b", "", "a.", ".".join(["a" * 63] * 4)]),
    "uri": (["http://[2001:db8::7]/c=GB?one", "http://[::]", "http://a/"], ["http://[::1", "http://[1]", "http:/[::1]", "https://[@a/", "http://ä/"]),
}
# RFC 3987, for texts that have a scheme or not.
PART = r"(?:[\w.~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2}|[^\x00-\xa0\ud800-\uf8ff\ufdd0-\ufdef\ufff0-\uffff])"
ADDRESS = r"\[[0-9a-fA-F:.]+\]"
PRIVATE = r"[/?\ue000-\uf8ff\U000f0000-\U0010fffd]"
REFERENCE = (rf"(?:(?://(?:{PART}|{ADDRESS})*(?:/{PART}*)*)|/?(?!/){PART}*(?:/{PART}*)*)"
             rf"(?:\?(?:{PART}|{PRIVATE})*)?(?:#(?:{PART}|[/?])*)?")


def is_regex(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a later Python may read otherwise
        re.compile(text)
    return True


def is_name(text):
    return bool(idna.encode(text)) and len(text) <= 253


JUDGES = {
    "regex": is_regex,
    "iri": lambda text: re.fullmatch(rf"[a-zA-Z][a-zA-Z0-9+.-]*:{REFERENCE}", text),
    "iri-reference": lambda text: re.fullmatch(rf"(?:[a-zA-Z][a-zA-Z0-9+.-]*:)?{REFERENCE}", text),
    "idn-email": lambda text: text.count("@") == 1 and is_name(text.split("@")[1]),
    "idn-hostname": is_name,
    "hostname": lambda text: len(text) <= 253 and all(
        re.fullmatch(r"(?i)(?!xn--)(?!-)[a-z0-9-]{1,63}(?<!-)", label) for label in text.split(".")),
    "uri": lambda text: text.isascii() and JUDGES["iri"](text),
}


@pytest.fixture(scope="module")
def oracle():
    with Oracle() as oracle:
        oracle.value(load=DEMO)
        yield oracle


@pytest.mark.parametrize("name", TEXTS)
def test_a_format_takes_valid_texts_and_refuses_others(oracle, name):
    oracle.value(schema={"type": "string", "format": name})
    valid, invalid = TEXTS[name]
    for text in valid:
        assert oracle.value(accepts=json.dumps(text, ensure_ascii=False)), text
    for text in invalid:
        assert not oracle.value(accepts=json.dumps(text, ensure_ascii=False)), text


@pytest.mark.parametrize("name", JUDGES)
def test_random_texts_of_a_format_are_valid(oracle, name):
    oracle.value(schema={"type": "string", "format": name, "maxLength": 60})
    complete = 0
    for seed in range(WALKS):
        answer = oracle.value(walk=seed, limit=LIMIT)
        if answer is not None:
            text = json.loads(answer)
            assert JUDGES[name](text), text
            complete += len(text) > 2
    assert complete > WALKS // 4


@pytest.mark.parametrize("name", [*TEXTS, "email", "date-time", "time", "duration", "uri-template", "date"])
def test_a_text_that_is_not_of_a_format_is_surely_not(oracle, name):
    """Some formats have more texts than a grammar writes. These are not taken where the format is not to hold."""
    more = {"regex": "(?<n>a)", "hostname": "x", "uri": "http://[v1.a]", "email": '"a b"@c', "date-time": "2020-01-01T23:59:60z",
            "time": "23:59:60Z", "duration": "P1234567D", "idn-hostname": "ב", "iri": "http://[v1.a]", "iri-reference": "//[v1.a]",
            "idn-email": '"ä ä"@c', "uri-template": "{a}", "date": "0000-01-01"}[name]
    for schema in ({"type": "string", "not": {"format": name}}, {"type": "string", "oneOf": [{"format": name}, {}]}):
        if "error" not in oracle.ask(schema=schema):
            assert not oracle.value(accepts=json.dumps(more, ensure_ascii=False)), schema
    oracle.value(schema={"type": "object", "propertyNames": {"format": name}, "additionalProperties": {"const": 1}})
    for text in TEXTS.get(name, [[], []])[1]:
        assert not oracle.value(accepts=json.dumps({text: 1}, ensure_ascii=False)), text
