#include "command/verify/catalogue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <sstream>
#include <string>

#include "support/catalogue.hpp"

namespace muonrt::tool {

namespace {

using Sizes = std::vector<int>;

/// A layout: a mesh, and options of `muonrt layout`. Names in braces are replaced: a, b and c by
/// the sizes of the three mesh dimensions, and other names by numbers or lists of ranks that follow
/// from the sizes.
struct Form {
  const char *name, *mesh, *words;
};

constexpr Form kForms[] = {
    {"replicated (DDP)", "dp={a}", "--placements R"},
    {"rows (FSDP2)", "dp={a}", "--placements S(0)"},
    {"columns (TP)", "dp={a}", "--placements S(1)"},
    {"gate_up (strided by 2)", "dp={a}", "--placements SS(0,2)"},
    {"every n-th row (strided by 5)", "dp={a}", "--placements SS(0,5)"},
    {"heads of 3 rows (units)", "dp={a}", "--cuts dp:0:1:3"},
    {"row bounds (Megatron-FSDP)", "dp={a}", "--row-bounds ..."},
    {"whole tensors (layer-wise owner)", "dp={a}", "--owner ..."},
    {"flat ranges (ZeRO, FSDP1)", "dp={a}", "--flat ..."},
    {"gradients not reduced (DDP)", "dp={a}", "--placements P"},
    {"gradients not reduced, shuffled", "dp={a}", "--rank-array {shuffled} --placements P"},
    {"rows, ranks shuffled", "dp={a}", "--rank-array {shuffled} --placements S(0)"},
    {"rows, without rank 0", "dp={a_less_1}", "--rank-array {without_0} --placements S(0)"},
    {"HSDP", "dp={a},fsdp={b}", "--placements R,S(0)"},
    {"HSDP, gradients not reduced", "dp={a},fsdp={b}", "--placements P,S(0)"},
    {"FSDP twice (nested)", "dp={a},fsdp={b}", "--placements S(0),S(0)"},
    {"FSDP over both (flattened)", "dp={a},fsdp={b}", "--cuts dp*fsdp:0"},
    {"FSDP2 x TP by columns", "dp={a},tp={b}", "--placements S(0),S(1)"},
    {"FSDP2 x TP by rows, literal", "dp={a},tp={b}", "--placements SS(0,{b}),S(0)"},
    {"FSDP2 x TP by rows, ordered", "dp={a},tp={b}",
     "--placements SS(0,{b}),S(0) --reading ordered"},
    {"shard left of strided", "dp={a},tp={b}", "--placements S(0),SS(0,2)"},
    {"FSDP2 x TP of gate_up", "dp={a},tp={b}", "--cuts tp:0:2,dp:0"},
    {"TP x ZeRO (flat ranges)", "dp={a},tp={b}", "--cuts tp:0 --flat ..."},
    {"TP x row bounds", "dp={a},tp={b}", "--cuts tp:1 --row-bounds ..."},
    {"FSDP2 x TP, ranks shuffled", "dp={a},tp={b}",
     "--rank-array {shuffled} --placements S(1),S(0)"},
    {"experts: EP x FSDP", "fsdp={a},ep={b}", "--placements S(0),R (stacks: SS(0,{b}),S(0))"},
    {"HSDP x TP by columns", "dp={a},fsdp={b},tp={c}", "--placements R,S(0),S(1)"},
    {"HSDP x TP, not reduced", "dp={a},fsdp={b},tp={c}", "--placements R,P,S(1)"},
    {"HSDP x TP by rows", "dp={a},fsdp={b},tp={c}",
     "--placements R,SS(0,{c}),S(0) --reading ordered"},
    {"FSDP2 over dp x cp, TP", "dp={a},cp={b},tp={c}",
     "--placements SS(0,{c}),SS(0,{c}),S(0) --reading ordered --flat-dims dp*cp"},
    {"two strided, literal", "dp={a},cp={b},tp={c}", "--placements SS(0,{bc}),SS(0,{c}),S(0)"},
    {"two strided, ordered", "dp={a},cp={b},tp={c}",
     "--placements SS(0,{bc}),SS(0,{c}),S(0) --reading ordered"},
    {"experts: EP x EFSDP x TP", "efsdp={a},ep={b},tp={c}",
     "--placements S(0),R,S(1) (stacks: SS(1,{c}),S(0),S(1))"},
};

/// Returns the two-dimensional mesh with both sizes above 1 that is closest to a square. If there
/// is no such mesh, returns an empty list.
Sizes square_mesh(int ranks) {
  for (int a = static_cast<int>(std::sqrt(ranks)); a >= 2; --a) {
    if (ranks % a == 0) return {a, ranks / a};
  }
  return {};
}

/// Returns a mesh with three dimensions, whose middle dimension has size 1 if `ranks` has too few
/// factors. If `ranks` is prime, returns an empty list.
Sizes cube_mesh(int ranks) {
  for (int a = 2; a * 2 <= ranks; ++a) {
    const Sizes rest = ranks % a == 0 ? square_mesh(ranks / a) : Sizes();
    if (!rest.empty()) return {a, rest[0], rest[1]};
  }
  const Sizes square = square_mesh(ranks);
  return square.empty() ? square : Sizes{square[0], 1, square[1]};
}

/// Returns the ranks in descending order, with some neighbors swapped.
Sizes shuffled(int ranks) {
  Sizes list(static_cast<size_t>(ranks));
  std::iota(list.rbegin(), list.rend(), 0);
  for (size_t i = 2; i < list.size(); i += 3) std::swap(list[i], list[i - 1]);
  return list;
}

/// Parses options such as "--cuts tp:0 --flat ...".
LayoutWords parse(const std::string& words) {
  std::map<std::string, std::string> options;
  std::istringstream in(words);
  for (std::string option, value; in >> option >> value;) options[option] = value;
  LayoutWords out;
  out.rank_array = options["--rank-array"];
  out.placements = options["--placements"];
  out.stack = options["(stacks:"];
  if (!out.stack.empty()) out.stack.pop_back();
  out.reading = options["--reading"];
  out.flat_dims = options["--flat-dims"];
  out.cuts = options["--cuts"];
  for (const char* last : {"row-bounds", "owner", "flat"}) {
    if (options.contains(std::string("--") + last)) out.last = last;
  }
  return out;
}

}  // namespace

std::vector<ListedLayout> verify_layouts(int ranks) {
  const Sizes meshes[] = {{ranks}, square_mesh(ranks), cube_mesh(ranks)};
  Sizes others(static_cast<size_t>(ranks - 1));
  std::iota(others.begin(), others.end(), 1);
  std::vector<ListedLayout> out;
  for (const Form& form : kForms) {
    const std::string mesh = form.mesh;
    Sizes sizes = meshes[std::count(mesh.begin(), mesh.end(), ',')];
    const bool other_ranks = std::string(form.words).starts_with("--rank-array");
    if (sizes.empty() || (ranks == 1 && other_ranks)) continue;
    sizes.resize(3, 1);
    const auto filled = [&](const char* text) {
      return fmt::format(fmt::runtime(text), fmt::arg("a", sizes[0]), fmt::arg("b", sizes[1]),
                         fmt::arg("c", sizes[2]), fmt::arg("bc", sizes[1] * sizes[2]),
                         fmt::arg("a_less_1", ranks - 1),
                         fmt::arg("shuffled", fmt::join(shuffled(ranks), ",")),
                         fmt::arg("without_0", fmt::join(others, ",")));
    };
    ListedLayout& listed = out.emplace_back();
    listed.arguments = filled(form.words);
    listed.words = parse(listed.arguments);
    listed.words.name = form.name;
    listed.words.mesh = filled(form.mesh);
  }
  return out;
}

const std::vector<Numerics>& all_numerics() {
  constexpr int32_t f32 = MUONRT_DTYPE_F32, bf16 = MUONRT_DTYPE_BF16;
  static const std::vector<Numerics> list = {{"f32", f32, f32, f32, f32},
                                             {"f32, bf16 messages", f32, f32, bf16, f32},
                                             {"bf16", bf16, bf16, bf16, f32},
                                             {"bf16 iterates", f32, bf16, bf16, bf16}};
  return list;
}

std::vector<VerifyCase> verify_cases(int ranks) {
  constexpr int32_t kWindows[] = {1, 2, 3, 8};
  constexpr int64_t kBudgets[] = {4096, 1 << 20, 16384};
  const size_t dtypes = all_numerics().size();
  std::vector<VerifyCase> out;
  for (const ListedLayout& listed : verify_layouts(ranks)) {
    const size_t turn = out.size();
    VerifyCase& c = out.emplace_back();
    c.layout = listed.words;
    c.run.numerics = all_numerics()[turn % dtypes];
    c.run.commit = turn / dtypes % 2 == 0 ? MUONRT_COMMIT_ATOMIC : MUONRT_COMMIT_EAGER;
    c.run.window = kWindows[(turn + turn / 4) % std::size(kWindows)];
    c.run.chunk_bytes = kBudgets[turn % std::size(kBudgets)];
    c.run.threads = turn % 5 == 4 ? 2 : 1;
    c.run.poison = true;
  }
  return out;
}

std::vector<ModelTensor> verify_tensors() {
  std::vector<ModelTensor> out;
  for (const catalogue::Shape& s : catalogue::kShapes) {
    out.push_back({fmt::format("{}x{}", s.rows, s.cols), {s.rows, s.cols}, true, {}});
  }
  out.push_back({"twin.16x16", {16, 16}, true, {}});
  out.push_back({"twin.7x7", {7, 7}, true, {}});
  out.push_back({"experts", {5, 6, 9}, true, {}});
  out.push_back({"few_experts", {2, 13, 4}, true, {}});
  out.push_back({"conv", {10, 3, 3, 2}, true, {}});
  // Two groups, each with two query heads, one key head and one value head. Each head has four
  // rows.
  out.push_back(
      {"qkv",
       {32, 18},
       true,
       {{"q", {{0, 8}, {16, 24}}}, {"k", {{8, 12}, {24, 28}}}, {"v", {{12, 16}, {28, 32}}}}});
  out.push_back({"gate_up", {3, 14, 8}, true, {{"gate", {{0, 7}}}, {"up", {{7, 14}}}}});
  out.push_back({"bias", {53}, false, {}});
  out.push_back({"temperature", {}, false, {}});
  out.push_back({"embedding", {29, 12}, false, {}});
  out.push_back({"table", {4, 3, 5}, false, {}});
  return out;
}

}  // namespace muonrt::tool
