#include "command/verify/catalogue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "support/catalogue.hpp"

namespace muonrt::tool {

namespace {

using Sizes = std::vector<int>;

std::string mesh_text(const std::vector<const char*>& names, const Sizes& sizes) {
  std::string out;
  for (size_t i = 0; i < sizes.size(); ++i) {
    out += fmt::format("{}{}={}", i > 0 ? "," : "", names[i], sizes[i]);
  }
  return out;
}

/// 0 .. size - 1 in another order: from the last one down, neighbours swapped here and there.
std::string shuffled(int size) {
  Sizes ranks(static_cast<size_t>(size));
  std::iota(ranks.rbegin(), ranks.rend(), 0);
  for (size_t i = 2; i < ranks.size(); i += 3) std::swap(ranks[i], ranks[i - 1]);
  return fmt::format("{}", fmt::join(ranks, ","));
}

/// Entries are name, placements (or cuts), reading, flat dims.
class List {
 public:
  void mesh(std::string text, std::string rank_array = {}) {
    mesh_ = std::move(text);
    rank_array_ = std::move(rank_array);
  }
  LayoutWords& placed(const std::string& name, const std::string& placements,
                      const std::string& reading = "literal", const std::string& flat_dims = {}) {
    LayoutWords& words = add(name);
    words.placements = placements;
    words.reading = reading;
    words.flat_dims = flat_dims;
    return words;
  }
  void cut(const std::string& name, const std::string& cuts, const std::string& last = {}) {
    LayoutWords& words = add(name);
    words.cuts = cuts;
    words.last = last;
  }
  std::vector<LayoutWords> take() { return std::move(list_); }

