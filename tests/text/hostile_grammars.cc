#include "tests/text/hostile_grammars.h"

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

using Kind = GrammarSpec::Kind;

// Chains of `count` names. Each one names the next.
std::string Chain(int count, const std::string& head, const std::string& middle, const std::string& end,
                  const std::string& last) {
  std::string all;
  for (int i = 0; i < count; ++i) absl::StrAppend(&all, head, i, middle, i + 1, end);
  return absl::StrCat(all, head, count, last);
}

// A list of `count` texts that `make` gives.
std::string List(int count, const std::function<std::string(int)>& make) {
  std::string all;
  for (int i = 0; i < count; ++i) absl::StrAppend(&all, i > 0 ? ", " : "", make(i));
  return all;
}

// {"d0": SCHEMA, ...}, where `make` gives the schemas.
std::string Definitions(int count, const std::function<std::string(int)>& make) {
  return "{" + List(count, [&](int i) { return absl::StrCat("\"d", i, "\": ", make(i)); }) + "}";
}

std::string Reference(int definition) { return absl::StrCat(R"({"$ref": "#/$defs/d)", definition, "\"}"); }

// `count` definitions. Each one names the next one twice, or all of them.
std::string SharedReferences(int count, const std::string& keyword) {
  return R"({"$ref": "#/$defs/d0", "$defs": )" +
         Definitions(count,
                     [&](int i) {
                       if (i + 1 == count) return std::string("{}");
                       return absl::StrCat("{\"", keyword, "\": [", Reference(i + 1), ", ", Reference(i + 1), "]}");
                     }) +
         "}";
}
std::string MutualReferences(int count) {
  const std::string all = List(count, Reference);
  return R"({"$ref": "#/$defs/d0", "$defs": )" +
         Definitions(count,
                     [&](int i) {
                       return absl::StrCat(R"({"type": "object", "properties": {"p)", i, R"(": {"anyOf": [)", all,
                                           R"(]}}, "required": ["p)", i, "\"]}");
                     }) +
         "}";
}

// Schemas in which one large part meets many small ones. What is kept for each small one, or tried with it, must not
// grow with the large one.
std::map<std::string, std::string> LargeAndSmallParts() {
  const auto number = [](int i) { return absl::StrCat(i); };
  const auto name = [](int i) { return absl::StrCat("\"p", i, "\""); };
  std::map<std::string, std::string> all;
  const std::string under_long_name = "{\"properties\": {\"" + Repeat("k", 700000) + "\": {\"anyOf\": [";
  all["options under a long name"] = under_long_name + Repeat("{}, ", 70000) + "{}]}}}";
  all["listed values under a long name"] =
      "{\"properties\": {\"" + Repeat("k", 700000) + "\": {\"enum\": [" + Repeat("[], ", 60000) + "[1]]}}}";
  all["references under a long name"] = "{\"properties\": {\"" + Repeat("k", 700000) +
                                        R"(": {"$anchor": "a", "anyOf": [)" +
                                        Repeat(R"({"items": {"$ref": "#a"}}, )", 10000) + "{}]}}}";
  all["unknown words under a long name"] = under_long_name + Repeat(R"({"x": 1}, )", 30000) + "{}]}}}";
  all["anchors under a long name"] =
      under_long_name + List(10000, [](int i) { return absl::StrCat(R"({"$anchor": "a)", i, "\"}"); }) + "]}}}";
  all["alternatives of a pattern"] =
      R"({"pattern": "(?:^)" + Repeat("|a", 198) + ")(?:$" + Repeat("|a", 400000) + ")\"}";
  all["many bounds of a large enum"] = "{\"allOf\": [{\"enum\": [" + List(80000, number) + "]}, " +
                                       List(15000, [](int i) { return absl::StrCat("{\"minimum\": -", i + 1, "}"); }) +
                                       "]}";
  all["many patterns of a large enum"] =
      "{\"allOf\": [{\"enum\": [" + List(50000, name) + "]}, " +
      List(15000, [](int i) { return absl::StrCat("{\"maxLength\": ", i + 9, "}"); }) + "]}";
  return all;
}

// Schemas whose size lets a loop within a loop run for minutes.
std::map<std::string, std::string> LongSchemas() {
  const auto number = [](int i) { return absl::StrCat(i); };
  const auto name = [](int i) { return absl::StrCat("\"p", i, "\""); };
  const auto any = [](int i) { return absl::StrCat("\"p", i, "\": true"); };
  std::map<std::string, std::string> all;
  all["shared options"] = SharedReferences(60, "anyOf");
  all["shared parts"] = SharedReferences(60, "allOf");
  all["mutual references"] = MutualReferences(60);
  // Each reference names the same place in its own words.
  all["one place by many references"] = R"({"$defs": {"~~~~~~~~~~~~": {"enum": [)" + List(2000, number) +
                                        R"(]}}, "anyOf": [)" +
                                        List(4096,
                                             [](int i) {
                                               std::string key;
                                               for (int bit = 0; bit < 12; ++bit)
                                                 key += (i >> bit & 1) != 0 ? "~0" : "~";
                                               return R"({"$ref": "#/$defs/)" + key + "\"}";
                                             }) +
                                        "]}";
  all["long pointers"] = Repeat("{\"properties\": {\"" + Repeat("k", 4000) + "\": ", 60) + "{\"enum\": [" +
                         List(60000, number) + "]}" + Repeat("}}", 60);
  all["references into each other"] =
      Repeat("{\"items\": ", 100) + "{\"enum\": [" + List(50000, number) + "]}" + Repeat("}", 99) + ", \"anyOf\": [" +
      List(90, [](int i) { return "{\"$ref\": \"#" + Repeat("/items", i + 1) + "\"}"; }) + "]}";
  all["many required names"] = R"({"type": "object", "required": [)" + List(90000, name) + "]}";
  all["required twice"] = R"({"type": "object", "required": [)" + List(90000, name) + R"(, "p89999"]})";
  all["large enum"] = "{\"enum\": [" + List(80000, name) + "]}";
  all["large enum of a type"] = R"({"type": "string", "enum": [)" + List(80000, name) + "]}";
  all["large constant object"] = "{\"const\": {" + List(50000, any) + "}}";
  all["large constant array"] = "{\"const\": [" + List(120000, number) + "]}";
  all["types that come twice"] =
      R"({"type": [)" + Repeat("\"object\", ", 40000) + R"("object"], "properties": {)" + List(2000, any) + "}}";
  all["many options of many items"] = R"({"type": "array", "prefixItems": [)" + Repeat("true, ", 60000) +
                                      R"(true], "anyOf": [)" + Repeat("{\"type\": \"null\"}, ", 10000) + "{}]}";
  all["many objects of many properties"] =
      R"({"prefixItems": [)" + List(20, [&](int) { return "{\"properties\": {" + List(2000, any) + "}}"; }) + "]}";
  all["properties of many parts"] =
      R"({"allOf": [)" +
      List(10,
           [](int part) {
             const auto of_part = [part](int i) { return absl::StrCat("\"p", part, "_", i, "\": true"); };
             return "{\"properties\": {" + List(1500, of_part) + "}}";
           }) +
      "]}";
  all["very many patterns"] =
      R"({"patternProperties": {)" + List(400, [](int i) { return absl::StrCat("\"^p", i, "_.*x\": true"); }) + "}}";
  // References that are shared, where it matters which values there are.
  const std::string shared = "\"$defs\": " + Definitions(14, [](int i) {
                               if (i == 13) return std::string(R"({"const": 1})");
                               return "{\"anyOf\": [" + Repeat(Reference(i + 1) + ", ", 9) + Reference(i + 1) + "]}";
                             });
  all["distinct items by shared references"] =
      R"({"type": "array", "uniqueItems": true, "items": {"$ref": "#/$defs/d0"}, )" + shared + "}";
  all["one of shared references"] = R"({"oneOf": [{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/d1"}], )" + shared + "}";
  all["distinct items of a large enum"] =
      R"({"type": "array", "uniqueItems": true, "items": {"enum": [)" + List(80000, number) + "]}}";
  all["names of a large enum"] = R"({"propertyNames": {"enum": [)" + List(80000, name) + "]}}";
  all["counts of many properties"] =
      R"({"type": "object", "minProperties": 500, "properties": {)" + List(1000, any) + "}}";
  all["large tagged union"] = "{\"oneOf\": [" +
                              List(2000,
                                   [](int i) {
                                     return absl::StrCat(R"({"type": "object", "properties": {"t": {"const": )", i,
                                                         R"(}}, "required": ["t"]})");
                                   }) +
                              "]}";
  const auto objects = [](int count, int step, int last) {
    return Definitions(count, [=](int i) {
      if (i == last) return std::string(R"({"type": "null"})");
      return R"({"type": "object", "properties": {"p": )" + Reference(i + step) + R"(}, "required": ["p"]})";
    });
  };
  all["chain of objects"] = R"({"$ref": "#/$defs/d0", "$defs": )" + objects(4000, 1, 3999) + "}";
  all["chain of objects from its end"] =
      R"({"properties": {)" + List(1900, [](int i) { return absl::StrCat("\"p", i, "\": ", Reference(i)); }) +
      R"(}, "$defs": )" + objects(1900, -1, 0) + "}";
  all["one of many strings"] =
      "{\"oneOf\": [" + List(3000, [](int i) { return absl::StrCat(R"({"type": "string", "minLength": )", i, "}"); }) +
      "]}";
  return all;
}

