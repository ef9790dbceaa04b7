"""The C header of the text crate declares what the crate's Rust defines. cbindgen writes a header of its own from the
Rust. Both must have the same functions and structs, with equal types in equal order. Names of arguments may differ.
"""

import re
import subprocess
import tempfile

import pytest
from sources import ROOT, read, tracked

HEADER = "text/text_abi.h"
CRATE = "text/crate/src/"
# What the header calls the crate's types. One that the crate renames or adds has to be added here.
NAMES = {"Bytes": "BerthBytes", "Ids": "BerthIds", "TokenText": "BerthTokenText", "View": "BerthView",
         "Spec": "BerthGrammarSpec", "LoadedTokenizer": "BerthTokenizer", "Template": "BerthTemplate",
         "Arc<Vocabulary>": "BerthVocabulary", "Work": "BerthCancel", "Constraint": "BerthGrammar"}
FUNCTION = re.compile(r"([\w ]+[\w*]\s*\**)\s*\b(berth_\w+)\(((?:[^()]|\([^()]*\))*)\);")
STRUCT = re.compile(r"struct (\w+) \{([^}]*)\};")
TYPEDEF = re.compile(r"(?:typedef|using) (\w+) = ([^;]*);")


def generated():
    """What cbindgen makes of the crate. It gets the modules as one file, so that it needs none of the crate's packages."""
    files = [path for path in tracked() if path.startswith(CRATE) and path.endswith(".rs")]
    modules = [f"pub mod {re.sub(r'[^a-z0-9]', '_', path[len(CRATE):])} {{\n{read(path)}\n}}\n" for path in files]
    return run_cbindgen("".join(modules))


def run_cbindgen(rust):
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/all.rs", "w", encoding="utf-8") as file:
            file.write(rust)
        with open(f"{folder}/cbindgen.toml", "w", encoding="utf-8") as file:
            file.write('language = "C++"\nusize_is_size_t = true\nno_includes = true\n')
        return subprocess.run(["cbindgen", "--quiet", "--config", f"{folder}/cbindgen.toml", f"{folder}/all.rs"], check=True,
                              capture_output=True, text=True, timeout=120, cwd=ROOT).stdout


def split(arguments):
    """The arguments, at the commas outside of parentheses and angle brackets."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "(<") - (character in ")>")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip() not in ("", "void")]


def type_of(declaration, types):
    """The type of "const uint8_t *name" or "bool (*name)(const void*)", in one spelling. `types` are typedefs."""
    pointer = re.fullmatch(r"(.+?)\(\*\w*\)\((.*)\)", declaration)
    if pointer:
        inner = ", ".join(type_of(part + ("x" if part.endswith("*") else " x"), types) for part in split(pointer.group(2)))
        return f"{spelled(pointer.group(1), types)} (*)({inner})"
    return spelled(re.fullmatch(r"(.*?)\w+", declaration, re.S).group(1), types)


def spelled(name, types):
    name = re.sub(r"\s*([*<>])\s*", r"\1", re.sub(r"\b(struct|std::)\b|\s+", " ", name)).strip()
    base = re.sub(r"^const |\*|\bconst$", "", name).strip()
    return types[base] if base in types else name.replace(base, NAMES.get(base, base), 1)


def declarations(text):
    """The structs as {name: types of its fields, with their names}, and the functions as {name: types}."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    types = {name: type_of(re.sub(r"\(\*\)", "(*x)", what), {}) for name, what in TYPEDEF.findall(text)}
    structs, functions = {}, {}
    for name, fields in STRUCT.findall(text):
        fields = [field.strip() for field in fields.split(";") if field.strip()]
        structs[NAMES.get(name, name)] = [(type_of(field, types), re.search(r"\w+$", field).group()) for field in fields]
    for result, name, arguments in FUNCTION.findall(text):
        functions[name] = (spelled(result, types), [type_of(argument, types) for argument in split(arguments)])
    return structs, functions


def test_the_header_declares_what_the_crate_defines():
    structs, functions = declarations(read(HEADER))
    crates_structs, crates_functions = declarations(generated())
    assert functions == crates_functions
    assert structs == crates_structs
    assert len(functions) > 25 and len(structs) > 4


def test_every_declaration_is_read():
    text = read(HEADER)
    structs, functions = declarations(text)
    assert len(functions) == len(re.findall(r"\bberth_\w+\(", text))
    assert len(structs) == len(re.findall(r"^struct \w+ \{", text, re.M))
    assert functions["berth_tokenizer_encode"] == ("int32_t", [
        "const BerthTokenizer*", "const uint8_t*", "size_t", "bool", "size_t", "bool (*)(const void*)", "const void*",
        "BerthIds*", "BerthBytes*"])
    assert structs["BerthView"] == [("const uint8_t*", "data"), ("size_t", "len")]


RUST = """
#[repr(C)]
pub struct View { data: *const u8, len: usize }
#[no_mangle]
pub unsafe extern "C" fn berth_f(view: *const View, on: Option<extern "C" fn(*const u8) -> bool>, out: *mut *mut Work) -> i64 { 0 }
"""


@pytest.mark.parametrize("old, new", [
    ("*const u8, len", "*const u16, len"), ("len: usize", "len: u32"), ("len: usize", "len: usize, more: bool"),
    ("view: *const View", "view: *mut View"), ("view: *const View", "view: View"), ("-> i64", "-> i32"), ("-> i64", ""),
    ("fn(*const u8)", "fn(*const u8, u8)"), ("out: *mut *mut Work", "out: *mut Work"),
    ("out: *mut *mut Work", "out: *mut *mut Template"), ("berth_f", "berth_g"), ("#[no_mangle]", "")])
def test_a_change_of_the_crate_alone_is_found(old, new):
    header = declarations("struct BerthView {\n const uint8_t* data;\n size_t len;\n};\n"
                          "int64_t berth_f(const BerthView* a, bool (*b)(const uint8_t*), BerthCancel** c);\n")
    assert declarations(run_cbindgen(RUST)) == header
    assert old in RUST and declarations(run_cbindgen(RUST.replace(old, new))) != header
