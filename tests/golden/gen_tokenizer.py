"""Golden data of tests/test_tokenizer.c, from PyPI's tokenizers.

  tok_<name>.json   small tokenizers, one for each pre-tokenizer pattern or feature, trained on the corpus
  tok_<name>.bin    for random string i: hash of the ids with control tokens as text, then with control tokens on
  tok_fable.bin     the same for ../shared/models/fable; ids of whole corpus files are in tok_corpus.txt

Strings are made by random_string(), which tests/test_tokenizer.c repeats draw for draw.
Run from the repository root: python tests/golden/gen_tokenizer.py [small]; `small` leaves out the fable model.
"""
import json
import os
import struct
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
SHARED = os.path.join(HERE, "../../../shared")
MASK = (1 << 64) - 1


class Rng:  # src/base/rng.h
    def __init__(self, seed):
        self.s = []
        for _ in range(4):
            seed = (seed + 0x9E3779B97F4A7C15) & MASK
            z = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
            self.s.append(z ^ (z >> 31))

    def u64(self):
        s = self.s
        x = (s[1] * 5) & MASK
        r = (((x << 7) | (x >> 57)) & MASK) * 9 & MASK
        t = (s[1] << 17) & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = ((s[3] << 45) | (s[3] >> 19)) & MASK
        return r

    def below(self, n):
        return (self.u64() * n) >> 64


SPACES = [0x20, 0x09, 0x0A, 0x0D, 0x0B, 0x0C, 0xA0, 0x85, 0x180E, 0x1680, 0x2003, 0x2028, 0x202F, 0x205F, 0x3000, 0x200B]
DIGITS = [0x660, 0x966, 0xFF10, 0x1D7CE, 0xB2, 0xBD, 0x2160, 0x3021, 0x1FBF0, 0x10D40, 0x11F50]
WORDS = ["'s", "'LL", "'\u017f", "'Re", " the", "The", " and", "\r\n", "<|im_start|>", "<|im_end|>", "<tool>", " [X] ",
         "<s>", "\U0001F468\u200D\U0001F469\u200D\U0001F467", "\U0001F3F3\uFE0F\u200D\U0001F308", "\U0001F1E9\U0001F1EA",
         "don't", "HTTPServer", "camelCase", "\u00e9t\u00e9", "e\u0301", "\u0130I\u0307", "\u2581", "<|endoftext|>",
         "\uac00\u1100\u1161", "\u0915\u094d\u0937", "\ufdfa", "\u212b", "if (x) {\n\treturn 1;\n}", "<0x41>"]


def point(rng, low, high):
    c = low + rng.below(high - low)
    return 0xFFFD if 0xD800 <= c <= 0xDFFF else c


def random_string(rng):
    out = []
    for _ in range(1 + rng.below(10)):
        kind = rng.below(16)
        n = 1 + rng.below(6)
        if kind == 0:
            out += [0x20] * n
        elif kind == 1:
            out += [SPACES[rng.below(len(SPACES))] for _ in range(n)]
        elif kind == 2:
            out += [0x30 + rng.below(10) for _ in range(n)]
        elif kind == 3:
            out += [0x61 + rng.below(26) - 32 * rng.below(2) for _ in range(n)]
        elif kind == 4:
            out += [0x21 + rng.below(94) for _ in range(n)]
        elif kind == 5:
            out += [point(rng, 0x4E00, 0xA000) for _ in range(n)]
        elif kind == 6:
            out += [point(rng, 0, 0x110000) for _ in range(n)]
        elif kind == 7:
            out += [point(rng, 0x80, 0x10000) for _ in range(n)]
        elif kind == 8:
            out += [0x61 + rng.below(26)] + [point(rng, 0x300, 0x370) for _ in range(n)]
        elif kind == 9:
            out += [0x0A] * n
        elif kind == 10:
            out += [DIGITS[rng.below(len(DIGITS))] + rng.below(3) for _ in range(n)]
        elif kind == 11:
            out += [point(rng, 0x10000, 0x32400) for _ in range(n)]
        elif kind == 12:
            out += [point(rng, 0x80, 0x2000) for _ in range(n)]
        elif kind == 13:
            c = point(rng, 0x20, 0x3100)
            out += [c] * (3000 if rng.below(40) == 0 else 20)
        else:
            for _ in range(n):
                out += map(ord, WORDS[rng.below(len(WORDS))])
    return "".join(map(chr, out))


def fnv(ids):
    h = 0xCBF29CE484222325
    for b in struct.pack("<%dI" % len(ids), *ids):
        h = ((h ^ b) * 0x100000001B3) & MASK
    return h


def hashes(tok, seed, n):
    rng = Rng(seed)
    out = []
    for _ in range(n):
        text = random_string(rng)
        for literal in (True, False):
            tok.encode_special_tokens = literal
            h = fnv(tok.encode(text, add_special_tokens=False).ids)
            out.append((h ^ (h >> 32)) & 0xFFFFFFFF)
    return struct.pack("<%dI" % len(out), *out)


