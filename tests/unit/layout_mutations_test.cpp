#include <catch2/catch.hpp>

#include "layout/parse.hpp"
#include "unit/layout_vectors.hpp"

// The vectors are worth something only if they notice the mistakes that layout engines make. The
// naive model agrees with every vector; with one rule bent it must disagree with at least one.

using namespace muonrt;
using vectors::Vector;

namespace {

std::vector<std::vector<naive::List>> naive_table(const Vector& v, const naive::Rules& rules) {
  std::vector<std::vector<naive::List>> out;
  for (const naive::List& at : naive::all_coords(v.mesh, rules)) {
    out.emplace_back();
    for (size_t d = 0; d < v.shape.size(); ++d) {
      out.back().push_back(
          naive::indices(v.shape[d], static_cast<int>(d), v.mesh, at, v.steps, rules));
    }
  }
  return out;
}

std::vector<std::string> noticed(const naive::Rules& rules) {
  std::vector<std::string> out;
  for (const Vector& v : vectors::all()) {
    if (naive_table(v, rules) != vectors::table_of(v)) out.push_back(v.name);
  }
  return out;
}

bool has(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

TEST_CASE("layout vectors: cutting explicit lists gives every one of them", "[unit][layout]") {
  CHECK(noticed({}).empty());
}

TEST_CASE("layout vectors: a balanced chunk is noticed", "[unit][layout]") {
  naive::Rules rules;
  rules.balanced_chunk = true;
  CHECK(has(noticed(rules), "E1"));
  CHECK(has(noticed(rules), "E2"));
}

TEST_CASE("layout vectors: a strided cut with its two chunks swapped is noticed",
          "[unit][layout]") {
  naive::Rules rules;
  rules.swapped_nesting = true;
  CHECK(has(noticed(rules), "E5"));
  CHECK(has(noticed(rules), "E8"));
  CHECK(has(noticed(rules), "E16a"));
}

TEST_CASE("layout vectors: a strided cut into n * f equal chunks is noticed", "[unit][layout]") {
  naive::Rules rules;
  rules.equal_pieces = true;
  CHECK(has(noticed(rules), "E6a"));
  CHECK_FALSE(has(noticed(rules), "E5"));  // even sizes cannot tell
}

TEST_CASE("layout vectors: column-major ranks are noticed", "[unit][layout]") {
  naive::Rules rules;
  rules.column_major = true;
  CHECK(has(noticed(rules), "E5"));
  CHECK(has(noticed(rules), "E3"));
}

TEST_CASE("layout vectors: evaluation from right to left is noticed", "[unit][layout]") {
  naive::Rules rules;
  rules.right_to_left = true;
  CHECK(has(noticed(rules), "E5 plain"));
  CHECK(has(noticed(rules), "E9"));
  CHECK(has(noticed(rules), "E16b"));
}

TEST_CASE("layout vectors: a split factor counted on the wrong side is noticed", "[unit][layout]") {
  // Encode each ordered vector anew: a mesh dim's factor is the product of the sizes that cut
  // earlier and stand further right (wrong: further left).
  const auto encoded = [](const Vector& v, bool wrong_side) {
    std::vector<std::string> out(v.mesh.size(), "R");
    for (size_t t = 0; t < v.steps.size(); ++t) {
      const int at = v.steps[t].mesh_dims[0];
      int64_t factor = 1;
      for (size_t s = 0; s < t; ++s) {
        const int other = v.steps[s].mesh_dims[0];
        if (wrong_side ? other < at : other > at) factor *= v.mesh[static_cast<size_t>(other)];
      }
      out[static_cast<size_t>(at)] = factor == 1 ? "S(0)" : "SS(0," + std::to_string(factor) + ")";
    }
    std::string text;
    for (const std::string& p : out) text += (text.empty() ? "" : ",") + p;
    return text;
  };
  int64_t vectors_seen = 0, noticed_here = 0;
  for (const Vector& v : vectors::all()) {
    if (v.reading != "ordered" || !v.flat_dims.empty()) continue;
    ++vectors_seen;
    CHECK(encoded(v, false) == v.placements);
    noticed_here += encoded(v, true) != v.placements;
  }
  CHECK(vectors_seen >= 4);
  CHECK(noticed_here == vectors_seen);
}
