"""Regular expressions whose texts are short, and grammars whose texts end soon: by hand and drawn at random."""

import random

BY_HAND = [
    "a",
    "abc|abd|x",
    "^anchored$",
    "\\Awhole\\Z",
    "[a-f0-9]{8}",
    "[^a-z]{2}",
    "\\d{3}-\\d{4}",
    "\\w{1,4}",
    "\\s{1,2}x",
    "\\D\\W\\S",
    "[\\w.]{2}@[\\d-]{2}",
    ".{3}",
    "(?s:.){2}",
    "(?i)yes|no",
    "(?i:AbC)d",
    "(?:ab){2,3}",
    "(a|b|cd){0,4}",
    "x?y{,2}z",
    "[]a]",
    "[^]a]b",
    "[a&&b]",
    "[[a]b]",
    "[a-]",
    "[.*+?]{2}",
    "\\.\\*\\\\\\/",
    "\\x41\\u00e9\\U0001F642",
    "é|ß|日本|🙂",
    "[а-я]{2,3}",
    "[🙂-🙄]",
    "(?P<year>20\\d\\d)-(0[1-9]|1[0-2])",
    "(([a-c]x?){2}-){1,2}",
    "\\t\\n\\r",
    '"[^"]{0,3}"',
    "(?:25[0-5]|2[0-4]\\d|1?\\d?\\d)(?:\\.(?:25[0-5]|2[0-4]\\d|1?\\d?\\d)){3}",
    "#[0-9A-Fa-f]{6}",
    "(?x) a  b # a comment\n c",
    "(?a:\\w\\d\\s)",
    "\\{\\}\\[\\]\\(\\)",
    "a{3}b{0}c{1,1}",
    "|a",
]

GRAMMARS = [
    'start: "yes" | "no"',
    'start: "a" start "b" | "c"',
    'start: item ("," item)~0..3\nitem: "x" | "y"',
    'start: NAME "=" NUMBER\nNAME: /[a-z]{1,3}/\nNUMBER: /[0-9]{1,2}/',
    'start: "(" start ")" | "[" start "]" | "."',
    'start: term (("+" | "-") term)?\nterm: /[0-9]/ | "(" start ")"',
    'start: "SELECT " COLUMN " FROM " TABLE (" WHERE " COLUMN " = " /[0-9]/)?\nCOLUMN: "a" | "b"\nTABLE: "t" | "u"',
    "start: /[ab]{2}/ /[cd]{2}/",
    'start: word (" " word)?\nword: "große" | "日本" | "🙂"',
    'start: pair pair?\npair: KEY ": " VALUE "\\n"\nKEY: /[a-z]{2}/\nVALUE: /[0-9]{2}/',
    'start: list\nlist: "[" (list ("," list)?)? "]"',
    'start: "if " cond " then " act\ncond: "x" | "not " cond\nact: "go" | "stop"',
    'start: a b? c\na: "1"\nb: "2"\nc: "3" | "4"',
    "start: HEX HEX\nHEX: /[0-9a-f]/",
    'start: ("a" | "b") ("c" | "d") ("e" | "f")',
    'start: "<" TAG ">" /[a-z]{1,4}/ "</" TAG ">"\nTAG: "b" | "i"',
    'start: sign? digits\nsign: "+" | "-"\ndigits: "0" | /[1-9][0-9]{0,2}/',
    'start: "move " DIRECTION " " STEPS\nDIRECTION: "north" | "south"\nSTEPS: /[1-9]/',
    'start: "\\"" /[^"\\n]{1,3}/ "\\""',
    'start: x\nx: y | "x" y\ny: z | "y" z\nz: "z"',
]

EBNF = [
    'root ::= "a" b | "c"\nb ::= [0-9] | "x" b',
    'root ::= item ("," item)?\nitem ::= [a-c] [a-c]?',
]


def drawn(seed: int) -> str:
    """A regular expression drawn at random."""
    rng = random.Random(seed)
    return _many(rng, 3)


def _many(rng: random.Random, depth: int) -> str:
    return "".join(_one(rng, depth) for _ in range(rng.randrange(1, 4)))


def _one(rng: random.Random, depth: int) -> str:
    atoms = ["a", "Z", "7", "é", "\\d", "\\w", "\\.", "[a-m]", "[^x]", "[\\d_]", "-", " "]
    if depth and rng.random() < 0.4:
        inner = "|".join(_many(rng, depth - 1) for _ in range(rng.randrange(1, 3)))
        atom = f"({rng.choice(['', '?:'])}{inner})"
    else:
        atom = rng.choice(atoms)
    return atom + rng.choice(["", "", "", "?", "{2}", "{0,2}", "{1,2}?"])
