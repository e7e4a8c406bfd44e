#include "opt_json/glob.hpp"

namespace muonrt::tool {

namespace {

/// The result of comparing one element of a pattern with one character.
struct Element {
  bool matches;
  size_t length;  // length of the element in characters of the pattern
};

/// Compares the set that begins at pattern[at] == '[' with a character.
Element match_set(std::string_view pattern, size_t at, unsigned char c) {
  size_t i = at + 1;
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (negated) ++i;
  const size_t first = i;
  bool inside = false;
  for (; i < pattern.size() && (pattern[i] != ']' || i == first); ++i) {
    const auto low = static_cast<unsigned char>(pattern[i]);
    auto high = low;
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      high = static_cast<unsigned char>(pattern[i + 2]);
      i += 2;
    }
    inside = inside || (low <= c && c <= high);
  }
  if (i >= pattern.size()) return {c == '[', 1};
  return {inside != negated, i + 1 - at};
}

Element match_one(std::string_view pattern, size_t at, char c) {
  if (pattern[at] == '?') return {true, 1};
  if (pattern[at] == '[') return match_set(pattern, at, static_cast<unsigned char>(c));
  return {pattern[at] == c, 1};
}

}  // namespace

bool glob_matches(std::string_view pattern, std::string_view name) {
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t p = 0, n = 0;
  // position of the last star, and the end of the text that it matches
  size_t star = kNone, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
      continue;
    }
    if (p < pattern.size()) {
      const Element e = match_one(pattern, p, name[n]);
      if (e.matches) {
        p += e.length;
        ++n;
        continue;
      }
    }
    if (star == kNone) return false;
    p = star + 1;
    n = ++taken;
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace muonrt::tool