// Structural tags with `count` triggers and one structure, or one for each.
// Schemas whose complements, or patterns that are turned round, would take long.
std::map<std::string, std::string> Complements() {
  const auto not_pattern = [](const std::string& pattern) {
    return absl::StrCat(R"({"type": "string", "not": {"pattern": ")", pattern, "\"}}");
  };
  std::map<std::string, std::string> all;
  all["not a pattern of many states"] = not_pattern("(a|b)*a(a|b){30}");
  all["not a pattern of many classes"] = not_pattern(Repeat("[^a]", 20000));
  all["not a pattern of many letters"] =
      not_pattern("^(" + List(3000, [](int i) { return absl::StrCat(i > 0 ? "|" : "", "x", i, "y+"); }) + ")$");
  all["not a large repeat"] = not_pattern("(a{100}){100}");
  all["not of not"] = Repeat(R"({"not": )", 120) + "{}" + Repeat("}", 120);
  all["not of itself"] = R"({"not": {"$ref": "#"}})";
  all["not of each other"] = R"({"$ref": "#/$defs/d0", "$defs": )" +
                             Definitions(2, [](int i) { return "{\"not\": " + Reference(1 - i) + "}"; }) + "}";
  std::string nested = R"({"required": ["x"]})";
  for (int i = 0; i < 20; ++i) {
    nested = absl::StrCat(R"({"oneOf": [{"required": ["a)", i, R"("]}, {"properties": {"b": )", nested, "}}]}");
  }
  all["one of one of"] = nested;
  all["if in if"] = Repeat(R"({"if": {"required": ["a"]}, "else": )", 100) + "false" + Repeat("}", 100);
  all["not a long text"] = R"({"not": {"const": ")" + Repeat("a", 100000) + "\"}}";
  return all;
}

