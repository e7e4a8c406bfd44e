#include <catch2/catch.hpp>
#include <sstream>

#include "layout/parse.hpp"
#include "unit/layout/layout_naive.hpp"

// Compares hand-written lists of indices with layouts that are made from cuts, with layouts that
// are made from placements, and with the property tests' naive model.

using namespace muonrt;
using naive::List;

namespace {

/// Each line contains: name; shape; mesh; cuts, outermost first; indices; placements that give the
/// same layout. If the reading is not literal, it follows the placements. If the reading is
/// ordered, the FSDP dimensions come next. In the indices, '|' separates ranks, which are in mesh
/// order, and 'x' separates dimensions. '-' means no index, and '*' means all indices.
constexpr const char* kExamples = R"(
E1; 5; a=4; a:0; 0 1|2 3|4|-; S(0)
E2; 9; a=8; a:0; 0 1|2 3|4 5|6 7|8|-|-|-; S(0)
E3; 7,2; a=2,b=3; b:0; 0 1 2x0 1|3 4 5x0 1|6x0 1|0 1 2x0 1|3 4 5x0 1|6x0 1; R,S(0)
E4a; 5; a=2,b=2; a:0,b:0; 0 1|2|3|4; S(0),S(0)
E4b; 5; a=2,b=2; a*b:0; 0 1|2 3|4|-; S(0),S(0); ordered; a*b
E4c literal; 10; a=2,b=2,c=2; a:0:2,b:0:2,c:0; 0 1|5 6|2|7|3|8|4|9; SS(0,2),SS(0,2),S(0)
E4c ordered; 10; a=2,b=2,c=2; c:0,a*b:0; 0 1|5 6|2 3|7 8|4|9|-|-; SS(0,2),SS(0,2),S(0); ordered; a*b
E5; 8; a=2,b=2; a:0:2,b:0; 0 1|4 5|2 3|6 7; SS(0,2),S(0)
E5 ordered; 8; a=2,b=2; b:0,a:0; 0 1|4 5|2 3|6 7; SS(0,2),S(0); ordered
E5 plain; 8; a=2,b=2; a:0,b:0; 0 1|2 3|4 5|6 7; S(0),S(0)
E6a; 6; a=2,b=2; a:0:2,b:0; 0 1|3 4|2|5; SS(0,2),S(0)
E6a ordered; 6; a=2,b=2; b:0,a:0; 0 1|3 4|2|5; SS(0,2),S(0); ordered
E6b; 5; a=2,b=2; a:0:2,b:0; 0 1|3|2|4; SS(0,2),S(0)
E6b ordered; 5; a=2,b=2; b:0,a:0; 0 1|3|2|4; SS(0,2),S(0); ordered; a
E7 literal; 7; a=3,b=2; a:0:2,b:0; 0 1|4|2 3|5|6|-; SS(0,2),S(0)
E7 ordered; 7; a=3,b=2; b:0,a:0; 0 1|4|2 3|5|-|6; SS(0,2),S(0); ordered; a
E8; 16; a=4; a:0:4; 0 4 8 12|1 5 9 13|2 6 10 14|3 7 11 15; SS(0,4)
E9; 16; a=2,b=2; a:0,b:0:2; 0 1 4 5|2 3 6 7|8 9 12 13|10 11 14 15; S(0),SS(0,2)
E10a; 16; a=2,b=2,c=2; a:0:4,b:0:2,c:0; 0 1|8 9|4 5|12 13|2 3|10 11|6 7|14 15; SS(0,4),SS(0,2),S(0)
E10b literal; 9; a=2,b=2,c=2; a:0:4,b:0:2,c:0; 0 1|4 6|3|7|2|8|5|-; SS(0,4),SS(0,2),S(0)
E10b ordered; 9; a=2,b=2,c=2; c:0,b:0,a:0; 0 1|5|3|7|2|6|4|8; SS(0,4),SS(0,2),S(0); ordered
E10c literal; 11; a=2,b=2,c=2; a:0:4,b:0:2,c:0; 0 1|6 7|3 4|9|2|8|5|10; SS(0,4),SS(0,2),S(0)
E10c ordered; 11; a=2,b=2,c=2; c:0,b:0,a:0; 0 1|6 7|3 4|9|2|8|5|10; SS(0,4),SS(0,2),S(0); ordered
E10d literal; 9; a=2,b=3,c=2; a:0:6,b:0:2,c:0; 0|6|2|8|4|-|1|5|3|7|-|-; SS(0,6),SS(0,2),S(0)
E10d ordered; 9; a=2,b=3,c=2; c:0,b:0,a:0; 0|5|2|7|4|-|1|6|3|8|-|-; SS(0,6),SS(0,2),S(0); ordered
E11; 8; a=2,b=2,c=2; a:0:2,b:0:2,c:0; 0|4|1|5|2|6|3|7; SS(0,2),SS(0,2),S(0)
E11 ordered; 8; a=2,b=2,c=2; c:0,a:0,b:0; 0|4|1|5|2|6|3|7; SS(0,2),SS(0,2),S(0); ordered
E12; 5,6; a=2,b=2; a:0,b:1; 0 1 2x0 1 2|0 1 2x3 4 5|3 4x0 1 2|3 4x3 4 5; S(0),S(1)
E13; 8,4,6; a=3,b=2; a:0:2,b:0; 0 1x*x*|4 5x*x*|2 3x*x*|6 7x*x*|-x*x*|-x*x*; SS(0,2),S(0)
E15a; 3; a=2,b=4; a:0:4,b:0; 0|1|2|-|-|-|-|-; SS(0,4),S(0)
E15b; 2; a=2,b=3; a:0,b:0; 0|-|-|1|-|-; S(0),S(0)
E16a; 8; a=2; a:0:2; 0 1 4 5|2 3 6 7; SS(0,2)
E16b; 8; a=2,b=2; b:0:2,a:0; 0 1|2 3|4 5|6 7; S(0),SS(0,2); ordered; a
E17; 12; a=4; a:0; 0 1 2|3 4 5|6 7 8|9 10 11; S(0)
blocks of two rows; 10; a=3; a:0:1:2; 0 1 2 3|4 5 6 7|8 9
gated, heads of two rows; 16; a=2; a:0:2:2; 0 1 2 3 8 9 10 11|4 5 6 7 12 13 14 15
)";

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> out;
  std::stringstream stream(text);
  for (std::string word; std::getline(stream, word, separator);)
    if (!word.empty()) out.push_back(word[0] == ' ' ? word.substr(1) : word);
  return out;
}