# Patterns as published in the models' tokenizer.json (Kimi: tokenization_kimi.py).
C = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TAIL_SLASH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
HEAD = r"[^\r\n\p{L}\p{N}]?"
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
UPH, LOWH = UP[:-1] + r"&&[^\p{Han}]]", LOW[:-1] + r"&&[^\p{Han}]]"
PATTERNS = {
    "qwen2": [C + "|" + HEAD + r"\p{L}+|\p{N}" + TAIL],
    "qwen35": [C + "|" + HEAD + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "llama3": [C + "|" + HEAD + r"\p{L}+|\p{N}{1,3}" + TAIL],
    "gpt4o": [HEAD + UP + "*" + LOW + "+" + C + "?|" + HEAD + UP + "+" + LOW + "*" + C + r"?|\p{N}{1,3}" + TAIL_SLASH],
    "tekken": [HEAD + UP + "*" + LOW + "+|" + HEAD + UP + "+" + LOW + r"*|\p{N}" + TAIL_SLASH],
    "kimi": [r"[\p{Han}]+|" + HEAD + UPH + "*" + LOWH + "+" + C + "?|" + HEAD + UPH + "+" + LOWH + "*" + C
             + r"?|\p{N}{1,3}" + TAIL],
    "deepseek3": [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                  r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
                  r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""],
    "bailing": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
                r"|\s*[\r\n]|\s+(?!\S)|\s+"],
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def corpus():
    text = open(SHARED + "/corpus/valid.txt", encoding="utf-8").read()
    mixed = "été naïve 東京 日本語 中文字 текст Ελληνικά हिन्दी 한국어 0123 456 \n\n\t x = y + 1;\n" * 40
    return [text[i:i + 2000] for i in range(0, 200000, 2000)] + [mixed, "Camel CamelCase HTTP http don't DON'T " * 40]


def byte_level(pre, vocab=460, normalizer=None, ignore_merges=False, added=()):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    tok.add_tokens(list(added))
    return tok


def sentencepiece(style):
    """A vocabulary as Hugging Face converts SentencePiece ones: every cut of a token is a merge, best token first."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=420, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    chars = [p for p in pieces if len(p) == 1 and p not in "Zz"]
    words = [p for p in pieces if len(p) > 1]
    names = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)] + words + chars
    vocab = {p: i for i, p in enumerate(names)}
    merges = [(w[:i], w[i:]) for w in words for i in range(1, len(w)) if w[:i] in vocab and w[i:] in vocab]
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if style == "llama":
        tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif style == "metaspace":
        tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tok.normalizer = normalizers.Replace(" ", "▁")
        tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
                                    + ([decoders.Strip(" ", 1, 0)] if style != "gemma" else []))
    tok.add_special_tokens([AddedToken(s, normalized=False) for s in ("<unk>", "<s>", "</s>")])
    tok.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tok


def build():
    split = lambda name: pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), "isolated") for p in PATTERNS[name]] + [BYTES])
    for name in PATTERNS:
        added = [AddedToken("<tool>", normalized=False), AddedToken("[X]", lstrip=True, rstrip=True, normalized=False)]
        yield name, byte_level(split(name), ignore_merges=name in ("llama3", "tekken"),
                               added=added if name == "llama3" else ())
    yield "gpt2", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    yield "prefix", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))
    yield "smollm", byte_level(pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    yield "nfc", byte_level(split("qwen2"), normalizer=normalizers.NFC(), added=[
        AddedToken("<tool>", normalized=True), AddedToken("e\u0301", normalized=True), AddedToken("[X]", single_word=True)])
    yield "behaviors", byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}+"), "merged_with_next"), pre_tokenizers.Split("a", "merged_with_previous"),
        pre_tokenizers.Split(Regex(r"[aeiou]"), "contiguous"), pre_tokenizers.Punctuation(),
        pre_tokenizers.Split(Regex(r"\w+|\S"), "removed", invert=True), pre_tokenizers.Split(Regex(r"(?=b)"), "isolated"),
        BYTES]))
    for style in ("llama", "metaspace", "gemma"):
        yield style, sentencepiece(style)


def main():
    for number, (name, tok) in enumerate(build()):
        path = "%s/tok_%s" % (HERE, name)
        text = json.dumps(json.loads(tok.to_str()), ensure_ascii=False, separators=(",", ":"))
        open(path + ".json", "w", encoding="utf-8").write(text)
        tok = Tokenizer.from_file(path + ".json")
        open(path + ".bin", "wb").write(hashes(tok, 1000 + number, 500))
        print(name, number, tok.get_vocab_size(), flush=True)
    if sys.argv[1:] == ["small"]:
        return
    fable = Tokenizer.from_file(SHARED + "/models/fable/tokenizer.json")
    open(HERE + "/tok_fable.bin", "wb").write(hashes(fable, 7, 10000))
    with open(HERE + "/tok_corpus.txt", "w") as out:
        for name in ("train.txt", "valid.txt"):
            ids = fable.encode(open(SHARED + "/corpus/" + name, encoding="utf-8", newline="").read()).ids
            out.write("%s %d %016x\n" % (name, len(ids), fnv(ids)))


main()
