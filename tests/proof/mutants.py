# SPDX-License-Identifier: BSD-3-Clause
"""Finds the checks of C sources, and wraps their conditions so that each can be switched off.

A check is an `if` whose body fails or gives a failure back; its mutants: never taken ("removed"),
and the other way round ("inverted"). Of a check of several operands (a || b) each one is a mutant,
too, that leaves it out ("left out"); and so of a predicate (return a && b). What is overlooked leaves
no trace: an error that a called function has set is cleared, as nothing sets another over it.
"""
import re

FAILS = re.compile(
    r"\b\w*(fail|refuse|FAIL|REFUSE)\w*\s*\("
    r"|\breturn\s+(error->code|code|status|NULL|false|SIZE_MAX|UINT32_MAX"
    r"|NO_ENTRY|BERTH_E_\w+|-1|\w+->error(->|\.)code|abandon\()|\bgoto cleanup|\bgood = false")
GIVES_BACK = re.compile(r"\b(return|goto)\b[^;]*;\s*$")
CONDITION = re.compile(r"\bif\s*\(")
PREDICATE = re.compile(r"\breturn\b(?=[^;]*(&&|\|\|)[^;]*;)")
# What a function that fails, asked in a condition, has set: an argument, or a field of the first.
SETS_ERROR = [
    (re.compile(r"[(,]\s*(&?[\w.>-]*\b(?:error|inner|unasked|bad))\)+\s*(?:<|!=)\s*(?:0|BERTH_OK)\b"),
     "{}"),
    (re.compile(r"\b\w+\((unpickler|walk)\b[^;]*\)\s*<\s*0"), "{}->error"),
    (re.compile(r"!\w+\((unpickler)\b"), "{}->error"),
    (re.compile(r"!\w+\((tree)\b"), "&{}->error"),
]
CLOSING = {"(": ")", "{": "}", "[": "]"}


def blank(text):
    """The text with its comments made of spaces, and strings and characters of x."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^#include[^\n]*'
    return re.sub(pattern, lambda found: re.sub(r"[^\n]", "x" if found[0][0] in "\"'" else " ",
                                                found[0]), text, flags=re.DOTALL | re.MULTILINE)


def behind(text, at):
    """Behind the bracket that closes the one at `at`."""
    closing = []
    for i in range(at, len(text)):
        if text[i] in CLOSING:
            closing.append(CLOSING[text[i]])
        elif closing and text[i] == closing[-1]:
            closing.pop()
            if not closing:
                return i + 1
    raise ValueError("a bracket without its end")


def body_end(text, at):
    """(begin, end) of the statement at `at`."""
    while text[at] in " \t\n\\":
        at += 1
    if text[at] == "{":
        return at, behind(text, at)
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in "({[") - (text[i] in ")}]")
        if text[i] == ";" and depth == 0:
            return at, i + 1
    raise ValueError("a statement without its end")


def is_failure(body):
    """Whether a body fails: one statement, or a block that does so at its end, not among ifs."""
    if not body.startswith("{"):
        return bool(FAILS.search(body))
    inside = body[1:-1].rstrip()
    last = inside[max(inside.rfind(";", 0, -1), inside.rfind("}")) + 1:]
    if FAILS.search(last) and GIVES_BACK.search(last):
        return True
    return bool(FAILS.search(inside)) and not re.search(r"\b(if|for|while)\b", inside)


def operands(text, begin, end):
    """("||" or "&&", [(begin, end)]) of an expression's outermost operator; none: ("", [])."""
    places = {"||": [], "&&": [], "?": []}
    i = begin
    while i < end:
        if text[i] in CLOSING:
            i = behind(text, i)
            continue
        for operator in places:
            if text.startswith(operator, i):
                places[operator].append(i)
        i += 2 if text.startswith(("||", "&&"), i) else 1
    for operator in ("||", "&&"):
        if places["?"]:
            return "", []
        if places[operator]:
            cuts = [begin - 2] + places[operator] + [end]
            return operator, [(a + 2, b) for a, b in zip(cuts, cuts[1:])]
    return "", []


def trim(text, begin, end):
    while begin < end and text[begin] in " \t\n\\":
        begin += 1
    while end > begin and text[end - 1] in " \t\n\\":
        end -= 1
    return begin, end


def error_in(text, span):
    """What a condition asks functions to set when they fail, or 0."""
    for pattern, how in SETS_ERROR:
        found = pattern.findall(text, *span)
        if found:
            return how.format(found[-1])
    return "0"


class Mutant:
    def __init__(self, number, path, line, kind, text):
        self.number, self.path, self.line, self.kind = number, path, line, kind
        self.text = re.sub(r"[\s\\]+", " ", text)
        self.nth = 1  # of those with this text

    def __str__(self):
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"

    def key(self):
        """What it is called in lists: lines move."""
        return f"{self.path}: {self.kind}: {self.text}" + (f" ({self.nth})" if self.nth > 1 else "")


class Rewriter:
    """Collects the mutants of files; rewritten text wraps them."""

    def __init__(self):
        self.mutants = []
        self.n_alike = {}  # of each text

    def add(self, path, text, span, *kinds):
        number = len(self.mutants)
        line = text.count("\n", 0, span[0]) + 1
        for kind in kinds:
            mutant = Mutant(len(self.mutants), path, line, kind, text[span[0]:span[1]])
            alike = mutant.key()
            mutant.nth = self.n_alike[alike] = self.n_alike.get(alike, 0) + 1
            self.mutants.append(mutant)
        return number

    def rewrite(self, path, text):
        plain = blank(text)
        inserts = []  # (place, order, text)
        for found in CONDITION.finditer(plain):
            end = behind(plain, found.end() - 1)
            begin, behind_body = body_end(plain, end)
            if not is_failure(plain[begin:behind_body]):
                continue
            span = trim(plain, found.end(), end - 1)
            number = self.add(path, text, span, "removed", "inverted")
            self.wrap(inserts, span, f"berth_mutate_if({number}, ", error_in(plain, span), 0)
            operator, parts = operands(plain, *span)
            if operator == "||":
                self.wrap_operands(inserts, path, text, plain, parts, "0")
        for found in PREDICATE.finditer(plain):
            span = trim(plain, found.end(), plain.index(";", found.end()))
            operator, parts = operands(plain, *span)
            if operator:
                self.wrap_operands(inserts, path, text, plain, parts, str(int(operator == "&&")))
        for place, _, what in sorted(inserts, reverse=True):
            text = text[:place] + what + text[place:]
        return text

    def wrap_operands(self, inserts, path, text, plain, parts, neutral):
        for part in parts:
            part = trim(plain, *part)
            number = self.add(path, text, part, "left out")
            self.wrap(inserts, part, f"berth_mutate_operand({number}, {neutral}, ",
                      error_in(plain, part), 1)

    @staticmethod
    def wrap(inserts, span, before, error, depth):
        # Where two begin or end at one place, the outer one is outside.
        inserts.append((span[0], depth, before))
        inserts.append((span[1], -depth, f", {error})"))