 private:
  LayoutWords& add(const std::string& name) {
    LayoutWords& words = list_.emplace_back();
    words.name = name;
    words.mesh = mesh_;
    words.rank_array = rank_array_;
    return words;
  }
  std::string mesh_, rank_array_;
  std::vector<LayoutWords> list_;
};

void one_dim(List& list, int n) {
  list.mesh(mesh_text({"dp"}, {n}));
  list.placed("replicated (DDP)", "R");
  list.placed("rows (FSDP2)", "S(0)");
  list.placed("columns (TP)", "S(1)");
  list.placed("gate_up (strided by 2)", "SS(0,2)");
  list.placed("every n-th row (strided by 5)", "SS(0,5)");
  list.cut("heads of 3 rows (units)", "dp:0:1:3");
  list.cut("row bounds (Megatron-FSDP)", "", "row_bounds");
  list.cut("whole tensors (layer-wise owner)", "", "owner");
  list.cut("flat ranges (ZeRO, FSDP1)", "", "flat");
  list.placed("gradients not reduced (DDP)", "P");
  if (n == 1) return;
  list.mesh(mesh_text({"dp"}, {n}), shuffled(n));
  list.placed("gradients not reduced, shuffled", "P");
  list.placed("rows, ranks shuffled", "S(0)");
  list.mesh(mesh_text({"dp"}, {n - 1}), fmt::format("{}", fmt::join(
                                                              [n] {
                                                                Sizes ranks;
                                                                for (int r = 1; r < n; ++r)
                                                                  ranks.push_back(r);
                                                                return ranks;
                                                              }(),
                                                              ",")));
  list.placed("rows, without rank 0", "S(0)");
}

void two_dims(List& list, int a, int b) {
  list.mesh(mesh_text({"dp", "fsdp"}, {a, b}));
  list.placed("HSDP", "R,S(0)");
  list.placed("HSDP, gradients not reduced", "P,S(0)");
  list.placed("FSDP twice (nested)", "S(0),S(0)");
  list.cut("FSDP over both (flattened)", "dp*fsdp:0");
  list.mesh(mesh_text({"dp", "tp"}, {a, b}));
  list.placed("FSDP2 x TP by columns", "S(0),S(1)");
  list.placed("FSDP2 x TP by rows, literal", fmt::format("SS(0,{}),S(0)", b));
  list.placed("FSDP2 x TP by rows, ordered", fmt::format("SS(0,{}),S(0)", b), "ordered");
  list.placed("shard left of strided", "S(0),SS(0,2)");
  list.cut("FSDP2 x TP of gate_up", "tp:0:2,dp:0");
  list.cut("TP x ZeRO (flat ranges)", "tp:0", "flat");
  list.cut("TP x row bounds", "tp:1", "row_bounds");
  list.mesh(mesh_text({"dp", "tp"}, {a, b}), shuffled(a * b));
  list.placed("FSDP2 x TP, ranks shuffled", "S(1),S(0)");
  list.mesh(mesh_text({"fsdp", "ep"}, {a, b}));
  list.placed("experts: EP x FSDP", "S(0),R").stack = fmt::format("SS(0,{}),S(0)", b);
}

void three_dims(List& list, int a, int b, int c) {
  list.mesh(mesh_text({"dp", "fsdp", "tp"}, {a, b, c}));
  list.placed("HSDP x TP by columns", "R,S(0),S(1)");
  list.placed("HSDP x TP, not reduced", "R,P,S(1)");
  list.placed("HSDP x TP by rows", fmt::format("R,SS(0,{}),S(0)", c), "ordered");
  list.mesh(mesh_text({"dp", "cp", "tp"}, {a, b, c}));
  list.placed("FSDP2 over dp x cp, TP", fmt::format("SS(0,{0}),SS(0,{0}),S(0)", c), "ordered",
              "dp*cp");
  list.placed("two strided, literal", fmt::format("SS(0,{}),SS(0,{}),S(0)", b * c, c));
  list.placed("two strided, ordered", fmt::format("SS(0,{}),SS(0,{}),S(0)", b * c, c), "ordered");
  list.mesh(mesh_text({"efsdp", "ep", "tp"}, {a, b, c}));
  list.placed("experts: EP x EFSDP x TP", "S(0),R,S(1)").stack =
      fmt::format("SS(1,{}),S(0),S(1)", c);
}

std::vector<LayoutWords> layouts(int ranks, bool full) {
  std::vector<Sizes> squares, cubes;
  for (int a = 2; a <= ranks; ++a) {
    for (int b = 1; ranks % a == 0 && b <= ranks / a; ++b) {
      const int c = ranks / a / b;
      if (c < 2 || a * b * c != ranks) continue;
      // Dimensions of size 1 cut nothing, but stand in every list; once is enough.
      if (b == 1) squares.push_back({a, c});
      cubes.push_back({a, b, c});
    }
  }
  if (!full) {
    // The squarest; the first cube without a 1, if there is one.
    const auto squarer = [](const Sizes& m, const Sizes& n) { return m[0] + m[1] < n[0] + n[1]; };
    std::stable_sort(squares.begin(), squares.end(), squarer);
    const auto solid = [](const Sizes& m) { return m[1] > 1; };
    std::stable_partition(cubes.begin(), cubes.end(), solid);
    squares.resize(std::min<size_t>(squares.size(), 1));
    cubes.resize(std::min<size_t>(cubes.size(), 1));
  }
  List list;
  one_dim(list, ranks);
  for (const Sizes& m : squares) two_dims(list, m[0], m[1]);
  for (const Sizes& m : cubes) three_dims(list, m[0], m[1], m[2]);
  return list.take();
}

}  // namespace

const std::vector<Numerics>& all_numerics() {
  constexpr int32_t f32 = MUONRT_DTYPE_F32, bf16 = MUONRT_DTYPE_BF16;
  static const std::vector<Numerics> list = {{"f32", f32, f32, f32, f32},
                                             {"f32, bf16 messages", f32, f32, bf16, f32},
                                             {"bf16", bf16, bf16, bf16, f32},
                                             {"bf16 iterates", f32, bf16, bf16, bf16}};
  return list;
}

std::vector<VerifyCase> verify_cases(int ranks, bool full) {
  constexpr int32_t kWindows[] = {1, 2, 3, 8};
  constexpr int64_t kBudgets[] = {4096, 1 << 20, 16384};
  const std::vector<LayoutWords> forms = layouts(ranks, full);
  const size_t dtypes = all_numerics().size();
  std::vector<VerifyCase> out;
  for (size_t i = 0; i < forms.size(); ++i) {
    for (size_t k = 0; k < (full ? 2 * dtypes : 1); ++k) {
      const size_t turn = out.size();
      VerifyCase& c = out.emplace_back();
      c.layout = forms[i];
      c.run.numerics = all_numerics()[full ? k / 2 : turn % dtypes];
      c.run.commit =
          (full ? k : turn / dtypes) % 2 == 0 ? MUONRT_COMMIT_ATOMIC : MUONRT_COMMIT_EAGER;
      c.run.window = kWindows[(turn + turn / 4) % std::size(kWindows)];
      c.run.chunk_bytes = kBudgets[turn % std::size(kBudgets)];
      c.run.threads = turn % 5 == 4 ? 2 : 1;
      c.run.poison = true;
    }
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
  // Two groups of two query heads, one key and one value head each, four rows a head.
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
