#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "support/attempts.hpp"
#include "support/rank_check.hpp"

// Tests QK-clip in whole steps: compares a step with logits to a step without logits.

using namespace muonrt;

namespace {

constexpr float kNothing = -HUGE_VALF;
constexpr int64_t kCols = 12;

/// A weight of a layer with 4 query heads.
struct Weight {
  QkKind kind;
  int64_t rows;
  int32_t kv_heads, head_dim = 0, nope = 0, rope = 0, v_dim = 0;
};
const Weight kWeights[] = {
    {.kind = QkKind::kQuery, .rows = 12, .kv_heads = 2, .head_dim = 3},
    {.kind = QkKind::kKey, .rows = 6, .kv_heads = 2, .head_dim = 3},
    {.kind = QkKind::kMlaQuery, .rows = 20, .kv_heads = 2, .nope = 3, .rope = 2},
    {.kind = QkKind::kMlaKeyValue, .rows = 16, .kv_heads = 2, .nope = 3, .v_dim = 5},
    {.kind = QkKind::kMlaKeyValue, .rows = 16, .kv_heads = 4, .nope = 3, .v_dim = 1},
    {.kind = QkKind::kQkv, .rows = 24, .kv_heads = 2, .head_dim = 3},
    {.kind = QkKind::kMlaQuery, .rows = 24, .kv_heads = 4, .nope = 1, .rope = 5},
    {.kind = QkKind::kQkvBlocks, .rows = 24, .kv_heads = 2, .head_dim = 3},
    {.kind = QkKind::kKey, .rows = 20, .kv_heads = 4, .head_dim = 5}};

QkClipSettings settings_of(const Weight& w, int32_t layer) {
  QkClipSettings c;
  c.kind = w.kind;
  c.layer = layer;
  c.heads = 4;
  c.kv_heads = w.kv_heads;
  c.head_dim = w.head_dim;
  c.nope = w.nope;
  c.rope = w.rope;
  c.v_dim = w.v_dim;
  return c;
}

/// Returns the factor of each row, computed head by head and part by part as in the paper.
std::vector<double> factors(const Weight& w, const std::vector<double>& logits, double threshold,
                            double alpha, const std::vector<bool>& may) {
  std::vector<double> out(static_cast<size_t>(w.rows), 1.0), gamma(4, 1.0);
  for (size_t h = 0; h < 4; ++h)
    if (may[h] && logits[h] > threshold) gamma[h] = threshold / logits[h];
  const int kv = w.kv_heads, each = 4 / kv, dim = w.head_dim, nope = w.nope, rope = w.rope,
            v_dim = w.v_dim;
  std::vector<double> group(static_cast<size_t>(kv), 1.0);
  for (int h = 0; h < 4; ++h) {
    double& smallest = group[static_cast<size_t>(h / each)];
    smallest = std::min(smallest, gamma[static_cast<size_t>(h)]);
  }
  size_t row = 0;
  const auto put = [&](int count, double factor) {
    for (int i = 0; i < count; ++i) out[row++] = factor;
  };
  switch (w.kind) {
    case QkKind::kQuery:
      for (const double g : gamma) put(dim, std::pow(g, alpha));
      break;
    case QkKind::kKey:
      for (const double g : group) put(dim, std::pow(g, 1 - alpha));
      break;
    case QkKind::kMlaQuery:
      for (int h = 0; h < 4; ++h) {
        const double g = group[static_cast<size_t>(h / each)];
        put(nope, std::pow(g, alpha));
        put(rope, g);
      }
      break;
    case QkKind::kMlaKeyValue:
      for (const double g : group) {
        put(nope, std::pow(g, 1 - alpha));
        put(v_dim, 1.0);
      }
      break;
    case QkKind::kQkv:
      for (int k = 0; k < kv; ++k) {
        for (int h = k * each; h < (k + 1) * each; ++h)
          put(dim, std::pow(gamma[static_cast<size_t>(h)], alpha));
        put(dim, std::pow(group[static_cast<size_t>(k)], 1 - alpha));
        put(dim, 1.0);
      }
      break;
    case QkKind::kQkvBlocks:
      for (const double g : gamma) put(dim, std::pow(g, alpha));
      for (const double g : group) put(dim, std::pow(g, 1 - alpha));
      put(kv * dim, 1.0);
      break;
    case QkKind::kNone:
    case QkKind::kFromName:
      break;
  }
  REQUIRE(row == out.size());
  return out;
}

/// Returns a case in which all weights are in layer 7, except the last one, which is in layer 9.
world::Case make_case(std::vector<int64_t> mesh, int scheme = 0) {
  world::Case c = world::on_mesh(std::move(mesh));
  c.steps = 1;
  c.settings.groups = world::default_groups();
  for (size_t i = 0; i < std::size(kWeights); ++i) {
    world::Param& p = world::add(c, cat("w", i), {kWeights[i].rows, kCols}, {});
    p.qk_clip = settings_of(kWeights[i], i + 1 == std::size(kWeights) ? 9 : 7);
    const int dim = scheme == 1 ? 1 : 0;
    p.placements.assign(c.mesh.size(), {PlacementKind::kShard, dim, 1});
    if (scheme == 2) p.placements[0] = {PlacementKind::kStridedShard, 0, 2};
    if (scheme == 3) p.placements[0] = {PlacementKind::kReplicate, 0, 1};
    if (scheme == 4 && kWeights[i].kind == QkKind::kQkv) {
      const auto rows = [](std::vector<int64_t> at) {
        Runs runs;
        for (const int64_t b : at) runs.push_back({b, b + 3});
        return runs;
      };
      p.parts = {{"q", {{0, 6}, {12, 18}}, {{0, kCols}}},
                 {"k", rows({6, 18}), {{0, kCols}}},
                 {"v", rows({9, 21}), {{0, kCols}}}};
    }
  }
  return c;
}

std::vector<float> floats(const std::vector<unsigned char>& bytes) {
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

void give(world::Case& c, const std::vector<float>& logits) {
  c.arguments = [&logits](StepArgs& s, int64_t, int) {
    s.qk_logits = logits.data();
    s.n_qk_logits = static_cast<int64_t>(logits.size());
  };
}

void check_factors(const world::Case& clipped, const std::vector<double>& logits, double threshold,
                   double alpha, const std::vector<bool>& may) {
  world::Case unclipped = clipped;
  unclipped.arguments = nullptr;
  const auto before = world::run(unclipped).tensors.params,
             after = world::run(clipped).tensors.params;
  for (size_t i = 0; i + 1 < std::size(kWeights); ++i) {
    INFO(clipped.params[i].name);
    const auto expected = factors(kWeights[i], logits, threshold, alpha, may);
    const auto a = floats(before[i]), b = floats(after[i]);
    for (size_t e = 0; e < a.size(); ++e) {
      const double factor = expected[e / kCols];
      if (factor == 1.0) REQUIRE(b[e] == a[e]);
      REQUIRE(std::abs(static_cast<double>(b[e]) - static_cast<double>(a[e]) * factor) <=
              4e-7 * std::abs(static_cast<double>(a[e])));
    }
  }
}

}  // namespace

TEST_CASE("qk-clip: rows of queries and keys shrink as in the paper, rows of values never",
          "[unit][optimizer][qkclip]") {
  const std::vector<float> logits = {50, 400, 100, 900, 1, 2, 3, 4};
  // In scheme 4, the rows of a fused weight are clipped by their index in the whole matrix.
  for (const int scheme : {0, 4}) {
    for (const double alpha : {0.5, 0.25, 0.0, 1.0}) {
      world::Case c = make_case({scheme == 0 ? 2 : 3}, scheme);
      for (auto& p : c.params) p.qk_clip.exponent = alpha;
      give(c, logits);
      check_factors(c, {50, 400, 100, 900}, 100, alpha, {true, true, true, true});
    }
  }
}

TEST_CASE("qk-clip: the threshold itself does not clip, and a subset clips no other head",
          "[unit][optimizer][qkclip]") {
  const std::vector<float> exact = {100, 100, 100, 100, 100, 100, 100, 100};
  world::Case c = make_case({1});
  world::Case unclipped = c;
  give(c, exact);
  CHECK((world::run(c).tensors == world::run(unclipped).tensors));
  const std::vector<float> logits = {200, 400, 300, 900, 1, 1, 1, 1};
  for (auto& p : c.params) {
    p.qk_clip.selects = true;
    p.qk_clip.select = {0, 2};
  }
  give(c, logits);
  check_factors(c, {200, 400, 300, 900}, 100, 0.5, {true, false, true, false});
}

TEST_CASE("qk-clip: each rank passes its heads; results are bitwise identical on every mesh",
          "[bits][qkclip]") {
  const std::vector<float> logits = {50, 400, 100, 900, 101, 20, 3000, 99};
  for (const MasterKind kind : {MasterKind::kNone, MasterKind::kOwned, MasterKind::kRemainder}) {
    const auto prepared = [&](std::vector<int64_t> mesh, int scheme) {
      world::Case c = make_case(std::move(mesh), scheme);
      c.steps = 3;
      c.settings.transport_dtype = DType::kF32;
      for (auto& p : c.params) {
        p.dtype = kind == MasterKind::kNone ? DType::kF32 : DType::kBF16;
        p.master_kind = kind;
      }
      return c;
    };
    world::Case one = prepared({1}, 0);
    give(one, logits);
    const world::Outcome reference = world::run(one);
    CHECK(reference.reports[0].clipped_heads == 4);
    for (const auto& [mesh, scheme] :
         {std::pair{std::vector<int64_t>{3}, 0}, {{2, 2}, 1}, {{2, 2}, 2}, {{2, 3}, 3}}) {
      world::Case c = prepared(mesh, scheme);
      std::vector<std::vector<float>> parts(static_cast<size_t>(c.world),
                                            std::vector<float>(logits.size(), kNothing));
      for (size_t h = 0; h < logits.size(); ++h) {
        parts[h % parts.size()][h] = logits[h];
        parts[(h + 1) % parts.size()][h] = parts.size() > 1 ? logits[h] / 2 : logits[h];
      }
      c.arguments = [&](StepArgs& s, int64_t, int rank) {
        s.qk_logits = parts[static_cast<size_t>(rank)].data();
        s.n_qk_logits = 8;
      };
      INFO(c.describe());
      CHECK((world::run(c).tensors == reference.tensors));
    }
  }
}

TEST_CASE("qk-clip: a head counts only if a weight that clips it is active",
          "[unit][optimizer][qkclip]") {
  // Logits exceed the threshold in heads 1 and 3 of layer 7 (weights 0 to 6) and in head 2 of layer
  // 9 (weight 7).
  const std::vector<float> logits = {50, 400, 100, 900, 1, 20, 3000, 99};
  const auto clipped = [&](std::vector<int64_t> without) {
    world::Case c = make_case({2});
    c.arguments = [&](StepArgs& s, int64_t, int) {
      s.qk_logits = logits.data();
      s.n_qk_logits = 8;
      s.inactive_params = without;
    };
    return world::run(c).reports[0].clipped_heads;
  };
  CHECK(clipped({}) == 3);
  CHECK(clipped({0, 1, 2, 3, 4, 5}) == 3);
  CHECK(clipped({8}) == 2);
  CHECK(clipped({0, 1, 2, 3, 4, 5, 6, 7}) == 1);
  CHECK(clipped({0, 1, 2, 3, 4, 5, 6, 7, 8}) == 0);
}

TEST_CASE("qk-clip: partial gradients are bitwise identical to one rank with their sum",
          "[bits][qkclip][partial]") {
  const std::vector<float> logits = {50, 400, 100, 900, 101, 20, 3000, 99};
  const Placement partial{PlacementKind::kPartial, 0, 1}, rows{PlacementKind::kShard, 0, 1};
  for (const MasterKind kind : {MasterKind::kNone, MasterKind::kOwned, MasterKind::kRemainder}) {
    const auto outcome = [&](std::vector<int64_t> mesh, std::vector<Placement> how, bool clips) {
      world::Case c = make_case(std::move(mesh));
      c.steps = 3;
      for (auto& p : c.params) {
        p.placements = how;
        p.partial_grads = 2;
        p.dtype = kind == MasterKind::kNone ? DType::kF32 : DType::kBF16;
        p.master_kind = kind;
      }
      if (clips) give(c, logits);
      return world::run(c);
    };
    const world::Outcome one = outcome({1}, {}, true);
    CHECK(one.reports[0].clipped_heads == 4);
    CHECK_FALSE((one.tensors == outcome({1}, {}, false).tensors));
    const world::Outcome two = outcome({2}, {partial}, true);
    CHECK((two.tensors == one.tensors));
    CHECK(two.reports[0].clipped_heads == 4);
    CHECK((outcome({2, 3}, {partial, rows}, true).tensors == one.tensors));
    CHECK((outcome({3, 2}, {rows, partial}, true).tensors == one.tensors));
  }
}

TEST_CASE("qk-clip: a logit that is not finite skips the step, -inf everywhere does nothing",
          "[unit][optimizer][qkclip]") {
  world::Case c = make_case({2});
  const std::vector<float> none(8, kNothing);
  give(c, none);
  world::Case unclipped = make_case({2});
  CHECK((world::run(c).tensors == world::run(unclipped).tensors));
  for (const float bad : {HUGE_VALF, std::nanf("")}) {
    std::vector<float> logits(8, 1.0f);
    logits[6] = bad;
    c.arguments = [&](StepArgs& s, int64_t, int rank) {
      s.qk_logits = rank == 1 ? logits.data() : none.data();
      s.n_qk_logits = 8;
    };
    world::on_each(c, [](world::Rank& rank, Comm& comm) {
      const world::Ended end = world::attempt(rank, 0);
      RANK_CHECK(end.status == Status::kSkipped && end.unchanged);
      // The logit does not belong to a parameter, and all ranks pass it.
      RANK_CHECK(end.report.nonfinite_param == -1 && end.report.nonfinite_rank == 0);
      // If a gradient is also non-finite, the report names the gradient.
      if (comm.rank() == 1) std::memset(rank.grad(0).data(), 0xff, 4);
      const world::Ended other = world::attempt_only(rank, 0);
      RANK_CHECK(other.status == Status::kSkipped);
      RANK_CHECK(other.report.nonfinite_param == 0 && other.report.nonfinite_rank == 1);
    });
  }
}

TEST_CASE("qk-clip: sizes that do not fit the weight are rejected with an error that names them",
          "[unit][optimizer][qkclip]") {
  const std::vector<float> few(3, 1.0f);
  const std::pair<std::function<void(world::Case&)>, const char*> rows[] = {
      {[](auto& c) { c.params[0].qk_clip.head_dim = 4; }, "'q', its heads and sizes give 16 rows"},
      {[](auto& c) { c.params[1].qk_clip.kv_heads = 3; }, "kv_heads, which is 3"},
      {[](auto& c) { c.params[0].qk_clip.threshold = 0; }, "threshold is 0"},
      {[](auto& c) { c.params[0].qk_clip.exponent = 2; }, "exponent is 2"},
      {[](auto& c) { c.params[0].qk_clip.select = {4}; }, "select contains head 4"},
      {[](auto& c) {
         QkClipSettings& clip = c.params[8].qk_clip;
         clip.layer = 7;
         clip.heads = clip.kv_heads = 5;
         clip.head_dim = 4;
       },
       "of the same layer 7"},
      {[](auto& c) { c.params[0].role = Role::kAdamW; }, "only Muon matrices can be clipped"},
      {[&](auto& c) { give(c, few); }, "n_qk_logits is 3"}};
  for (const auto& [change, text] : rows) {
    world::Case c = make_case({1});
    change(c);
    CHECK_THROWS_WITH(world::run(c), Catch::Contains(text));
  }
}