std::string Triggers(int count, bool structures, const std::string& prefix) {
  const auto trigger = [&](int i) { return absl::StrCat("\"", prefix, i, ";\""); };
  const auto structure = [&](int i) {
    return absl::StrCat("{\"begin\": ", trigger(i), R"(, "schema": true, "end": ""})");
  };
  return R"({"type": "structural_tag", "triggers": [)" + List(count, trigger) + R"(], "structures": [)" +
         List(structures ? count : 1, structure) + "]}";
}

}  // namespace

std::string Repeat(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

std::map<std::string, GrammarSpec> HostileGrammars() {
  std::map<std::string, GrammarSpec> all;
  const auto regex = [&](const std::string& name, const std::string& text) {
    all["regex: " + name] = {.kind = Kind::kRegex, .text = text};
  };
  regex("repeat of repeat", "(a{1000}){1000}");
  regex("repeat of repeat of repeat", "((a{1000}){1000}){1000}");
  regex("states", "(a|b)*a(a|b){30}");
  regex("large bound", "[a-z]{0,1000000}");
  regex("letters", "(\\p{L}{0,500}b){0,500}");
  regex("nesting", Repeat("(", 5000) + "a" + Repeat(")?", 5000));
  regex("alternatives", Repeat("[a-z]{3}x|", 20000) + "b");
  regex("and of many", Repeat("(a?b?c?)*", 3000));
  const auto lark = [&](const std::string& name, const std::string& text) {
    all["lark: " + name] = {.kind = Kind::kLark, .text = text};
  };
  lark("chain of rules", "start: r0\n" + Chain(14000, "r", ": r", "\n", ": \"x\"\n"));
  lark("chain of right-recursive rules", "start: r0\n" + Chain(10000, "r", ": \"a\" | r", "\n", ": \"x\"\n"));
  lark("chain of terminals", "start: T0\n" + Chain(10000, "T", ": \"a\" T", "\n", ": \"x\"\n"));
  lark("chain of optional terminals", "start: T0\n" + Chain(10000, "T", ": \"a\"? T", "?\n", ": \"x\"\n"));
  lark("brackets", "start: " + Repeat("(", 100000) + "\"a\"");
  lark("brackets that close", "start: " + Repeat("(", 199) + "\"a\"" + Repeat(")", 199));
  lark("tildes", "start: A\nA: " + Repeat("~", 5000) + "\"a\"");
  lark("nothing", "start: start");
  lark("ambiguous", "start: e\ne: e e | \"a\" | e e e |");
  lark("large repeat", "start: (\"a\" | \"b\"){0,1000000} \"c\"");
  lark("repeat of repeat", "start: ((\"a\"{1,1000}){1,1000}){1,1000}");
  lark("substring", "start: A\nA: %regex {\"substring_chars\": \"" + Repeat("ab c", 20000) + "\"}");
  lark("not of not", "start: A\nA: ~(/.*a.{20}/ & ~/.*b.{20}/)");
  lark("strings that do not end", Repeat("\"", 1001));
  const auto schema = [&](const std::string& name, const std::string& text) {
    all["schema: " + name] = {.kind = Kind::kJsonSchema, .text = text};
  };
  schema("chain of references", R"({"$ref": "#/$defs/d0", "$defs": {)" +
                                    Chain(20000, "\"d", "\": {\"$ref\": \"#/$defs/d", "\"}, ", "\": {}}}"));
  schema("reference to itself", R"({"$ref": "#"})");
  schema("endless object", R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})");
  schema("nesting", Repeat("{\"items\": ", 100) + "{}" + Repeat("}", 100));
  schema("more nesting", Repeat("{\"items\": ", 50000) + "{}" + Repeat("}", 50000));
  schema("many options", "{\"anyOf\": [" + Repeat("{\"type\": \"object\", \"required\": [\"a\"]}, ", 5000) + "{}]}");
  schema("crossed options",
         "{\"allOf\": [" + Repeat(R"({"anyOf": [{"type": "object"}, {"type": "array"}, {"minLength": 2}]}, )", 12) +
             "{}]}");
  schema("large counts", R"({"type": "array", "minItems": 100000000, "items": {"maxLength": 1000000000}})");
  schema("large numbers", R"({"type": "number", "minimum": 1e-300, "maximum": 1e300, "multipleOf": 0.0000001})");
  schema("multiples",
         R"({"allOf": [{"multipleOf": 65537}, {"multipleOf": 65539}, {"multipleOf": 65543}], "type": "integer"})");
  schema("one multiple", R"({"multipleOf": 9973, "type": "integer"})");
  schema("one small multiple", R"({"multipleOf": 997, "type": "integer"})");
  std::string properties;
  for (int i = 0; i < 2000; ++i)
    absl::StrAppend(&properties, i > 0 ? "," : "", "\"p", i, "\": {\"type\": \"integer\"}");
  schema("many properties", "{\"type\": \"object\", \"properties\": {" + properties + "}}");
  std::string patterns;
  for (int i = 0; i < 60; ++i)
    absl::StrAppend(&patterns, i > 0 ? "," : "", "\"^p", i, "_.*x\": {\"type\": \"integer\"}");
  schema("many patterns", "{\"type\": \"object\", \"patternProperties\": {" + patterns + "}}");
  schema(
      "costly pattern",
      R"({"type": "string", "pattern": "^(\\p{L}+[\\.-]?\\w+)*@(\\w+[\\.-]?\\w+)*(\\.\\w{2,300})+$", "minLength": 600})");
  for (const auto& [name, text] : LargeAndSmallParts()) schema(name, text);
  for (const auto& [name, text] : LongSchemas()) schema(name, text);
  for (const auto& [name, text] : Complements()) schema(name, text);
  const auto tag = [&](const std::string& name, const std::string& text) {
    all["tag: " + name] = {.kind = Kind::kStructuralTag, .text = text};
  };
  tag("many triggers", Triggers(80000, /*structures=*/false, "<"));
  tag("many triggers with a structure each", Triggers(10000, /*structures=*/true, "<"));
  tag("long triggers", Triggers(2, /*structures=*/false, Repeat("a", 250000)));
  tag("control tokens", R"({"type": "structural_tag", "triggers": ["<"], "structures": [{"begin": "<)" +
                            Repeat("<|im_end|>", 40000) + R"(", "schema": true, "end": ""}]})");
  GrammarSpec choice = {.kind = Kind::kChoice};
  for (int i = 0; i < 50000; ++i) choice.choices.push_back(absl::StrCat("choice ", i * 7919));
  all["choice: many"] = choice;
  all["choice: long"] = {.kind = Kind::kChoice, .choices = {Repeat("abc ", 200000)}};
  return all;
}

}  // namespace berth
