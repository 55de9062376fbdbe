"""limits.py - counts the fields of C structs and the parameters of C prototypes, from text without comments.

A nested struct with a name is one field; the fields of an anonymous one are those of the struct around it. A field
list `uint32_t a, b;` is two fields. Text that the preprocessor makes is not counted.
"""

import re

STRUCT = re.compile(r"\b(?:struct|union)\s+(\w+)\s*\{")
# A prototype or a definition begins in the first column.
FUNCTION = re.compile(r"^(?!typedef\b|return\b|else\b)[A-Za-z_][\w\s*]*?\b(\w+)\(", re.M)
ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)(?!\))", re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", re.M)


def blank_directives(text):
    """Preprocessor lines blanked; lines stay where they are."""
    return DIRECTIVE.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), text)


def block_end(text, start):
    """Index after the bracket that closes the one before `start`."""
    depth = 1
    while depth and start < len(text):
        depth += (text[start] in "{([") - (text[start] in "})]")
        start += 1
    return start


def split(text, separator):
    """Parts of the text between separators that are in no bracket."""
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "{([") - (char in "})]")
        if char == separator and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    return parts + [text[begin:]]


def count_fields(body):
    """Direct fields of a struct's body."""
    count = 0
    for declaration in split(ATTRIBUTE.sub("", body), ";"):
        brace = declaration.rfind("}")
        declarators = declaration[brace + 1:]
        if brace >= 0 and not declarators.strip():  # an anonymous struct or union
            count += count_fields(declaration[declaration.find("{") + 1:brace])
        elif declarators.strip() and not declarators.strip().startswith("_Static_assert"):
            count += len(split(declarators, ","))
    return count


def structs(text):
    """(index, name, number of direct fields) of each struct and union with a name and a body."""
    text = blank_directives(text)
    for match in STRUCT.finditer(text):
        yield match.start(), match.group(1), count_fields(text[match.end():block_end(text, match.end()) - 1])


def prototypes(text):
    """(index, name, number of parameters) of each function of a header."""
    text = blank_directives(text)
    for match in FUNCTION.finditer(text):
        inner = text[match.end():block_end(text, match.end()) - 1]
        yield match.start(), match.group(1), 0 if inner.strip() in ("", "void") else len(split(inner, ","))


def read_exceptions(text):
    """{(kind, name): number} of lines "struct NAME NUMBER" and "function NAME NUMBER"."""
    rows = [line.split() for line in text.split("\n") if line.strip() and not line.startswith("#")]
    return {(kind, name): int(number) for kind, name, number in rows}