/// Returns the index lists of one rank, one list for each dimension.
std::vector<List> read_lists(const std::string& text, const List& shape) {
  std::vector<List> out;
  for (const std::string& dim : split(text, 'x')) {
    List& list = out.emplace_back();
    if (dim == "*") list = naive::iota(shape[out.size() - 1]);
    if (dim == "*" || dim == "-") continue;
    for (const std::string& index : split(dim, ' ')) list.push_back(std::stoll(index));
  }
  return out;
}

void check_held(const Layout& layout, const std::vector<std::string>& ranks) {
  REQUIRE(std::ssize(ranks) == layout.mesh().size());
  const auto model = naive::held(layout);
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    INFO("rank " << rank);
    const auto lists = read_lists(ranks[static_cast<size_t>(rank)], layout.shape());
    for (size_t d = 0; d < lists.size(); ++d) {
      INFO("dim " << d);
      CHECK(naive::expand(layout.runs(rank, static_cast<int>(d))) == lists[d]);
      CHECK(layout.local_shape(rank)[d] == std::ssize(lists[d]));
    }
    const List elements = naive::elements(layout.shape(), lists);
    CHECK(layout.local_numel(rank) == std::ssize(elements));
    CHECK(model.at(rank) == elements);
  }
}

}  // namespace

TEST_CASE("layout: cuts and placements give the indices of every example", "[unit][layout]") {
  for (const std::string& line : split(kExamples, '\n')) {
    std::vector<std::string> words = split(line, ';');
    words.resize(8);
    INFO(words[0]);
    const std::vector<std::string> ranks = split(words[4], '|');
    LayoutText text;
    text.shape = words[1];
    text.mesh = words[2];
    text.cuts = words[3];
    check_held(layout_from_text(text), ranks);
    if (words[5].empty()) continue;
    text.cuts = "";
    text.placements = words[5];
    text.reading = words[6];
    text.flat_dims = words[7];
    check_held(layout_from_text(text), ranks);
  }
}
